//go:build unix

package userspace

import "syscall"

// A TCP connection needs two sockets and, in each direction, the two ends of
// the pipe through which the kernel splices; a UDP client needs a socket.
const (
	perConnection = 6
	perSession    = 1
	reserved      = 4096 // descriptors for the rest of the process: its servers, the API server, the tools

	// mostListeners is more than what the proxy ports of one family and protocol are.
	mostListeners = 40000
)

// descriptors returns how many are used at most.
func (l Limits) descriptors() uint64 {
	return uint64(l.Connections*perConnection + l.Sessions*perSession + l.Listeners)
}

// affordable returns the limits, with one of listeners, as far as the process may have as
// many descriptors, after it has asked for enough.
func affordable(l Limits) Limits {
	l.Listeners = mostListeners
	need := l.descriptors() + reserved
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
	whole := l.descriptors()
	if descriptors >= whole+reserved {
		return l
	}
	rest := descriptors - min(reserved, descriptors/4)
	part := func(of int) int { return max(1, int(uint64(of)*rest/whole)) }
	return Limits{Connections: part(l.Connections), Sessions: part(l.Sessions), Listeners: part(l.Listeners)}
}
