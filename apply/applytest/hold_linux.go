package applytest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Hold keeps a TCP connection open for each of its probes, and exchanges queries and replies on
// it continuously.
type Hold struct {
	topo  *Topology
	conns []net.Conn
	stop  chan struct{}
	all   sync.WaitGroup
	asked atomic.Int64

	mu       sync.Mutex
	failures []LoadFailure
}

// patience is the timeout for a reply on an open connection. A lost segment is retransmitted
// several times within it.
const patience = 10 * time.Second

// StartHold connects, and then sends a query over each connection at an interval.
func (t *Topology) StartHold(every time.Duration, probes ...Probe) (*Hold, error) {
	h := &Hold{topo: t, stop: make(chan struct{})}
	for _, p := range probes {
		conn, first, err := t.hold(p)
		if err != nil {
			h.Stop()
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		h.conns = append(h.conns, conn)
		h.all.Go(func() { h.keep(p, conn, first.Server, every) })
	}
	return h, nil
}

func (t *Topology) hold(p Probe) (net.Conn, Answer, error) {
	ns, addr, err := t.Source(p.From, p.To.Addr())
	if err != nil {
		return nil, Answer{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := ns.Dial(ctx, "tcp", netip.AddrPortFrom(addr, 0), p.To)
	if err != nil {
		return nil, Answer{}, err
	}
	first, err := Ask(conn, patience)
	if err != nil {
		conn.Close()
	}
	return conn, first, err
}

// keep sends queries until the end, or until the connection breaks.
func (h *Hold) keep(p Probe, conn net.Conn, server netip.AddrPort, every time.Duration) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ticks.C:
		}
		at := time.Now()
		a, err := Ask(conn, patience)
		h.asked.Add(1)
		why := ""
		if err != nil {
			why = Failure(err)
		} else if a.Server != server {
			why = fmt.Sprintf("%s answers in place of %s", a.Server, server)
		}
		if why != "" {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.failures = append(h.failures, LoadFailure{Probe: p, At: at, Why: why})
			return
		}
	}
}

// Stop closes the connections after the pending replies. It returns the number of queries, and the
// failures in order.
func (h *Hold) Stop() (asked int, failures []LoadFailure) {
	close(h.stop)
	h.all.Wait()
	for _, conn := range h.conns {
		conn.Close()
	}
	slices.SortStableFunc(h.failures, func(a, b LoadFailure) int { return a.At.Compare(b.At) })
	return int(h.asked.Load()), h.failures
}
