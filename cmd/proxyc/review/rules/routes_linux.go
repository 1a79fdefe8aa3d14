package rules

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// withInterface returns the packet with the interface of the route to its source.
func withInterface(pkt sim.Packet) sim.Packet {
	if pkt.FromNode() {
		return pkt
	}
	if by, _, err := node.Route(node.RouteQuery{Dst: pkt.Src}); err == nil && by != "" {
		pkt.In = by
	}
	return pkt
}

// routed applies routes to the packet's paths: a packet is dropped if the kernel has no route for
// it, or would not forward its replies, or rules drop them. A packet that the node sends also needs a route
// to its original destination. sent is that of followTables, to are those of the Program. left lists what was not checked.
func (c *Path) routed(pkt sim.Packet, sent bool, own *sim.Own, to map[netip.Addr]node.Destination, bridges map[string]*node.Bridge) (left []string, err error) {
	if len(c.Outcome.Destinations) == 0 {
		return nil, nil
	}
	if !pkt.FromNode() && !pkt.Src.IsGlobalUnicast() {
		return []string{fmt.Sprintf("routes and forwarding: no machine has the address %s", pkt.Src)}, nil
	}
	var failed error
	lost := func(met ...sim.Met) Path {
		return Path{Path: sim.Path{Outcome: sim.Shared([]sim.Chance{{Fate: sim.Dropped, Weight: 1}}), Met: met}}
	}
	ask := func(s node.RouteQuery, d sim.Destination) (goes Path, out string) {
		goes = PathOf(sim.Path{Outcome: sim.NewOutcome(false, []sim.Destination{d})})
		out, refused, err := node.Route(s)
		failed = cmp.Or(failed, err)
		if out == "" && refused == "" || err != nil {
			return goes, out
		}
		where := "to " + s.Dst.String()
		if s.In != "" {
			where += fmt.Sprintf(" from %s by %s", s.Src, s.In)
			refused = cmp.Or(node.ForwardingDisabled(ir.FamilyOf(s.Dst), s.In), refused)
		}
		if b := bridges[out]; b != nil && refused == "" && s.Dst == d.AddrPort.Addr() {
			refused = b.Stops(pkt.Src, s.Dst, d.SNAT)
		}
		if mark := s.Mark &^ own.Mark; mark != 0 {
			where += fmt.Sprintf(" with mark %#x", mark)
		}
		if replies := node.ForwardingDisabled(ir.FamilyOf(s.Dst), out); !pkt.FromNode() && out != "" && refused == "" && replies != "" {
			refused = replies + ", so replies are lost"
		}
		if out != "" && refused == "" && !s.Rerouted {
			unfollowed, err := node.Unfollowed(s, pkt.Protocol, d.AddrPort.Port(), out)
			left, failed = append(left, unfollowed...), cmp.Or(failed, err)
		}
		if refused == "" {
			return goes, out
		}
		return lost(sim.Met{Table: tableRoutes, Chain: where, Text: refused, Drops: true, Foreign: true, NoRule: true}), out
	}
	// met returns what becomes of a connection if foreign rules stop some of its packets.
	met := func(by Path, packets string) Path {
		by.Met = slices.DeleteFunc(by.Met, func(m sim.Met) bool { return !m.Foreign || m.Forwards })
		for i := range by.Met {
			by.Met[i].Text += ", for " + packets
		}
		stopped := lost(by.Met...)
		stopped.Unknown = by.Unknown
		return stopped
	}
	if pkt.FromNode() {
		c.each(func(d sim.Destination) Path {
			goes, _ := ask(node.RouteQuery{Dst: pkt.Dst, Rerouted: true}, d)
			return goes
		})
	}
	c.each(func(d sim.Destination) Path {
		mark := c.Marks[d]
		if c.later == nil && d.SNAT { // in mode ipvs, foreign marks are not followed
			mark = own.Mark
		}
		s := node.RouteQuery{Dst: d.AddrPort.Addr(), Mark: mark, Local: to[d.AddrPort.Addr()].Local}
		if !sent && !pkt.FromNode() {
			s.Src, s.In = pkt.Src, pkt.In
		}
		goes, out := ask(s, d)
		if s.Mark &^= own.Mark; mark != s.Mark && len(goes.Outcome.Destinations) > 0 { // our rules do not mark later packets
			goes, _ = ask(s, d)
		}
		if c.later == nil || failed != nil || len(goes.Outcome.Destinations) == 0 {
			return goes
		}
		answer := sim.Packet{Src: d.AddrPort.Addr(), SrcPort: d.AddrPort.Port(), Dst: pkt.Src, Port: cmp.Or(pkt.SrcPort, 40000), Protocol: pkt.Protocol, In: out, Later: true, Reply: true}
		later := func(next sim.Packet, flags ...int) (way Path) {
			for _, next.Flags = range flags {
				if way = c.later(next); len(way.Outcome.Destinations) == 0 {
					break
				}
			}
			return way
		}
		back := later(answer, sim.ACK, sim.ACK|sim.PSH, sim.ACK|sim.SYN)
		if len(back.Outcome.Destinations) > 0 {
			s = node.RouteQuery{Src: answer.Src, Dst: answer.Dst, In: out, Mark: back.Marks[back.Outcome.Destinations[0]]}
			if answer.FromNode() {
				s.Src = netip.Addr{}
			}
			returns := goes
			if b := bridges[out]; b == nil || d.SNAT || !b.Direct(answer.Src, answer.Dst) {
				returns, _ = ask(s, d)
			}
			back.join(returns)
			if back.Outcome = returns.Outcome; len(back.Outcome.Destinations) > 0 {
				next := pkt
				next.Later = true
				on := later(next, sim.ACK, sim.ACK|sim.PSH)
				if !slices.ContainsFunc(on.Outcome.Destinations, func(to sim.Destination) bool { return to.AddrPort == d.AddrPort }) {
					return met(on, "later packets")
				}
				goes.Unknown = append(back.Unknown, on.Unknown...)
				return goes
			}
		}
		return met(back, "replies")
	})
	if errors.Is(failed, node.ErrNoInterface) {
		return []string{"routes and forwarding: " + failed.Error()}, nil
	}
	slices.Sort(left)
	return slices.Compact(left), failed
}
