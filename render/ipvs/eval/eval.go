package eval

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/ipvs"
)

// Evaluator computes the outcomes of packets under an immutable Ruleset. It is
// safe for concurrent use.
type Evaluator struct {
	*ipvs.Ruleset
	plain *sim.Own // the node's addresses, without those of kube-ipvs0
	own   *sim.Own // including those of kube-ipvs0
	rules *ipteval.Walker
	sets  map[string]ipvs.Set
	ports map[ipvs.ElementKey][]uint16 // ports of elements, by set, address and protocol
	// sources of elements, by their other fields.
	sources map[ipvs.ElementKey]*sim.Prefixes
	// elements of sets that contain only ports.
	alike map[ipvs.Set]*sim.PortSet
	// ports of virtual servers, by address and protocol.
	servers    map[ir.Match][]uint16
	unassigned []netip.Addr // ClusterIPs in the set that the node does not have
	sent       bool         // OUTPUT is evaluated for balanced packets, because foreign rules there may match them

	only   netip.AddrPort // the real server to consider; all if invalid
	report func(sim.Met)  // called with each rule and element that a packet matches; optional
}

// NewEvaluator indexes a Ruleset. The cost is linear in its size. own contains
// the node's addresses without those of kube-ipvs0.
func NewEvaluator(r *ipvs.Ruleset, own *sim.Own) *Evaluator {
	return newEvaluator(r, own, ipteval.NewWalker)
}

func newEvaluator(r *ipvs.Ruleset, own *sim.Own, walker func(*iptables.Ruleset, *sim.Own, func(*ipteval.Packet, iptables.InSet) bool) *ipteval.Walker) *Evaluator {
	e := &Evaluator{Ruleset: r, plain: own, sets: map[string]ipvs.Set{}, sources: map[ipvs.ElementKey]*sim.Prefixes{}, ports: map[ipvs.ElementKey][]uint16{}, alike: map[ipvs.Set]*sim.PortSet{}, servers: map[ir.Match][]uint16{}}
	sources := map[ipvs.ElementKey][]netip.Prefix{}
	for _, x := range r.Elements {
		if x.Source.IsValid() {
			key := x.ElementKey
			key.Source = netip.Prefix{}
			sources[key] = append(sources[key], x.Source)
		}
	}
	for key, list := range sources {
		e.sources[key] = sim.NewPrefixes(list)
	}
	e.own = own.With(r.Carries)
	e.rules = walker(r.Rules, e.own, e.inSet)
	e.sent = slices.ContainsFunc(r.Rules.Filter.Chains, func(c iptables.Chain) bool { return c.Name == "OUTPUT" })
	for _, x := range r.Elements {
		if x.Number != 0 {
			list := portless(x.ElementKey)
			e.ports[list] = append(e.ports[list], x.Number)
		}
		if x.Set == ipvs.ClusterIP && !e.own.Has(x.Addr) {
			e.unassigned = append(e.unassigned, x.Addr)
		}
	}
	for _, s := range ipvs.Sets() {
		e.sets[s.Name(r.Family)] = s
		if s.Type() == ipvs.BitmapPort {
			e.alike[s] = sim.NewPortSet(e.ports[ipvs.ElementKey{Set: s}])
		}
	}
	for _, v := range r.VirtualServers {
		list := ir.Match{Addr: v.Key.Addr, Protocol: v.Key.Protocol}
		e.servers[list] = append(e.servers[list], v.Key.Port)
	}
	return e
}

// portless returns the key without fields that depend on the port.
func portless(k ipvs.ElementKey) ipvs.ElementKey {
	return ipvs.ElementKey{Set: k.Set, Addr: k.Addr, Protocol: k.Protocol}
}

// Doubts returns the doubts that do not depend on a single packet.
func (e *Evaluator) Doubts() []string { return ipteval.Doubts(e.Rules) }

// Destinations calls add with the prefixes with which destinations are compared,
// possibly with duplicates.
func (e *Evaluator) Destinations(add func(netip.Prefix)) {
	one := func(a netip.Addr) {
		if a.IsValid() {
			add(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	e.rules.Destinations(add)
	for i := range e.VirtualServers {
		one(e.VirtualServers[i].Key.Addr)
	}
	for a := range e.Bound {
		one(a)
	}
	for i := range e.Elements {
		one(e.Elements[i].Addr)
	}
}

// Outcome evaluates the first packet of a connection at the hooks of the kernel:
// the iptables rules and the virtual servers. The kernel looks up virtual servers
// in input for packets to the node, which include those to kube-ipvs0, and in
// output for packets from the node. Outcome records in cuts the constants with
// which it compared the packet.
func (e *Evaluator) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	return e.outcome(ipteval.Packet{Packet: pkt, Cuts: cuts})
}

func (e *Evaluator) outcome(p ipteval.Packet) sim.Outcome {
	if p.FromNode() {
		return e.output(p)
	}
	p = e.nat("PREROUTING", p)
	if !e.delivered(p.Dst) {
		return e.through("FORWARD", p, e.leave)
	}
	return e.through("INPUT", p, func(p ipteval.Packet) sim.Outcome { return e.balance(p, e.server(p)) })
}

// output evaluates packets from the node itself. The balancer is between the nat
// and the filter table. Other packets are delivered locally or leave the node.
func (e *Evaluator) output(p ipteval.Packet) sim.Outcome {
	p = e.nat("OUTPUT", p)
	v := e.server(p)
	switch {
	case v != nil && (e.sent || len(v.RealServers) == 0):
		return e.balance(p, v)
	case v != nil:
		p.Balanced = v.Key // no other field matters, wherever it is sent
	}
	return e.through("OUTPUT", p, func(p ipteval.Packet) sim.Outcome {
		switch {
		case v != nil:
			return e.balance(p, v)
		case e.own.Has(p.Dst): // over the loopback interface, where any address of the node is a valid source
			return e.through("INPUT", p, translated)
		}
		return e.leave(p)
	})
}

// delivered reports whether packets to an address are delivered to the node.
func (e *Evaluator) delivered(a netip.Addr) bool {
	if e.report != nil && e.Carries(a) {
		e.report(sim.Met{NoRule: true, Table: TableDevice, Chain: ir.IPVSDevice, Text: a.String()})
	}
	return e.own.Has(a)
}

// nat returns the state of the packet after a built-in chain of the nat table.
// There is only one, because our rules do not match at random.
func (e *Evaluator) nat(chain string, p ipteval.Packet) ipteval.Packet {
	return single("nat", chain, e.rules.Nat(chain, p))
}

// through returns the verdict of a built-in chain of the filter table, or the
// result of then if it accepts the packet.
func (e *Evaluator) through(chain string, p ipteval.Packet, then func(ipteval.Packet) sim.Outcome) sim.Outcome {
	switch p := single("filter", chain, e.rules.Filter(chain, p)); p.Fate {
	case iptables.Drop:
		return sim.Outcome{Fate: sim.Dropped}
	case iptables.Reject:
		return sim.Outcome{Fate: sim.Rejected}
	default:
		return then(p)
	}
}

// single returns the first possible state of a packet, and reports a doubt if
// there are more.
func single(table, chain string, ways []ipteval.Packet) ipteval.Packet {
	p := ways[0]
	switch {
	case len(ways) > 1:
		p.Cuts.Doubt("table " + table + ", chain " + chain + ": leaves to chance what becomes of a packet before ipvs has it")
	case table == "nat" && (p.Fate == iptables.Drop || p.Fate == iptables.Reject):
		p.Cuts.Doubt("table " + table + ", chain " + chain + ": a packet ends there")
	case p.Redirected:
		p.Cuts.Doubt("table " + table + ", chain " + chain + ": a packet is redirected to an address that depends on the interface")
	}
	return p
}

// leave returns the outcome of a packet that leaves the node.
func (e *Evaluator) leave(p ipteval.Packet) sim.Outcome {
	p = e.nat("POSTROUTING", p)
	p.Leaves(e.own)
	return translated(p)
}

// translated returns the outcome of a packet that ipvs did not balance.
func translated(p ipteval.Packet) sim.Outcome {
	if !p.DNAT && !p.SNAT {
		return sim.Outcome{}
	}
	return sim.NewOutcome(false, []sim.Destination{{AddrPort: netip.AddrPortFrom(p.Dst, p.Port), SNAT: p.SNAT}})
}

// balance returns the real servers, each evaluated with the postrouting hook.
func (e *Evaluator) balance(p ipteval.Packet, v *ipvs.VirtualServer) sim.Outcome {
	if v == nil {
		return translated(p)
	}
	if doubt := e.Unclear[v.Key]; doubt != "" {
		p.Cuts.Doubt("ipvs " + v.Key.String() + ": " + doubt)
	}
	if len(v.RealServers) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	ways := make([]sim.Chance, len(v.RealServers))
	stopped := false
	for i, rs := range v.RealServers {
		if e.only.IsValid() && rs.AddrPort != e.only {
			continue
		}
		if e.report != nil {
			e.report(sim.Met{NoRule: true, Table: TableServers, Chain: v.Key.String(), Text: rs.Command(v.Key)})
		}
		after := p
		after.Dst, after.Port, after.Translated = rs.AddrPort.Addr(), rs.AddrPort.Port(), true
		ways[i] = sim.Chance{Fate: sim.Accepted, Destination: sim.Destination{AddrPort: rs.AddrPort}, Weight: 1}
		if !after.FromNode() && e.own.Has(after.Dst) { // delivered locally, without an output interface
			continue
		}
		if e.sent {
			after.Balanced = v.Key
			o := e.through("OUTPUT", after, func(ipteval.Packet) sim.Outcome { return sim.Outcome{} })
			if o.Fate != sim.NotOurs {
				ways[i], stopped = sim.Chance{Fate: o.Fate, Weight: 1}, true
				continue
			}
		}
		after = e.nat("POSTROUTING", after)
		if after.Mark != 0 && !e.hairpin(after) {
			after.Leaves(e.own)
		}
		ways[i].SNAT = after.SNAT
	}
	var o sim.Outcome
	if stopped {
		o = sim.Shared(ways)
	} else {
		ds := make([]sim.Destination, len(ways))
		for i := range ways {
			ds[i] = ways[i].Destination
		}
		o = sim.NewOutcome(false, ds)
	}
	if v.Flags&ipvs.Persistent != 0 && len(o.Destinations) > 0 {
		o.Affinity, o.Timeout = true, v.Timeout
	}
	return o
}

// hairpin reports whether a packet returns to its sender, a pod of the node. Such
// a packet is masqueraded before the mark is cleared. The mark does not matter on
// the way to a pod.
func (e *Evaluator) hairpin(p ipteval.Packet) bool {
	p.Cuts = nil
	_, is := e.withSource(ipvs.ElementKey{Set: ipvs.LoopBack, Addr: p.Dst, Protocol: p.Protocol, Number: p.Port}, &p)
	return is
}

// server returns the virtual server for a packet, or nil.
func (e *Evaluator) server(p ipteval.Packet) *ipvs.VirtualServer {
	key := ir.Match{Addr: p.Dst, Protocol: p.Protocol, Port: p.Port}
	ports := e.servers[ir.Match{Addr: p.Dst, Protocol: p.Protocol}]
	if !p.DNAT {
		p.Cuts.PortsOf(ports)
	}
	v := e.Server(key)
	switch {
	case v == nil && slices.Contains(ports, 0):
		p.Cuts.Doubt("ipvs " + ir.Match{Addr: p.Dst, Protocol: p.Protocol}.String() + ": a virtual server takes the ports that no other does")
	case v != nil && e.report != nil:
		e.report(sim.Met{NoRule: true, Table: TableServers, Chain: key.String(), Text: v.Command()})
	}
	return v
}

// inSet reports whether an ipset contains a packet.
func (e *Evaluator) inSet(p *ipteval.Packet, in iptables.InSet) bool {
	key, has := e.lookUp(p, in)
	if has && e.report != nil {
		e.report(sim.Met{NoRule: true, Table: TableSets, Chain: in.Set, Text: key.String()})
	}
	return has
}

// lookUp returns the element of a set that matches a packet.
func (e *Evaluator) lookUp(p *ipteval.Packet, in iptables.InSet) (key ipvs.ElementKey, has bool) {
	set, known := e.sets[in.Set]
	if !known {
		p.Cuts.Doubt("set " + in.Set)
		return key, false
	}
	key = ipvs.ElementKey{Set: set, Addr: p.Dst, Protocol: p.Protocol, Number: p.Port}
	if strings.HasPrefix(in.Fields, "src") {
		key.Addr = p.Src
		e.cutSource(p)
	}
	first := !p.Translated && !p.DNAT // its port is the original one
	switch set.Type() {
	case ipvs.HashIP:
		key.Protocol, key.Number = 0, 0
	case ipvs.BitmapPort:
		key.Addr, key.Protocol = netip.Addr{}, 0
		if !first {
			return key, e.alike[set].Has(p.Port, nil)
		}
		return key, e.alike[set].Has(p.Port, p.Cuts)
	}
	if key.Number != 0 && first {
		p.Cuts.PortsOf(e.ports[portless(key)])
	}
	switch set.Type() {
	case ipvs.HashIPPortIP, ipvs.HashIPPortNet:
		return e.withSource(key, p)
	}
	return key, e.Has(key)
}

// cutSource records that the packet's source was compared with addresses of
// Services. The node has these addresses, so that they are never a client's. They
// are the source of packets from the node to the same address.
func (e *Evaluator) cutSource(p *ipteval.Packet) {
	if p.Cuts == nil {
		return
	}
	p.Cuts.SourceAddr(p.Dst)
	e.plain.HasSource(p.Src, p.Cuts)
	for _, a := range e.unassigned {
		p.Cuts.SourceAddr(a)
	}
}

// withSource returns an element whose second address or network matches the
// source.
func (e *Evaluator) withSource(key ipvs.ElementKey, p *ipteval.Packet) (found ipvs.ElementKey, has bool) {
	if list := e.sources[key]; list != nil {
		found = key
		found.Source, has = list.Find(p.Src, p.Cuts)
	}
	return found, has
}
