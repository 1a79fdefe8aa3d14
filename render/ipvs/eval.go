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
	e := eval{Ruleset: r, local: func(a netip.Addr) bool {
		return a.IsLoopback() || local(a) || r.has(ElementKey{Set: IPVSIPs, Addr: a})
	}}
	e.rules = r.Rules.Walker(sim.OwnOf(e.local), r.inSet)
	p := iptables.Packet{Packet: pkt}
	if pkt.FromNode() {
		return e.output(p)
	}
	p = e.nat("PREROUTING", p)
	if !e.local(pkt.Dst) {
		return e.filter("FORWARD", p)
	}
	if out := e.filter("INPUT", p); out.Fate != sim.NotOurs {
		return out
	}
	return e.balance(p, r.server(p))
}

type eval struct {
	*Ruleset
	local func(netip.Addr) bool
	rules *iptables.Walker
}

// nat returns what a built-in chain of the nat table makes of the packet: one
// packet, as the rules leave nothing to chance.
func (e *eval) nat(chain string, p iptables.Packet) iptables.Packet { return e.rules.Nat(chain, p)[0] }

// filter returns what a built-in chain of the filter table says of the packet.
func (e *eval) filter(chain string, p iptables.Packet) sim.Outcome {
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
func (e *eval) output(p iptables.Packet) sim.Outcome {
	p = e.nat("OUTPUT", p)
	v := e.server(p)
	if v == nil {
		if e.local(p.Dst) {
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
func (e *eval) balance(p iptables.Packet, v *VirtualServer) sim.Outcome {
	if v == nil {
		return sim.Outcome{}
	}
	if len(v.RealServers) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	ds := make([]sim.Destination, len(v.RealServers))
	for i, rs := range v.RealServers {
		after := p
		after.Dst, after.Port = rs.AddrPort.Addr(), rs.AddrPort.Port()
		if after.FromNode() || !e.local(after.Dst) { // else delivered, and sent by no interface
			after = e.nat("POSTROUTING", after)
		}
		ds[i] = sim.Destination{AddrPort: rs.AddrPort, SNAT: after.SNAT}
	}
	return sim.NewOutcome(v.Flags&Persistent != 0, ds)
}

func (r *Ruleset) server(p iptables.Packet) *VirtualServer {
	return r.virtualServer(ir.Match{Addr: p.Dst, Protocol: p.Protocol, Port: p.Port})
}

func (r *Ruleset) has(key ElementKey) bool {
	_, ok := slices.BinarySearchFunc(r.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	return ok
}

// inSet looks a packet up in an ipset.
func (r *Ruleset) inSet(p *iptables.Packet, in iptables.InSet) bool {
	i := slices.IndexFunc(Sets(), func(s Set) bool { return s.Name(r.Family) == in.Set })
	if i < 0 {
		return false
	}
	key := ElementKey{Set: Set(i), Addr: p.Dst, Protocol: p.Protocol, Number: p.Port}
	if strings.HasPrefix(in.Fields, "src") {
		key.Addr = p.Src
	}
	switch key.Set.Type() {
	case HashIP:
		key.Protocol, key.Number = 0, 0
	case BitmapPort:
		key.Addr, key.Protocol = netip.Addr{}, 0
	case HashIPPortIP:
		key.Source = netip.PrefixFrom(p.Src, p.Src.BitLen())
	case HashIPPortNet:
		return r.hasNet(key, p.Src)
	}
	return r.has(key)
}

// hasNet looks for an element whose network holds src.
func (r *Ruleset) hasNet(key ElementKey, src netip.Addr) bool {
	for bits := range src.BitLen() + 1 {
		key.Source, _ = src.Prefix(bits)
		if r.has(key) {
			return true
		}
	}
	return false
}
