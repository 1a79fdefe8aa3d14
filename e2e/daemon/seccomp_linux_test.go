package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// denied becomes the program that its arguments name after the number of a system
// call, which fails with EPERM from then on: what a seccomp profile does.
func denied() {
	number, err := strconv.ParseUint(os.Args[1], 10, 32)
	if err == nil {
		err = deny(uint32(number))
	}
	var program string
	if err == nil {
		program, err = exec.LookPath(os.Args[2])
	}
	if err == nil {
		err = syscall.Exec(program, os.Args[2:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "denied:", err)
	os.Exit(nodetest.ExitBad)
}

// deny takes a system call from this process and from what it becomes (seccomp(2)).
func deny(number uint32) error {
	const nr = 0 // struct seccomp_data begins with it
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	runtime.LockOSThread()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// deniable are system calls that profiles of containers refuse, and that the
// daemon, the libraries or Go make.
var deniable = map[string]uint32{
	"bpf": unix.SYS_BPF, "epoll_create1": unix.SYS_EPOLL_CREATE1, "eventfd2": unix.SYS_EVENTFD2,
	"fchmod": unix.SYS_FCHMOD, "fdatasync": unix.SYS_FDATASYNC, "flock": unix.SYS_FLOCK, "fsync": unix.SYS_FSYNC,
	"getrandom": unix.SYS_GETRANDOM, "getsockopt": unix.SYS_GETSOCKOPT,
	"io_uring_setup": unix.SYS_IO_URING_SETUP, "listen": unix.SYS_LISTEN,
	"membarrier": unix.SYS_MEMBARRIER, "mount": unix.SYS_MOUNT, "openat2": unix.SYS_OPENAT2, "perf_event_open": unix.SYS_PERF_EVENT_OPEN,
	"pidfd_open": unix.SYS_PIDFD_OPEN, "pidfd_send_signal": unix.SYS_PIDFD_SEND_SIGNAL, "prlimit64": unix.SYS_PRLIMIT64,
	"recvmsg": unix.SYS_RECVMSG, "renameat": unix.SYS_RENAMEAT, "rseq": unix.SYS_RSEQ, "sched_getaffinity": unix.SYS_SCHED_GETAFFINITY,
	"sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO, "setns": unix.SYS_SETNS, "setsockopt": unix.SYS_SETSOCKOPT,
	"statx": unix.SYS_STATX, "sysinfo": unix.SYS_SYSINFO, "timerfd_create": unix.SYS_TIMERFD_CREATE, "uname": unix.SYS_UNAME,
	"unshare": unix.SYS_UNSHARE, "waitid": unix.SYS_WAITID,
}

// needless are those without which the daemon works all the same.
var needless = strings.Fields(`bpf fdatasync fsync io_uring_setup membarrier mount openat2
	perf_event_open pidfd_open pidfd_send_signal prlimit64 rseq sched_getaffinity setns statx sysinfo timerfd_create uname unshare waitid`)

// If a seccomp profile denies a system call, the daemon either applies rules and follows changes, or
// reports the reason why it does not.
func TestWatchDenied(t *testing.T) {
	t.Parallel()
	for name, number := range deniable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, "nftables")
			w.Write("cluster.yaml", applytest.Services("a"))
			w.Start("denied", fmt.Sprint(number), "proxyc", "watch")
			ended := make(chan error, 1)
			go func() { ended <- w.Wait() }()
			needed := !slices.Contains(needless, name)
			works := false
			applytest.Until(t, 20*time.Second, "rules, or a word", func() bool {
				select {
				case <-ended:
					return true
				default:
				}
				works = w.Has("a")
				return works || needed && strings.Contains(w.Log.String(), unix.EPERM.Error())
			})
			switch {
			case works:
				w.Write("cluster.yaml", applytest.Services("b"))
				w.Holds(10*time.Second, "b", true)
			case !needed:
				t.Errorf("it ended, though it can do without:\n%s", w.Log)
			case w.Log.String() == "":
				t.Error("it ended without a word")
			}
		})
	}
}
