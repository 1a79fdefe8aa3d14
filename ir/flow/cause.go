package flow

import (
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// explain sets the cause on each side.
func (d *describer) explain(f *Flow) {
	var by [2]sim.Deciding
	for i, s := range d.sides {
		if by[i] = s.Forwarding(f.Example.Packet); by[i].Pool == nil { // the last decision is the cause
			by[i] = s.Decide(f.Example.Packet)
		}
	}
	for i := range d.sides {
		f.Cause[i] = f.Change.cause(by[i], by[1-i])
	}
	const ranges = "spec.loadBalancerSourceRanges"
	for i := range d.sides {
		if other := &f.Cause[1-i]; strings.HasPrefix(other.Field, ranges) && by[i].Frontend != nil {
			f.Cause[i] = Cause{Origin: ir.Origin{Object: other.Object, Field: ranges, Reason: "not set"}}
			if len(by[i].Frontend.SourceRanges) > 0 {
				f.Cause[i].Reason = "admits them"
			}
		}
	}
	if was, is := d.sides[0].Node.Mode, d.sides[1].Node.Mode; f.Cause[0] == f.Cause[1] && was != is {
		for i, mode := range [...]ir.Mode{was, is} {
			f.Cause[i] = Cause{Origin: ir.Origin{Object: "config", Field: "mode", Reason: string(mode)}}
		}
	}
	f.Added, f.Removed = backends(by[1].Pool, f.Change.Added), backends(by[0].Pool, f.Change.Removed)
}

// cause returns the cause on one side.
func (c *Change) cause(it, other sim.Deciding) Cause {
	if it.Pool == nil && it.Last.Origin == (ir.Origin{}) {
		return Cause{Text: it.Last.Text}
	}
	return Cause{Origin: c.origin(it, other)}
}

func (c *Change) origin(it, other sim.Deciding) ir.Origin {
	switch {
	case it.Pool == nil:
		return it.Last.Origin
	case other.Frontend != nil && it.Frontend.Policy != other.Frontend.Policy, other.Frontend == nil && strings.HasSuffix(other.Last.Origin.Field, "TrafficPolicy"):
		field := "spec.internalTrafficPolicy"
		if it.Frontend.Kind.External() {
			field = "spec.externalTrafficPolicy"
		}
		return ir.Origin{Object: "Service " + it.Frontend.Port.Service.String(), Field: field,
			Reason: it.Frontend.Policy.String() + ": " + it.Pool.Origin.Reason}
	case len(c.Added)+len(c.Removed) == 0 && c.Before == c.After && c.Kept[0] != c.Kept[1]:
		return it.Route.Origin
	case len(c.Added)+len(c.Removed) == 0 && c.Before == c.After && c.Affinity[0] != c.Affinity[1]:
		if it.Pool.Affinity == nil {
			return ir.Origin{Object: "Service " + it.Frontend.Port.Service.String(), Field: "spec.sessionAffinity", Reason: "None"}
		}
		return it.Pool.Affinity.Origin
	}
	return it.Pool.Origin
}

// backends returns the backends of a pool with the given addresses.
func backends(p *ir.Pool, some []netip.AddrPort) (out []Backend) {
	if p == nil || len(some) == 0 {
		return nil
	}
	origins := make(map[netip.AddrPort]ir.Origin, len(p.Backends))
	for i := range p.Backends {
		if b := &p.Backends[i]; origins[b.AddrPort] == (ir.Origin{}) { // the first of several
			origins[b.AddrPort] = b.Origin
		}
	}
	for _, addr := range some {
		if o, has := origins[addr]; has {
			out = append(out, Backend{addr, o})
		}
	}
	return out
}
