package rules

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// withInterface returns the packet with the interface of the route to its source.
func withInterface(pkt sim.Packet) sim.Packet {
	if pkt.FromNode() {
		return pkt
	}
	if by, refused, err := node.Route(node.RouteQuery{Dst: pkt.Src}); err == nil && refused == "" && by != "" {
		pkt.In = by
	}
	return pkt
}

// routed applies routes to the packet's paths: a packet is dropped if the kernel has no route for
// it, or would not forward its replies. A packet that the node sends also needs a route to its
// original destination. sent is that of followTables. left lists what was not checked.
func (c *Path) routed(pkt sim.Packet, sent bool, own *sim.Own) (left []string, err error) {
	if len(c.Outcome.Destinations) == 0 {
		return nil, nil
	}
	if !pkt.FromNode() && !pkt.Src.IsGlobalUnicast() {
		return []string{fmt.Sprintf("routes and forwarding: no machine has the address %s", pkt.Src)}, nil
	}
	var failed error
	ask := func(s node.RouteQuery, d sim.Destination) Path {
		goes := PathOf(sim.Path{Outcome: sim.NewOutcome(false, []sim.Destination{d})})
		out, refused, err := node.Route(s)
		failed = cmp.Or(failed, err)
		if out == "" && refused == "" || err != nil {
			return goes
		}
		where := "to " + s.Dst.String()
		if s.In != "" {
			where += fmt.Sprintf(" from %s by %s", s.Src, s.In)
			refused = cmp.Or(node.ForwardingDisabled(ir.FamilyOf(s.Dst), s.In), refused)
		}
		if replies := node.ForwardingDisabled(ir.FamilyOf(s.Dst), out); !pkt.FromNode() && out != "" && refused == "" && replies != "" {
			refused = replies + ", so replies are lost"
		}
		if refused == "" {
			return goes
		}
		return Path{Path: sim.Path{Outcome: sim.Shared([]sim.Chance{{Fate: sim.Dropped, Weight: 1}}),
			Met: []sim.Met{{Table: tableRoutes, Chain: where, Text: refused, Drops: true, Foreign: true, NoRule: true}}}}
	}
	if pkt.FromNode() {
		c.each(func(d sim.Destination) Path { return ask(node.RouteQuery{Dst: pkt.Dst}, d) })
	}
	c.each(func(d sim.Destination) Path {
		s := node.RouteQuery{Src: pkt.Src, Dst: d.AddrPort.Addr(), In: pkt.In}
		if sent || pkt.FromNode() {
			s = node.RouteQuery{Dst: d.AddrPort.Addr()}
		}
		if d.SNAT {
			s.Mark = own.Mark
		}
		return ask(s, d)
	})
	if errors.Is(failed, node.ErrNoInterface) {
		return []string{"routes and forwarding: " + failed.Error()}, nil
	}
	return nil, failed
}
