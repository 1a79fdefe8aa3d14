//go:build unix

package userspace

import "syscall"

// Descriptors per client. A TCP connection requires two sockets and, in each direction, the two
// ends of the pipe that the kernel splices through. A UDP client requires one socket.
const (
	perConnection = 6
	perSession    = 1
	reserved      = 4096 // for the rest of the process: its servers, the API server, tools

	// mostListeners exceeds the number of proxy ports of one family and protocol.
	mostListeners = 40000
)

// descriptors returns the maximum number of descriptors that the limits allow.
func (l Limits) descriptors() uint64 {
	return uint64(l.Connections*perConnection + l.Sessions*perSession + l.Listeners)
}

// fitLimits returns the limits, and one for listeners, reduced to the process's limit of
// descriptors. It raises that limit first if possible.
func fitLimits(l Limits) Limits {
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
			more.Cur, more.Max = has.Max, has.Max // without the right to raise the maximum, use it
			syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more)
		}
		syscall.Getrlimit(syscall.RLIMIT_NOFILE, &has)
	}
	return scaleLimits(l, uint64(has.Cur))
}

// scaleLimits returns the limits, scaled down to a number of descriptors.
func scaleLimits(l Limits, descriptors uint64) Limits {
	whole := l.descriptors()
	if descriptors >= whole+reserved {
		return l
	}
	rest := descriptors - min(reserved, descriptors/4)
	part := func(of int) int { return max(1, int(uint64(of)*rest/whole)) }
	return Limits{Connections: part(l.Connections), Sessions: part(l.Sessions), Listeners: part(l.Listeners)}
}
