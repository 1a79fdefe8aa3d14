package ipvs

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// sweepEvery is how often draining real servers are checked.
const sweepEvery = 5 * time.Second

// drainer is the connection for changes, with the real servers that keep only their existing
// connections. The kernel stores that they drain, since their weight is 0, but not since when.
type drainer struct {
	log       *slog.Logger // optional
	deadline  time.Duration
	now       func() time.Time
	published atomic.Pointer[[]apply.Drain] // readable during a commit

	mu sync.Mutex // held while k is in use
	k  kernel
	of map[drainKey]drain
}

type drainKey struct {
	server ir.Match
	to     netip.AddrPort
}

type drain struct {
	service ir.Name // zero if another process started the drain
	since   time.Time
	conns   uint32
}

// start records a drain. If it is already known, only conns is updated.
func (d *drainer) start(server ir.Match, to netip.AddrPort, service ir.Name, conns uint32) {
	k := drainKey{server, to}
	one, known := d.of[k]
	if !known {
		one = drain{service: service, since: d.now()}
	}
	one.conns = conns
	d.of[k] = one
}

func (d *drainer) forget(server ir.Match, to netip.AddrPort) { delete(d.of, drainKey{server, to}) }

func (d *drainer) forgetServer(server ir.Match) {
	maps.DeleteFunc(d.of, func(k drainKey, _ drain) bool { return k.server == server })
}

// observe records the draining real servers of our virtual servers in states that were read. They
// may have started to drain before this process started. The caller holds the lock.
func (d *drainer) observe(states ir.PerFamily[*state]) {
	defer d.publish()
	for _, s := range ir.Present(states) {
		for key, v := range s.servers {
			if !drainable(key.Protocol) || !s.owned(key) {
				continue
			}
			for to, one := range v.dests {
				if one.weight == 0 && one.conns > 0 {
					d.start(key, to, ir.Name{}, one.conns)
				}
			}
		}
	}
}

// known returns a function that reports whether a real server is draining.
func (d *drainer) known() func(ir.Match, netip.AddrPort) bool {
	all := maps.Clone(d.of)
	return func(server ir.Match, to netip.AddrPort) bool {
		_, known := all[drainKey{server, to}]
		return known
	}
}

// list returns the drains, sorted.
func (d *drainer) list() []apply.Drain {
	all := make([]apply.Drain, 0, len(d.of))
	for k, one := range d.of {
		all = append(all, apply.Drain{Service: one.service, Frontend: k.server, Backend: k.to, Since: one.since, Connections: int(one.conns)})
	}
	slices.SortFunc(all, func(a, b apply.Drain) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), a.Backend.Compare(b.Backend))
	})
	return all
}

// publish makes the drains readable for Counters.
func (d *drainer) publish() {
	list := d.list()
	d.published.Store(&list)
}

// run sweeps until ctx ends.
func (d *drainer) run(ctx context.Context) {
	apply.Every(ctx, sweepEvery, func() {
		if err := d.sweep(ctx); err != nil && ctx.Err() == nil && d.log != nil {
			d.log.Error("draining backends cannot be checked", "err", err)
		}
	})
}

// sweep removes the real servers that have no connections left, or whose drain deadline has passed.
func (d *drainer) sweep(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.publish()
	servers := map[ir.Match]bool{}
	for k := range d.of {
		servers[k.server] = true
	}
	var over []request
	for key := range servers {
		current, err := d.k.dests(ctx, key)
		if err != nil {
			return err
		}
		for k, one := range d.of {
			if k.server != key {
				continue
			}
			switch now, ok := current[k.to]; {
			case !ok || now.weight > 0: // another program removed it or ended its drain
				delete(d.of, k)
			case now.conns == 0 || d.now().Sub(one.since) >= d.deadline:
				over = append(over, request{op: removeDest, family: ir.FamilyOf(key.Addr),
					server: &rules.VirtualServer{Key: key, Port: ir.ServicePort{Service: one.service}}, dest: &rules.RealServer{AddrPort: k.to}})
				d.logDeadline(k, one, now.conns)
			default:
				one.conns = now.conns
				d.of[k] = one
			}
		}
	}
	if len(over) == 0 {
		return nil
	}
	c := commit{drains: d, refused: apply.Refusals{}}
	return c.do(ctx, over)
}

// logDeadline logs connections that end at the deadline.
func (d *drainer) logDeadline(k drainKey, one drain, conns uint32) {
	if d.log == nil || conns == 0 {
		return
	}
	d.log.Warn("the drain deadline of a backend has passed: its connections are closed", "frontend", k.server.String(), "backend", k.to.String(),
		"service", strings.TrimPrefix(one.service.String(), "/"), "since", one.since, "connections", conns)
}
