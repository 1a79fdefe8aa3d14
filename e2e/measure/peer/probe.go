package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/e2e/measure/sample"
)

// answer is the result of a new connection.
type answer int

const (
	noReply answer = iota // refused, unreachable, or silence
	atHome                // an endpoint
	moved                 // the endpoint with address abroad
)

const (
	probeEvery = 100 * time.Microsecond
	probeShare = 100 // at least one part in this of the measured time is between two probes, and leaves the processor to the proxy
	// An answer usually arrives within 0.1 ms. A probe waits only briefly, and then is repeated.
	// Only lasting silence counts.
	shortWait = time.Millisecond
	longWait  = 100 * time.Millisecond
)

// until tries new connections to addresses from the client until each has had the wanted result,
// and returns the time of the last one. This measures what the kernel does with packets, not how
// the rules are arranged. The resolution is 0.2 ms, or 1 % of the time waited if that is more.
func (l *lab) until(ctx context.Context, want answer, addrs ...netip.AddrPort) (at time.Time, err error) {
	pending, began, timeout := slices.Clone(addrs), time.Now(), shortWait
	if want == noReply {
		timeout = longWait
	}
	return at, l.client.Do(func() error {
		defer raisePriority()()
		for {
			round, left := time.Now(), pending[:0]
			for _, a := range pending {
				asked := time.Now()
				got, err := connect(a, timeout)
				if err != nil {
					return err
				}
				if got != want {
					left = append(left, a)
					continue
				}
				if at = time.Now(); at.Sub(asked) >= longWait {
					at = asked // the packet was dropped then
				}
			}
			if pending = left; len(pending) == 0 {
				return nil
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%d of %d Services are not in the kernel after %s: %w",
					len(pending), len(addrs), time.Since(began).Round(time.Millisecond), ctx.Err())
			}
			time.Sleep(max(probeEvery, time.Since(began)/probeShare) - time.Since(round))
		}
	})
}

// raisePriority gives this thread precedence over the measured programs, which may use all
// processors, until the returned function is called.
func raisePriority() (restore func()) {
	unix.Setpriority(unix.PRIO_PROCESS, 0, -15) // without the right to it, times are less exact
	return func() { unix.Setpriority(unix.PRIO_PROCESS, 0, 0) }
}

// connect makes one connection, and resets it. No answer within the timeout counts as noReply. It
// must run in the client's namespace. Errors are those of this program, not of the network.
func connect(to netip.AddrPort, timeout time.Duration) (answer, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return noReply, err
	}
	defer unix.Close(fd)
	// Without TIME-WAIT, ports and entries of the connection table are free immediately.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return noReply, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	if err == unix.EADDRNOTAVAIL {
		return noReply, errors.New("the client has run out of ports")
	}
	if err != unix.EINPROGRESS && err != nil {
		return noReply, nil
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for deadline := time.Now().Add(timeout); ; {
		wait := unix.NsecToTimespec(max(0, time.Until(deadline).Nanoseconds()))
		n, err := unix.Ppoll(fds, &wait, nil)
		if n > 0 {
			break
		}
		if err != unix.EINTR {
			return noReply, err
		}
	}
	if failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || failed != 0 {
		return noReply, err
	}
	segment, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return noReply, err
	}
	if segment <= smallSegment {
		return moved, nil
	}
	return atHome, nil
}

// load is the result of clients that connect as fast as they can.
type load struct {
	PerSecond float64
	P50, P99  time.Duration // of a connection
	Failed    int
}

// loadFor connects to addresses in turn for a while, from several threads.
func (l *lab) loadFor(d time.Duration, threads int, addrs ...netip.AddrPort) (load, error) {
	type share struct {
		took   []time.Duration
		failed int
		err    error
	}
	shares := make(chan share, threads)
	for range threads {
		go func() {
			var s share
			s.err = l.client.Do(func() error {
				for began, i := time.Now(), 0; time.Since(began) < d; i++ {
					before := time.Now()
					got, err := connect(addrs[i%len(addrs)], longWait)
					if err != nil {
						return err
					}
					if got == noReply {
						s.failed++
						continue
					}
					s.took = append(s.took, time.Since(before))
				}
				return nil
			})
			shares <- s
		}()
	}
	var out load
	var took []time.Duration
	var err error
	for range threads {
		s := <-shares
		took, out.Failed, err = append(took, s.took...), out.Failed+s.failed, errors.Join(err, s.err)
	}
	slices.Sort(took)
	out.PerSecond = float64(len(took)) / d.Seconds()
	out.P50, out.P99 = sample.Quantile(took, 0.5), sample.Quantile(took, 0.99)
	return out, err
}

// gaps connects once a millisecond until ctx ends, and returns the longest wait for an answer.
func (l *lab) gaps(ctx context.Context, to netip.AddrPort) (longest time.Duration, err error) {
	pause := func() error {
		// time.Sleep ends late while the measured program uses all processors.
		unix.Nanosleep(&unix.Timespec{Nsec: time.Millisecond.Nanoseconds()}, nil)
		return ctx.Err()
	}
	return longest, l.client.Do(func() error {
		defer raisePriority()()
		longest, err = longestWait(func() (answer, error) { return connect(to, longWait) }, pause, time.Now)
		return err
	})
}

// longestWait connects until pause returns an error, and returns the longest time from the first
// connection since an answer to the next answer. Pauses count only if a connection had no answer.
func longestWait(connect func() (answer, error), pause func() error, now func() time.Time) (longest time.Duration, err error) {
	var asked time.Time // zero if every connection was answered
	for pause() == nil {
		if asked.IsZero() {
			asked = now()
		}
		got, err := connect()
		if err != nil {
			return longest, err
		}
		longest = max(longest, now().Sub(asked))
		if got != noReply {
			asked = time.Time{}
		}
	}
	return longest, nil
}
