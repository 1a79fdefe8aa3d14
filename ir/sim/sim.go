package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Step is one decision about a packet, with the deciding object and field.
type Step struct {
	Text   string    `json:"text"`
	Origin ir.Origin `json:"origin,omitzero"`
}

// Trace returns all possible results for a packet under a Program. It defines the
// meaning of the IR.
func Trace(p *ir.Program, pkt Packet) Outcome { return NewEvaluator(p).Outcome(pkt, nil) }

// Explain is Trace with the decisions that led to the outcome, in order.
func Explain(p *ir.Program, pkt Packet) (Outcome, []Step) { return NewEvaluator(p).Explain(pkt) }

// Explain is the method form of the function Explain.
func (e *Evaluator) Explain(pkt Packet) (Outcome, []Step) {
	t := tracer{Evaluator: e, pkt: pkt, explain: true}
	outcome := t.trace()
	return outcome, t.steps
}

// Deciding is the parts of a Program that forward an Accepted packet, nil for
// other packets, and the last decision.
type Deciding struct {
	Frontend *ir.Frontend
	Route    *ir.Route
	Pool     *ir.Pool
	Last     Step
}

// Decide returns the parts that decide about a packet.
func (e *Evaluator) Decide(pkt Packet) Deciding {
	t := tracer{Evaluator: e, pkt: pkt, explain: true}
	t.trace()
	if n := len(t.steps); n > 0 && t.by.Last == (Step{}) {
		t.by.Last = t.steps[n-1]
	}
	return t.by
}

// Pool returns the pool that receives an Accepted packet; nil for other packets.
func (e *Evaluator) Pool(pkt Packet) *ir.Pool { return e.Forwarding(pkt).Pool }

// Forwarding is Decide without the last decision, which is expensive to describe.
func (e *Evaluator) Forwarding(pkt Packet) Deciding {
	t := tracer{Evaluator: e, pkt: pkt}
	t.trace()
	return t.by
}

type tracer struct {
	*Evaluator
	pkt     Packet
	cuts    *Cuts
	explain bool
	steps   []Step
	by      Deciding
	// translated is set if the destination of pkt is a backend.
	translated bool
	refused    []refusedBackend
}

// refusedBackend is a backend whose packets the filter rejects or drops.
type refusedBackend struct {
	backend *ir.Backend
	fate    Fate
}

func (t *tracer) step(o ir.Origin, format string, args ...any) {
	if t.explain {
		t.steps = append(t.steps, Step{fmt.Sprintf(format, args...), o})
	}
}

// trace dispatches the packet. Exact addresses take precedence over node ports
// (PKT-18). Then the rules for unmatched packets to ClusterIPs apply.
func (t *tracer) trace() Outcome {
	pkt, node := t.pkt, &t.program.Node
	if !t.program.Family.Has(pkt.Dst) {
		t.step(ir.Origin{}, "%s is not an %s address", pkt.Dst, t.program.Family)
		return Outcome{}
	}
	local := t.own.Has(pkt.Dst)
	s, f := t.find(ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port})
	owner, port := t.find(ir.Match{Protocol: pkt.Protocol, Port: pkt.Port})
	answering := node.NodePorts.Has(pkt.Dst, local)
	answers := port != nil && answering
	t.cutPorts(pkt.Dst)
	if answering || local {
		t.cutPorts(netip.Addr{})
	}
	if f != nil {
		t.step(f.Origin, "%s is the %s of %s", f.Match, f.Kind, f.Port)
		if !answers {
			return t.frontend(s, f, nil)
		}
		if len(f.Routes) > 0 || !t.caps.Has(ir.NodePortBehindEmpty) {
			return t.frontend(s, f, port)
		}
		if t.guards(f) && !t.admitted(f) {
			return Outcome{Fate: Dropped}
		}
		t.step(f.FallbackOrigin, "no route: mode %s continues with node ports", node.Mode)
	}
	if answers {
		t.step(port.Origin, "%s on the node's address %s is the NodePort of %s", port.Match, pkt.Dst, port.Port)
		return t.frontend(owner, port, f)
	}
	if port != nil {
		t.step(node.NodePorts.Origin, "%d/%s is the NodePort of %s, but node ports do not answer on %s", pkt.Port, pkt.Protocol, port.Port, pkt.Dst)
		if local && t.caps.Has(ir.EmptyNodePortAnyAddr) && !ir.RoutesAll(port.Routes) {
			return t.noRoute(port)
		}
		if pkt.Dst.IsLoopback() && node.NodePorts.RejectsLocalhost(pkt.Protocol) {
			t.step(ir.Origin{Object: "config", Field: "featureGates"}, "node ports over %s at loopback addresses are rejected (KEP-6032)", pkt.Protocol)
			return Outcome{Fate: Rejected}
		}
	}
	return t.unclaimed(local)
}

// cutPorts records the ports at which an address has frontends of the packet's
// protocol.
func (t *tracer) cutPorts(addr netip.Addr) {
	if t.cuts != nil {
		t.cuts.PortsOf(t.byAddr[addrProtocol{addr, t.pkt.Protocol}])
	}
}

func (t *tracer) find(m ir.Match) (*ir.Service, *ir.Frontend) {
	of := t.at[m]
	return of.service, of.frontend
}

// frontend returns the outcome of a packet at a frontend. other is a second
// matching frontend, if the packet matches both a node port and an address of the
// node; nil if there is none.
func (t *tracer) frontend(s *ir.Service, f, other *ir.Frontend) Outcome {
	if t.guards(f) && !t.admitted(f) {
		return Outcome{Fate: Dropped}
	}
	for i := range f.Routes {
		if r := &f.Routes[i]; t.matches(r.From) {
			return t.accept(f, &s.Pools[r.Pool], r)
		}
	}
	return t.noRoute(t.refusing(f, other))
}

// refusing returns the frontend whose verdict applies, if two matching frontends
// have no route (PKT-18).
func (t *tracer) refusing(f, other *ir.Frontend) *ir.Frontend {
	if other == nil || ir.RoutesAll(other.Routes) {
		return f
	}
	port, vip := f, other
	if !port.Match.IsNodePort() {
		port, vip = other, f
	}
	first, why := vip, "address"
	if t.caps.Has(ir.NodePortRefusesFirst) && !t.pkt.FromNode() {
		first, why = port, "node port"
	}
	if first != f {
		t.step(first.Origin, "no route, and none at %s: in mode %s the %s decides how it is refused", first.Match, t.program.Node.Mode, why)
	}
	return first
}

// guards reports whether a frontend's source ranges apply: always if it has a
// route, otherwise depending on the mode, which may drop clients outside them
// first (NFT-5).
func (t *tracer) guards(f *ir.Frontend) bool {
	switch {
	case len(f.SourceRanges) == 0:
		return false
	case len(f.Routes) > 0:
		return true
	case t.pkt.FromNode():
		return t.caps.Has(ir.GuardEmptyFromNode)
	}
	return t.caps.Has(ir.GuardEmpty)
}

// admitted applies loadBalancerSourceRanges: clients outside are dropped
// (PKT-10), except the load balancer's own addresses if the node is in a range
// (PKT-11).
func (t *tracer) admitted(f *ir.Frontend) bool {
	src := t.pkt.class()
	if t.caps.Has(ir.CarriesVIPs) && t.pkt.FromNode() && t.toItself() {
		src = t.program.Node.IP
		t.step(ir.Origin{Object: "config", Field: "mode", Reason: "the node has the address, so it is the source"},
			"source %s is treated as the node's address", t.pkt.Src)
	}
	if _, ok := t.rangesOf(f).Find(src, t.cuts); ok {
		if t.explain {
			r := f.SourceRanges[slices.IndexFunc(f.SourceRanges, func(r ir.SourceRange) bool { return r.Prefix.Contains(src) })]
			t.step(r.Origin, "source %s is admitted by %s", src, r.Prefix)
		}
		return true
	}
	if t.explain {
		ranges := make([]string, len(f.SourceRanges))
		for i, r := range f.SourceRanges {
			ranges[i] = r.Prefix.String()
		}
		o := f.SourceRanges[0].Origin
		t.step(ir.Origin{Object: o.Object, Field: "spec.loadBalancerSourceRanges"},
			"source %s is outside the ranges %s: dropped", src, strings.Join(ranges, ", "))
	}
	return false
}

// matches reports whether the packet's source is in a scope.
func (t *tracer) matches(s ir.Scope) bool {
	node := &t.program.Node
	switch s {
	case ir.Pods:
		t.cutDetector(&node.Detector)
		local := node.Detector.IsPod(t.pkt.class(), t.pkt.In)
		if local {
			t.step(node.Detector.Origin, "source %s is treated as a pod", t.sourceText())
		} else {
			t.step(node.Detector.Origin, "source %s is not treated as a pod", t.sourceText())
		}
		return local
	case ir.ThisNode:
		host := t.own.HasSource(t.pkt.Src, t.cuts)
		if host {
			t.step(ir.Origin{Object: "Node " + node.Name}, "source %s is the node itself", t.pkt.Src)
		}
		return host
	}
	return true
}

// cutDetector records the constant that decides whether a packet is from a pod.
func (t *tracer) cutDetector(d *ir.Detector) {
	switch d.Mode {
	case ir.DetectCIDR:
		t.cuts.Source(d.Prefix)
	case ir.DetectInterface:
		t.cuts.Interface(Interface{Name: d.Interface})
	case ir.DetectPrefix:
		t.cuts.Interface(Interface{Name: d.Interface, Prefix: true})
	}
}

// toItself reports whether the packet's source is its destination.
func (t *tracer) toItself() bool {
	t.cuts.SourceAddr(t.pkt.Dst)
	return t.pkt.Src == t.pkt.Dst
}

func (t *tracer) sourceText() string {
	if t.pkt.In == "" {
		return t.pkt.Src.String()
	}
	return t.pkt.Src.String() + " on " + t.pkt.In
}

func (t *tracer) accept(f *ir.Frontend, p *ir.Pool, r *ir.Route) Outcome {
	masquerade := r.SNAT || t.ownVIP(f)
	t.by.Frontend, t.by.Route, t.by.Pool = f, r, p
	if t.explain {
		switch {
		case r.SNAT:
			t.step(r.Origin, "route from %s: masqueraded", r.From)
		case masquerade:
			t.step(ir.Origin{Object: "config", Field: "mode", Reason: "the node has the address, so it is the source"},
				"route from %s: masqueraded, since the source is the ClusterIP itself", r.From)
		default:
			t.step(r.Origin, "route from %s: the source address is kept", r.From)
		}
		switch {
		case len(p.Backends) == 1:
			t.step(p.Origin, "the only backend of %s %s", p.Port, p.Policy)
		case t.stable(f):
			t.step(p.Origin, "one of %d backends of %s %s, by the client's address and port", len(p.Backends), p.Port, p.Policy)
		default:
			t.step(p.Origin, "one of %d backends of %s %s, at random", len(p.Backends), p.Port, p.Policy)
		}
		if p.Affinity != nil {
			t.step(p.Affinity.Origin, "a client keeps its backend until %s pass without a new connection", p.Affinity.Timeout)
		}
	}
	out := Outcome{Fate: Accepted, Destinations: make([]Destination, 0, len(p.Backends))}
	if p.Affinity != nil {
		out.Affinity, out.Timeout = true, p.Affinity.Timeout
	}
	chosen := t.chosen(f, p, &out)
	for i := range p.Backends {
		b := &p.Backends[i]
		if !chosen(i) {
			continue
		}
		hairpin := false
		if b.Local || t.caps.Has(ir.HairpinRemote) || t.locals[t.localKey(b, f.Match.Protocol)] {
			hairpin = b.AddrPort.Addr() == t.pkt.Src
			t.cutHairpin(b, p.Affinity != nil && !masquerade)
		}
		here := t.deliveredHere(b)
		switch addr := b.AddrPort.Addr(); {
		case t.carried[addr] && !t.own.Has(addr):
			t.step(b.Origin, "%s: the node itself has this Service address: the packet ends there", b.AddrPort)
		case here && masquerade:
			t.step(b.Origin, "%s: on the node itself, where nothing is masqueraded", b.AddrPort)
		case hairpin && !masquerade:
			t.step(b.Origin, "%s: the source itself, so masqueraded (hairpin)", b.AddrPort)
		default:
			t.step(b.Origin, "%s", b.AddrPort)
		}
		// With affinity, chains for each backend mark hairpins before the
		// translation.
		marked := masquerade || hairpin && p.Affinity != nil
		before := len(t.steps)
		if fate := t.behind(b.AddrPort, marked); fate != Accepted {
			t.refused = append(t.refused, refusedBackend{b, fate})
			t.by.Last = because(b, t.steps[before:])
			continue
		}
		out.Destinations = append(out.Destinations, Destination{b.AddrPort, (masquerade || hairpin) && !here})
	}
	out.normalize()
	if len(t.refused) > 0 {
		t.by.Frontend, t.by.Route, t.by.Pool = nil, nil, nil
		return t.withRefused(out)
	}
	if len(out.Destinations) < 2 {
		out.Choice = ""
	}
	return out
}

// cutHairpin records that the client may be a backend. marks reports whether only
// its hairpin connection is marked for masquerade before the translation.
func (t *tracer) cutHairpin(b *ir.Backend, marks bool) {
	switch addr := b.AddrPort.Addr(); {
	case t.cuts == nil:
	case addr == t.pkt.Src, t.deliveredHere(b), marks && t.behind(b.AddrPort, true) != t.behind(b.AddrPort, false):
		t.cuts.SourceAddr(addr)
	default:
		t.cuts.Hairpin(addr)
	}
}

// stable reports whether the client's address and port select the backend.
func (t *tracer) stable(f *ir.Frontend) bool {
	return f.Maglev != nil && t.caps.Has(ir.StableBackends)
}

// chosen returns a function that reports whether the frontend forwards the packet
// to a backend of the pool. It sets out.Choice.
func (t *tracer) chosen(f *ir.Frontend, p *ir.Pool, out *Outcome) func(backend int) bool {
	if !t.stable(f) {
		return func(int) bool { return true }
	}
	s := t.slotsOf(f, p)
	if t.pkt.SrcPort == 0 {
		out.Choice = s.choice
		return func(b int) bool { return slices.Contains(s.table, b) }
	}
	slot := f.Maglev.Slot(t.pkt.Src, t.pkt.SrcPort)
	t.step(f.Maglev.Origin, "slot %d of %d, by address and port %s", slot, f.Maglev.Slots, netip.AddrPortFrom(t.pkt.Src, t.pkt.SrcPort))
	return func(b int) bool { return s.table[slot] == b }
}

// ownVIP reports whether the node connects to an address with that address as
// source, in a mode where only this decides about masquerading.
func (t *tracer) ownVIP(f *ir.Frontend) bool {
	return t.program.Node.Detector.Mode == ir.DetectNone && t.caps.Has(ir.MasqueradesOwnVIP) && f.Kind == ir.ClusterIP && t.pkt.FromNode() && t.toItself()
}

// deliveredHere reports whether a packet from elsewhere is delivered to the node
// itself: the backend has an address of the node (host network), or one of a
// Service that the node carries. The packet then passes no postrouting hook,
// where masquerading happens.
func (t *tracer) deliveredHere(b *ir.Backend) bool {
	addr := b.AddrPort.Addr()
	return t.caps.Has(ir.KeepsClient) && !t.pkt.FromNode() && (t.own.Has(addr) || t.carried[addr])
}
