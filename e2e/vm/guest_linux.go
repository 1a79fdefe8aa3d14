package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guest is the first process of the machine. It mounts the files of the outer machine, runs the
// commands one after the other, and powers off.
func guest() {
	if err := work(); err != nil {
		fmt.Println("vm:", err)
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// control is where the guest finds its job.
const control = "/run/control"

func work() error {
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := enter(); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(control, jobFile))
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	os.Clearenv()
	for _, e := range j.Env {
		name, value, _ := strings.Cut(e, "=")
		os.Setenv(name, value)
	}
	if err := furnish(j); err != nil {
		return err
	}
	results, err := os.OpenFile(filepath.Join(control, resultsFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer results.Close()
	for _, c := range j.Commands {
		began := time.Now()
		var r result
		if err := c.run(j); err != nil {
			r.Error = err.Error()
		}
		r.Seconds = time.Since(began).Seconds()
		if err := json.NewEncoder(results).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// loadModules loads the files of a directory in the order of their names.
func loadModules(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := os.Open(filepath.Join(dir, file.Name()))
		if err != nil {
			return err
		}
		// The kernel of another release may have it built in.
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("module %s: %w", file.Name(), err)
		}
		f.Close()
	}
	return nil
}

// A mount has the arguments of mount(2).
type mount struct {
	from, at, kind string
	flags          uintptr
	options        string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.from, m.at, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s: %w", m.at, err)
	}
	return nil
}

func mountAll(mounts ...mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

const ninep = "trans=virtio,version=9p2000.L,msize=262144,cache="

// enter makes the files of the outer machine the root, and keeps writes in memory. The kernel,
// which runs modprobe by itself, uses the same root, since its threads have that of this process.
func enter() error {
	err := mountAll(
		mount{"host", "/lower", "9p", unix.MS_RDONLY, ninep + "loose"},
		mount{"tmpfs", "/rw", "tmpfs", 0, "size=60%"},
	)
	if err != nil {
		return err
	}
	for _, dir := range []string{"/rw/upper", "/rw/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	err = mountAll(
		mount{"overlay", "/root", "overlay", 0, "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work"},
		mount{"proc", "/root/proc", "proc", 0, ""},
		mount{"sysfs", "/root/sys", "sysfs", 0, ""},
		mount{"cgroup2", "/root/sys/fs/cgroup", "cgroup2", 0, ""},
		mount{"devtmpfs", "/root/dev", "devtmpfs", 0, ""},
		mount{"devpts", "/root/dev/pts", "devpts", 0, ""},
		mount{"tmpfs", "/root/dev/shm", "tmpfs", 0, ""},
		mount{"tmpfs", "/root/run", "tmpfs", 0, ""},
		mount{"control", "/root" + control, "9p", 0, ninep + "none"},
	)
	if err != nil {
		return err
	}
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// furnish adds what the job requires.
func furnish(j job) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	fmt.Println(bootLine + unix.ByteSliceToString(name.Release[:]))
	if err := (mount{from: j.Kernel, at: "/usr/lib/modules", flags: unix.MS_BIND}).do(); err != nil {
		return err
	}
	if j.Writable != "" {
		if err := (mount{"writable", j.Writable, "9p", 0, ninep + "none"}).do(); err != nil {
			return err
		}
	}
	return loopback()
}

// loopback brings lo up.
func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request)
}

// run runs the command until it ends. It reaps orphans that end meanwhile, as a first process
// must.
func (c command) run(j job) error {
	if len(c.Modules) > 0 {
		modprobe := command{Args: append([]string{"modprobe", "-a"}, c.Modules...)}
		if err := modprobe.run(job{}); err != nil {
			return fmt.Errorf("modprobe: %w", err)
		}
	}
	console, err := os.OpenFile("/dev/ttyS0", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer console.Close()
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer stdin.Close()
	attr := &os.ProcAttr{Dir: c.Dir, Env: append(os.Environ(), c.Env...), Files: []*os.File{stdin, console, console}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if j.Shell {
		attr.Files[0] = console
		attr.Sys.Setctty = true
	}
	binary, err := exec.LookPath(c.Args[0])
	if err != nil {
		return err
	}
	process, err := os.StartProcess(binary, c.Args, attr)
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == process.Pid:
			if status.Signaled() {
				return fmt.Errorf("killed by signal %d (%s)", status.Signal(), status.Signal())
			}
			if status.ExitStatus() != 0 {
				return fmt.Errorf("exit status %d", status.ExitStatus())
			}
			return nil
		}
	}
}
