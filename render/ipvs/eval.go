package ipvs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// Eval walks the first packet of a connection through the hooks of the kernel:
// the iptables rules, and the virtual servers where the kernel looks for them:
// on the way in for what is delivered to the node (the addresses of kube-ipvs0
// are), and on the way out for what the node sends. local reports the node's own
// addresses, without those of kube-ipvs0.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	return NewEvaluator(r, sim.OwnOf(func(a netip.Addr) bool { return a.IsLoopback() || local(a) })).Outcome(pkt, nil)
}

// Evaluator answers for many packets what a Ruleset does to them, which does not
// change. It may be asked by several goroutines.
type Evaluator struct {
	*Ruleset
	plain *sim.Own // the node's addresses, without those of kube-ipvs0
	own   *sim.Own // with them
	rules *iptables.Walker
	sets  map[string]Set
	ports map[ElementKey][]uint16 // of elements, by what else they have of set, address and protocol
	// alike are the elements of sets that hold ports alone.
	alike map[Set]*sim.PortSet
	// servers are the ports of virtual servers, by address and protocol.
	servers map[ir.Match][]uint16
	strays  []netip.Addr // of ClusterIPs that the node does not have, though they are in the set
}

// NewEvaluator indexes a Ruleset, which costs what it holds. own are the node's
// addresses without those of kube-ipvs0.
func NewEvaluator(r *Ruleset, own *sim.Own) *Evaluator {
	e := &Evaluator{Ruleset: r, plain: own, sets: map[string]Set{}, ports: map[ElementKey][]uint16{}, alike: map[Set]*sim.PortSet{}, servers: map[ir.Match][]uint16{}}
	e.own = own.With(r.carries)
	e.rules = r.Rules.Walker(e.own, e.inSet)
	for _, x := range r.Elements {
		if x.Number != 0 {
			list := portless(x.ElementKey)
			e.ports[list] = append(e.ports[list], x.Number)
		}
		if x.Set == ClusterIP && !e.own.Has(x.Addr) {
			e.strays = append(e.strays, x.Addr)
		}
	}
	for _, s := range Sets() {
		e.sets[s.Name(r.Family)] = s
		if s.Type() == BitmapPort {
			e.alike[s] = sim.NewPortSet(e.ports[ElementKey{Set: s}])
		}
	}
	for _, v := range r.VirtualServers {
		list := ir.Match{Addr: v.Key.Addr, Protocol: v.Key.Protocol}
		e.servers[list] = append(e.servers[list], v.Key.Port)
	}
	return e
}

// portless returns what elements that differ in their ports have in common.
func portless(k ElementKey) ElementKey {
	return ElementKey{Set: k.Set, Addr: k.Addr, Protocol: k.Protocol}
}

// carries reports whether kube-ipvs0 has an address.
func (r *Ruleset) carries(a netip.Addr) bool { return r.has(ElementKey{Set: IPVSIPs, Addr: a}) }

// Carries reports whether the node has an address of a Service.
func (e *Evaluator) Carries(a netip.Addr) bool { return e.carries(a) }

// Destinations calls yield for the prefixes that destinations of packets are
// compared with, some of them several times.
func (e *Evaluator) Destinations(yield func(netip.Prefix) bool) {
	single := func(a netip.Addr) bool { return !a.IsValid() || yield(netip.PrefixFrom(a, a.BitLen())) }
	for p := range e.rules.Destinations {
		if !yield(p) {
			return
		}
	}
	for i := range e.VirtualServers {
		if !single(e.VirtualServers[i].Key.Addr) {
			return
		}
	}
	for i := range e.Elements {
		// What is looked up after balancing alone is no packet's destination before.
		if e.Elements[i].Set != LoopBack && !single(e.Elements[i].Addr) {
			return
		}
	}
}

// Outcome is Eval; it tells cuts what the packet was compared with.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	p := iptables.Packet{Packet: pkt, Cuts: cuts}
	if pkt.FromNode() {
		return e.output(p)
	}
	p = e.nat("PREROUTING", p)
	if !e.own.Has(pkt.Dst) {
		return e.filter("FORWARD", p)
	}
	if out := e.filter("INPUT", p); out.Fate != sim.NotOurs {
		return out
	}
	return e.balance(p, e.server(p))
}

// nat returns what a built-in chain of the nat table makes of the packet: one
// packet, as the rules leave nothing to chance.
func (e *Evaluator) nat(chain string, p iptables.Packet) iptables.Packet {
	return e.rules.Nat(chain, p)[0]
}

// filter returns what a built-in chain of the filter table says of the packet.
func (e *Evaluator) filter(chain string, p iptables.Packet) sim.Outcome {
	switch e.rules.Filter(chain, p)[0].Fate {
	case iptables.Drop:
		return sim.Outcome{Fate: sim.Dropped}
	case iptables.Reject:
		return sim.Outcome{Fate: sim.Rejected}
	}
	return sim.Outcome{}
}

// output walks what the node itself sends. The balancer stands between the
// nat and the filter table; what it does not take goes to the node itself, or away.
func (e *Evaluator) output(p iptables.Packet) sim.Outcome {
	p = e.nat("OUTPUT", p)
	v := e.server(p)
	if v == nil {
		if e.own.Has(p.Dst) {
			return e.filter("INPUT", p)
		}
		return sim.Outcome{}
	}
	if len(v.RealServers) > 0 {
		p.Balanced = v.Key
		if out := e.filter("OUTPUT", p); out.Fate != sim.NotOurs {
			return out
		}
	}
	return e.balance(p, v)
}

// balance returns the real servers, each with what the postrouting hook makes of it.
func (e *Evaluator) balance(p iptables.Packet, v *VirtualServer) sim.Outcome {
	if v == nil {
		return sim.Outcome{}
	}
	if len(v.RealServers) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	ds := make([]sim.Destination, len(v.RealServers))
	for i, rs := range v.RealServers {
		after := p
		after.Dst, after.Port, after.Translated = rs.AddrPort.Addr(), rs.AddrPort.Port(), true
		if after.FromNode() || !e.own.Has(after.Dst) { // else delivered, and sent by no interface
			after = e.nat("POSTROUTING", after)
		}
		ds[i] = sim.Destination{AddrPort: rs.AddrPort, SNAT: after.SNAT}
	}
	return sim.NewOutcome(v.Flags&Persistent != 0, ds)
}

func (e *Evaluator) server(p iptables.Packet) *VirtualServer {
	p.Cuts.PortsOf(e.servers[ir.Match{Addr: p.Dst, Protocol: p.Protocol}])
	return e.virtualServer(ir.Match{Addr: p.Dst, Protocol: p.Protocol, Port: p.Port})
}

func (r *Ruleset) has(key ElementKey) bool {
	_, ok := slices.BinarySearchFunc(r.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	return ok
}

// inSet looks a packet up in an ipset.
func (e *Evaluator) inSet(p *iptables.Packet, in iptables.InSet) bool {
	set, known := e.sets[in.Set]
	if !known {
		p.Cuts.Doubt("set " + in.Set)
		return false
	}
	key := ElementKey{Set: set, Addr: p.Dst, Protocol: p.Protocol, Number: p.Port}
	if strings.HasPrefix(in.Fields, "src") {
		key.Addr = p.Src
		e.cutSource(p)
	}
	switch set.Type() {
	case HashIP:
		key.Protocol, key.Number = 0, 0
	case BitmapPort:
		if p.Translated {
			return e.alike[set].Has(p.Port, nil)
		}
		return e.alike[set].Has(p.Port, p.Cuts)
	}
	if key.Number != 0 && !p.Translated {
		p.Cuts.PortsOf(e.ports[portless(key)])
	}
	switch set.Type() {
	case HashIPPortIP, HashIPPortNet:
		return e.hasSource(key, p)
	}
	return e.has(key)
}

// cutSource tells that the packet's source was compared with addresses of Services. The
// node has them, so that they are no client's, and its own where it sends to them.
func (e *Evaluator) cutSource(p *iptables.Packet) {
	if p.Cuts == nil {
		return
	}
	p.Cuts.SourceAddr(p.Dst)
	e.plain.HasSource(p.Src, p.Cuts)
	for _, a := range e.strays {
		p.Cuts.SourceAddr(a)
	}
}

// hasSource looks for an element whose second address or network holds the source.
func (e *Evaluator) hasSource(key ElementKey, p *iptables.Packet) (found bool) {
	i, _ := slices.BinarySearchFunc(e.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	for ; i < len(e.Elements); i++ {
		x := e.Elements[i].ElementKey
		if x.Set != key.Set || x.Addr != key.Addr || x.Number != key.Number || x.Protocol != key.Protocol {
			break
		}
		p.Cuts.Source(x.Source)
		found = found || x.Source.Contains(p.Src)
	}
	return found
}
