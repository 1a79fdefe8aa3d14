package reviewtest

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Other returns a random variation of a world.
func (r *Random) Other(w *World) *World {
	c := *w
	c.Services, c.Slices = slices.Clone(w.Services), slices.Clone(w.Slices)
	switch i := r.IntN(len(c.Services)); r.IntN(6) {
	case 0:
		c.Config = r.config(w.mode)
	case 1:
		c.mode = Pick(r, ir.Modes())
		c.Config = r.config(c.mode)
	case 2:
		c.Facts = r.facts()
	case 3:
		c.Services = slices.Delete(c.Services, i, i+1)
	case 4:
		c.Services[i] = r.service(i)
	}
	for i, s := range c.Slices {
		if r.Chance(3) {
			c.Slices[i] = r.slice(serviceOf(w, s), 0)
			c.Slices[i].Name, c.Slices[i].AddressType = s.Name, s.AddressType
			for j := range c.Slices[i].Endpoints {
				c.Slices[i].Endpoints[j] = r.endpoint(s.AddressType, false)
			}
		}
	}
	return &c
}

func serviceOf(w *World, slice *snapshot.EndpointSlice) *snapshot.Service {
	i := slices.IndexFunc(w.Services, func(s *snapshot.Service) bool { return s.Name == slice.Service })
	return w.Services[i]
}

// PacketsOf returns packets that can exist on the node and that are sent to changed destinations.
func (r *Random) PacketsOf(a, b *ir.Program, flows []*flow.Flow) (out []sim.Packet) {
	node := flow.NodeOf(a, b)
	exists := func(pkt sim.Packet) bool {
		dst := pkt.Dst
		if pkt.FromNode() {
			if dst.IsLoopback() || !slices.Contains(node.Addrs, dst) && node.Carries != nil && node.Carries(dst) {
				return pkt.Src == dst
			}
			return slices.Contains(node.Addrs, pkt.Src)
		}
		return !dst.IsLoopback() && !slices.Contains(node.Addrs, pkt.Src) && !pkt.Src.IsLoopback() && (node.Carries == nil || !node.Carries(pkt.Src))
	}
	add := func(pkt sim.Packet) {
		if exists(pkt) {
			out = append(out, pkt)
		}
	}
	for range 30 {
		add(r.Packet(a))
		add(r.Packet(b))
	}
	for _, f := range flows { // other clients of the same destination
		for range 3 {
			pkt := r.Packet(Pick(r, []*ir.Program{a, b}))
			pkt.Dst, pkt.Protocol, pkt.Port = f.Example.Packet.Dst, f.Example.Packet.Protocol, f.Example.Packet.Port
			if pkt.FromNode() && len(node.Addrs) > 0 {
				pkt.Src = Pick(r, node.Addrs)
			}
			add(pkt)
		}
	}
	return out
}

// Scope determines by its printed form which packets a flow contains.
type Scope struct {
	Where flow.Network
	A, B  *ir.Program
}

// Holds reports whether a flow contains a packet.
func (s *Scope) Holds(f *flow.Flow, pkt sim.Packet) bool {
	return slices.ContainsFunc(f.To, func(d flow.Destination) bool { return s.isTo(&d, pkt) }) &&
		slices.ContainsFunc(f.From, func(c flow.Clients) bool { return s.isFrom(&c, pkt) })
}

func (s *Scope) isTo(d *flow.Destination, pkt sim.Packet) bool {
	if d.Match.Protocol != pkt.Protocol {
		return false
	}
	if len(d.Ports) == 0 {
		if d.Match.Port != pkt.Port {
			return false
		}
		if !d.Match.IsNodePort() {
			return d.Match.Addr == pkt.Dst
		}
	} else if !slices.ContainsFunc(d.Ports, func(p sim.Ports) bool { return p.First <= pkt.Port && pkt.Port <= p.Last }) {
		return false
	}
	if slices.ContainsFunc(d.Addrs, func(r prove.Addrs) bool { return r.First.Compare(pkt.Dst) <= 0 && pkt.Dst.Compare(r.Last) <= 0 }) {
		return true
	}
	if !d.Rest.IsValid() || !d.Rest.Contains(pkt.Dst) {
		return false
	}
	named := false
	for _, p := range [...]*ir.Program{s.A, s.B} { // Rest excludes destinations that a rule names
		sim.NewEvaluator(p).Destinations(func(other netip.Prefix) {
			named = named || other.Contains(pkt.Dst) && other.Bits() > d.Rest.Bits()
		})
	}
	return !named
}

func (s *Scope) isFrom(c *flow.Clients, pkt sim.Packet) bool {
	in := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(pkt.Src) })
	}
	some := c.All || in(c.Prefixes)
	if c.Kind == flow.ThisNode || pkt.FromNode() {
		return c.Kind == flow.ThisNode && pkt.FromNode() && some
	}
	by := func(pattern string) bool {
		start, prefix := strings.CutSuffix(pattern, "*")
		return pkt.In == pattern || prefix && strings.HasPrefix(pkt.In, start)
	}
	if c.Interface != "" && !by(c.Interface) || slices.ContainsFunc(c.NotBy, by) {
		return false
	}
	pods := s.Where.Pods
	byInterface := false // the interface identifies pods
	for _, p := range [...]*ir.Program{s.A, s.B} {
		switch d := &p.Node.Detector; d.Mode {
		case ir.DetectCIDR:
			pods = append(slices.Clone(pods), d.Prefix)
		case ir.DetectInterface:
			byInterface = byInterface || c.Interface == d.Interface || slices.Contains(c.NotBy, d.Interface)
		case ir.DetectPrefix:
			byInterface = byInterface || c.Interface == d.Interface+"*" || slices.Contains(c.NotBy, d.Interface+"*")
		}
	}
	pods = append(slices.Clone(pods), s.Where.Here...)
	switch c.Kind {
	case flow.Outside:
		return some && !in(pods)
	case flow.PodsHere:
		return some && (byInterface || in(s.Where.Here))
	case flow.PodsElsewhere:
		return some && in(pods) && (byInterface || !in(s.Where.Here))
	}
	return some && in(pods)
}
