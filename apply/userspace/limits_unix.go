//go:build unix

package userspace

import "syscall"

// A TCP connection needs two sockets and, in each direction, the two ends of
// the pipe through which the kernel splices; a UDP client needs a socket.
const (
	perConnection = 6
	perSession    = 1
	reserved      = 4096 // descriptors for listeners, and for the rest of the process
)

// affordable returns the limits as far as the process may have as many
// descriptors, after it has asked for enough.
func affordable(l Limits) Limits {
	need := uint64(l.Connections*perConnection + l.Sessions*perSession + reserved)
	var has syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &has); err != nil {
		return l
	}
	if uint64(has.Cur) < need {
		more := has
		more.Cur, more.Max = need, max(need, has.Max)
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) != nil {
			more.Cur, more.Max = has.Max, has.Max // without the right to raise it, what there is
			syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more)
		}
		syscall.Getrlimit(syscall.RLIMIT_NOFILE, &has)
	}
	return within(l, uint64(has.Cur))
}

// within returns the limits as a number of descriptors allows them.
func within(l Limits, descriptors uint64) Limits {
	need := uint64(l.Connections*perConnection + l.Sessions*perSession + reserved)
	if descriptors >= need {
		return l
	}
	rest := descriptors - min(descriptors, min(reserved, descriptors/4))
	whole := need - reserved
	return Limits{
		Connections: max(1, int(uint64(l.Connections)*rest/whole)),
		Sessions:    max(1, int(uint64(l.Sessions)*rest/whole)),
	}
}
