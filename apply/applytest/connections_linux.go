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

// Connections are open TCP connections, one for each probe, on which queries and replies are
// exchanged continuously.
type Connections struct {
	topo    *Topology
	conns   []net.Conn
	stop    chan struct{}
	all     sync.WaitGroup
	queries atomic.Int64

	mu       sync.Mutex
	failures []LoadFailure
}

// ConnTimeout is the timeout for a reply on an open connection. A lost segment is retransmitted
// several times within it.
const ConnTimeout = 10 * time.Second

// StartConnections connects, and then sends a query over each connection at an interval.
func (t *Topology) StartConnections(every time.Duration, probes ...Probe) (*Connections, error) {
	c := &Connections{topo: t, stop: make(chan struct{})}
	for _, p := range probes {
		conn, first, err := t.dialProbe(p)
		if err != nil {
			c.Stop()
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		c.conns = append(c.conns, conn)
		c.all.Go(func() { c.keep(p, conn, first.Server, every) })
	}
	return c, nil
}

func (t *Topology) dialProbe(p Probe) (net.Conn, Answer, error) {
	ns, addr, err := t.Source(p.From, p.To.Addr())
	if err != nil {
		return nil, Answer{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ConnTimeout)
	defer cancel()
	conn, err := ns.Dial(ctx, "tcp", netip.AddrPortFrom(addr, 0), p.To)
	if err != nil {
		return nil, Answer{}, err
	}
	first, err := Query(conn, ConnTimeout)
	if err != nil {
		conn.Close()
	}
	return conn, first, err
}

// keep sends queries until the end, or until the connection breaks.
func (c *Connections) keep(p Probe, conn net.Conn, server netip.AddrPort, every time.Duration) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-ticks.C:
		}
		at := time.Now()
		a, err := Query(conn, ConnTimeout)
		c.queries.Add(1)
		why := ""
		if err != nil {
			why = Failure(err)
		} else if a.Server != server {
			why = fmt.Sprintf("%s answers in place of %s", a.Server, server)
		}
		if why != "" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.failures = append(c.failures, LoadFailure{Probe: p, At: at, Why: why})
			return
		}
	}
}

// Stop closes the connections after the pending replies. It returns the number of queries, and the
// failures in order.
func (c *Connections) Stop() (asked int, failures []LoadFailure) {
	close(c.stop)
	c.all.Wait()
	for _, conn := range c.conns {
		conn.Close()
	}
	slices.SortStableFunc(c.failures, func(a, b LoadFailure) int { return a.At.Compare(b.At) })
	return int(c.queries.Load()), c.failures
}
