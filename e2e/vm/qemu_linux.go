package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A job is the work of a machine, which reads it from the control directory.
type job struct {
	Writable string // directory in which writes persist
	Kernel   string // directory of the kernel's modules
	Shell    bool   // the first command is interactive
	Env      []string
	Commands []command
}

type command struct {
	Name, Dir string
	Modules   []string // loaded before it
	Env       []string // in addition to the job's
	Args      []string
}

// A result is the result of a command.
type result struct {
	Error   string // empty on success
	Seconds float64
}

// The files of the control directory.
const (
	jobFile     = "job.json"
	resultsFile = "results.json"
)

// A machine is a virtual machine that has not been started.
type machine struct {
	kernel   kernel
	work     string // directory for files of this run
	writable string
	accel    string
	cpus     int
	memory   int // MB
	counted  bool
	silence  time.Duration
	timeout  time.Duration
}

// bootLine begins the line that the guest prints when its kernel has started.
const bootLine = "vm: this is Linux "

// errNoStart means that the machine printed nothing.
var errNoStart = errors.New("the machine does not start")

// run starts the machine and returns the results of the commands that ended.
func (m *machine) run(ctx context.Context, j job) (results []result, err error) {
	j.Writable, j.Kernel = m.writable, m.kernel.modules()
	j.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")}
	if err := os.Mkdir(m.control(), 0o755); err != nil {
		return nil, err
	}
	if err := writeInitramfs(filepath.Join(m.work, "initramfs"), m.kernel); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	switch {
	case m.counted:
		err = m.qemu(ctx, "tcg,thread=single", m.silence, j)
	case m.accel != "":
		err = m.qemu(ctx, m.accel, m.silence, j)
	default:
		// A /dev/kvm may exist but not work, or never return. Where it works, the kernel starts
		// within a second.
		if err = errNoStart; hasKVM() {
			if err = m.qemu(ctx, "kvm", 10*time.Second, j); errors.Is(err, errNoStart) {
				fmt.Println("vm: emulating, because", err)
			}
		}
		if errors.Is(err, errNoStart) {
			err = m.qemu(ctx, "tcg,thread=multi", m.silence, j)
		}
	}
	text, readErr := os.ReadFile(filepath.Join(m.control(), resultsFile))
	if readErr != nil {
		return nil, errors.Join(err, fmt.Errorf("no command ended: %w", readErr))
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var r result
		if err := d.Decode(&r); err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, err
}

// control returns the control directory.
func (m *machine) control() string { return filepath.Join(m.work, "control") }

// emulated makes tests use longer timeouts. An idle machine of two processors needs less, but
// builds may run at the same time.
const emulated = "PROXYC_SLOW=4"

// hand writes the job for the guest.
func (m *machine) hand(j job) error {
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.control(), jobFile), text, 0o644)
}

func hasKVM() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// qemu runs the machine until it ends, and forwards its output. It kills the machine if the
// kernel does not start in time, or if it later prints nothing for long.
func (m *machine) qemu(ctx context.Context, accel string, start time.Duration, j job) error {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	serial, cpu := "stdio", "max"
	if j.Shell {
		serial = "mon:stdio" // the monitor passes ctrl-c to the machine
	}
	if accel == "kvm" {
		cpu = "host"
	} else {
		j.Env = append(j.Env, emulated)
	}
	if err := m.hand(j); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", accel, "-cpu", cpu,
		"-smp", strconv.Itoa(m.cpus), "-m", strconv.Itoa(m.memory),
		"-nodefaults", "-nic", "none", "-display", "none", "-no-reboot", "-serial", serial,
		"-kernel", m.kernel.image(), "-initrd", filepath.Join(m.work, "initramfs"),
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off",
		"-virtfs", share("host", "/", ",readonly=on"), "-virtfs", share("control", m.control(), ""))
	if m.counted { // an instruction takes a nanosecond, and idle time is skipped
		cmd.Args = append(cmd.Args, "-icount", "shift=0,sleep=off")
	}
	if m.writable != "" {
		cmd.Args = append(cmd.Args, "-virtfs", share("writable", m.writable, ""))
	}
	watch := &watched{to: os.Stdout}
	stderr := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = watch, stderr
	watch.dog = time.AfterFunc(start, func() {
		if !watch.started() {
			kill(fmt.Errorf("%w with %s: nothing after %s", errNoStart, accel, start))
			return
		}
		kill(fmt.Errorf("the machine hangs: it printed nothing for %s", m.silence))
	})
	defer watch.dog.Stop()
	watch.silence = m.silence
	if j.Shell {
		cmd.Stdin, watch.silence = os.Stdin, m.timeout
	}
	// The machine uses a whole core, so it must end with this process, however that ends. The
	// kernel watches the thread that started it, which therefore must remain.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return cause
	case err != nil && !watch.started():
		return fmt.Errorf("%w with %s: %w: %s", errNoStart, accel, err, bytes.TrimSpace(stderr.Bytes()))
	case err != nil:
		return fmt.Errorf("qemu: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// share returns an argument of -virtfs.
func share(tag, path, more string) string {
	return fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,multidevs=remap%s", path, tag, more)
}

// A watched writer forwards the output of the machine, from the start of its kernel and without
// carriage returns, and resets the watchdog.
type watched struct {
	to      io.Writer
	dog     *time.Timer
	silence time.Duration

	mu     sync.Mutex
	before strings.Builder // printed before the start, by firmware
	begun  bool
}

func (w *watched) started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := bytes.ReplaceAll(p, []byte("\r"), nil)
	if !w.begun {
		w.before.Write(text)
		_, after, ok := strings.Cut(w.before.String(), bootLine)
		if !ok {
			return len(p), nil
		}
		w.begun, text = true, []byte(bootLine+after)
	}
	w.dog.Reset(w.silence)
	_, err := w.to.Write(text)
	return len(p), err
}
