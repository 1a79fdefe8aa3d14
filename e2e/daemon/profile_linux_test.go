package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// A profile is one of the OCI's runtime specification (config-linux.md, "Seccomp"), as far
// as this one needs it.
type profile struct {
	DefaultAction   string         `json:"defaultAction"`
	DefaultErrnoRet uint           `json:"defaultErrnoRet"`
	Architectures   []string       `json:"architectures"`
	Syscalls        []profileGroup `json:"syscalls"`
}

type profileGroup struct {
	Names    []string     `json:"names"`
	Action   string       `json:"action"`
	ErrnoRet uint         `json:"errnoRet,omitempty"`
	Args     []profileArg `json:"args,omitempty"`
}

type profileArg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"` // a mask
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}

// readProfile reads a profile that has nothing but what the test plays.
func readProfile(file string) (*profile, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := new(profile)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, err
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" || p.DefaultErrnoRet != uint(unix.EPERM) {
		return nil, errors.New("must refuse with EPERM what it does not name")
	}
	for _, g := range p.Syscalls {
		for _, a := range g.Args {
			if a.Op != "SCMP_CMP_MASKED_EQ" || a.ValueTwo != 0 || len(g.Args) != 1 {
				return nil, fmt.Errorf("%v: the test knows masks that must be 0", g.Names)
			}
		}
	}
	return p, nil
}

// policy is the profile as a container runtime would load it: what this machine's
// processor does not have is left out.
func (p *profile) policy() seccomp.Policy {
	out := seccomp.Policy{DefaultAction: seccomp.ActionErrno} // with EPERM
	for _, g := range p.Syscalls {
		group := seccomp.SyscallGroup{Action: seccomp.ActionAllow}
		if g.Action == "SCMP_ACT_ERRNO" {
			group.Action = seccomp.ActionErrno | seccomp.Action(g.ErrnoRet)
		}
		for _, name := range g.Names {
			if _, ok := here().SyscallNames[name]; !ok {
				continue
			}
			if len(g.Args) == 0 {
				group.Names = append(group.Names, name)
				continue
			}
			group.NamesWithCondtions = append(group.NamesWithCondtions, seccomp.NameWithConditions{Name: name,
				Conditions: seccomp.ArgumentConditions{{Argument: uint32(g.Args[0].Index), Operation: seccomp.BitsNotSet, Value: g.Args[0].Value}}})
		}
		out.Syscalls = append(out.Syscalls, group)
	}
	return out
}

func here() *arch.Info {
	info, err := arch.GetInfo("")
	if err != nil {
		panic(err)
	}
	return info
}

// names are the system calls that the profile allows.
func (p *profile) names() (names []string) {
	for _, g := range p.Syscalls {
		if g.Action == "SCMP_ACT_ALLOW" {
			names = append(names, g.Names...)
		}
	}
	return names
}

// listen has the system calls of this thread, and of all that it becomes, wait for who
// records them (seccomp_unotify(2)).
func listen() error {
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF}}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// A recorder notes the system calls of a process that listens, and lets them pass.
type recorder struct {
	mu   sync.Mutex
	seen map[string]bool
}

// follow records a process, whose listener it takes, until all is ended that has its filter.
func (r *recorder) follow(pid int, ended <-chan struct{}) error {
	listener, err := takeListener(pid, ended)
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	type data struct { // struct seccomp_data
		nr        int32
		arch      uint32
		ip        uint64
		arguments [6]uint64
	}
	type request struct { // struct seccomp_notif
		id         uint64
		pid, flags uint32
		data       data
	}
	type response struct { // struct seccomp_notif_resp
		id    uint64
		val   int64
		errno int32
		flags uint32
	}
	ioctl := func(op uintptr, p unsafe.Pointer) error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), op, uintptr(p)); errno != 0 {
			return errno
		}
		return nil
	}
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return nil // nobody is left
		}
		var req request
		if err := ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&req)); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // a signal took the caller away
		} else if err != nil {
			return err
		}
		r.mu.Lock()
		r.seen[cmp.Or(here().SyscallNumbers[int(req.data.nr)], strconv.Itoa(int(req.data.nr)))] = true
		r.mu.Unlock()
		res := response{id: req.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if err := ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&res)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
}

// takeListener returns the listener of a process, of which its next system call waits.
func takeListener(pid int, ended <-chan struct{}) (int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	for {
		files, _ := os.ReadDir(dir) // what is wrong with it, its end tells
		for _, f := range files {
			if to, _ := os.Readlink(filepath.Join(dir, f.Name())); to != "anon_inode:seccomp notify" {
				continue
			}
			number, err := strconv.Atoi(f.Name())
			if err != nil {
				return 0, err
			}
			process, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return 0, err
			}
			defer unix.Close(process)
			return unix.PidfdGetfd(process, number, 0)
		}
		select {
		case <-ended:
			return 0, errors.New("it ended before anything could be recorded")
		case <-time.After(time.Millisecond):
		}
	}
}

const profileFile = deployDir + "seccomp.json"

// The profile is one in which the daemon, in every mode, does all that is its work, and it
// names each system call that it or the tools make for that: its first group has those that
// this test recorded, the second one what the same libraries call on other kernels and
// processors or after faults, the third one what container runtimes do before they start a program.
func TestSeccompProfile(t *testing.T) {
	t.Parallel()
	p, err := readProfile(profileFile)
	if err != nil {
		t.Fatal(err)
	}
	all := recorder{seen: map[string]bool{}}
	var planes atomic.Int32 // that were recorded
	t.Run("recorded", func(t *testing.T) {
		eachDataplane(t, func(t *testing.T, w *watched) {
			planes.Add(1)
			c := w.containerOf()
			c.Record = true
			w.record = &all
			if trouble := w.runIn(c); trouble != "" {
				t.Error(trouble)
			}
		})
	})
	if t.Failed() {
		return
	}
	if planes.Load() == 0 {
		t.Skip("no mode is in this run's share")
	}
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(all.seen)), func(name string) bool { return slices.Contains(p.names(), name) || name == "clone3" })
	if len(missing) > 0 {
		t.Errorf("%s does not allow %s, which were made", profileFile, strings.Join(missing, ", "))
	}
	t.Logf("made: %s", strings.Join(slices.Sorted(maps.Keys(all.seen)), " "))
	if len(all.seen) < 60 {
		t.Errorf("only %d system calls were recorded", len(all.seen))
	}
	t.Run("in force", func(t *testing.T) {
		file, err := filepath.Abs(profileFile)
		if err != nil {
			t.Fatal(err)
		}
		eachDataplane(t, func(t *testing.T, w *watched) {
			c := w.containerOf()
			c.Profile = file
			if trouble := w.runIn(c); trouble != "" {
				t.Error(trouble)
			}
		})
	})
}

// dangerous are system calls by which who took over the daemon could get at the kernel,
// the machine or other processes. Most need capabilities that a container does not have:
// the profile holds where it has them by mistake, and where the kernel has one.
var dangerous = strings.Fields(`acct add_key bpf chroot delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick init_module
	io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mknod mknodat mount mount_setattr move_mount
	move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open personality pivot_root process_madvise process_vm_readv process_vm_writev
	ptrace quotactl quotactl_fd reboot request_key setns settimeofday swapoff swapon umount umount2 unshare userfaultfd vhangup vmsplice`)

// The profile allows only existing system calls, no dangerous ones, and none that creates namespaces.
func TestSeccompProfileIsNarrow(t *testing.T) {
	t.Parallel()
	p, err := readProfile(profileFile)
	if err != nil {
		t.Fatal(err)
	}
	names := p.names()
	for i, name := range names {
		_, x86 := arch.X86_64.SyscallNames[name]
		_, arm := arch.AARCH64.SyscallNames[name]
		if !x86 && !arm {
			t.Errorf("%s: is no system call", name)
		}
		if slices.Contains(dangerous, name) {
			t.Errorf("%s: is dangerous", name)
		}
		if slices.Contains(names[:i], name) {
			t.Errorf("%s: stands twice", name)
		}
	}
	const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	for _, g := range p.Syscalls {
		if slices.Contains(g.Names, "clone") && (len(g.Args) != 1 || g.Args[0].Index != 0 || g.Args[0].Value != namespaces) {
			t.Errorf("clone: %+v, want none of the flags %d that make namespaces", g.Args, namespaces)
		}
		if slices.Contains(g.Names, "clone3") && (g.Action != "SCMP_ACT_ERRNO" || g.ErrnoRet != uint(unix.ENOSYS)) {
			t.Errorf("clone3, whose flags no filter sees: %+v, want ENOSYS, so that libraries take clone", g)
		}
	}
}
