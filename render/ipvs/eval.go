package ipvs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/xtables"
)

// Eval walks the first packet of a connection through the hooks of the kernel:
// the iptables rules, and the virtual servers where the kernel looks for them:
// on the way in for what is delivered to the node (the addresses of kube-ipvs0
// are), and on the way out for what the node sends. local tells the node's own
// addresses, without those of kube-ipvs0.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	p := &xtables.Packet{Packet: pkt, InSet: r.inSet, Local: func(a netip.Addr) bool {
		return a.IsLoopback() || local(a) || r.has(ElementKey{Set: IPVSIPs, Addr: a})
	}}
	if pkt.FromNode() {
		return r.output(p)
	}
	p.Walk(r.Tables, "nat", "PREROUTING")
	if !p.Local(pkt.Dst) {
		return r.filter(p, "FORWARD")
	}
	if out := r.filter(p, "INPUT"); out.Fate != sim.NotOurs {
		return out
	}
	return r.balance(p, r.server(p))
}

// output is the way of what the node sends. The balancer stands between the
// nat and the filter table; what it does not take goes to the node itself, or away.
func (r *Ruleset) output(p *xtables.Packet) sim.Outcome {
	p.Walk(r.Tables, "nat", "OUTPUT")
	v := r.server(p)
	if v == nil {
		if p.Local(p.Dst) {
			return r.filter(p, "INPUT")
		}
		return sim.Outcome{}
	}
	if len(v.RealServers) > 0 {
		p.Balanced = v.Key
		if out := r.filter(p, "OUTPUT"); out.Fate != sim.NotOurs {
			return out
		}
	}
	return r.balance(p, v)
}

func (r *Ruleset) server(p *xtables.Packet) *VirtualServer {
	return r.virtualServer(ir.Match{Addr: p.Dst, Protocol: p.Protocol, Port: p.Port})
}

// balance gives the real servers, each with what the postrouting hook makes of it.
func (r *Ruleset) balance(p *xtables.Packet, v *VirtualServer) sim.Outcome {
	if v == nil {
		return sim.Outcome{}
	}
	if len(v.RealServers) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	ds := make([]sim.Destination, len(v.RealServers))
	for i, rs := range v.RealServers {
		after := *p
		after.Dst, after.Port = rs.AddrPort.Addr(), rs.AddrPort.Port()
		if after.In == "" || !after.Local(after.Dst) { // else delivered, and sent by no interface
			after.Walk(r.Tables, "nat", "POSTROUTING")
		}
		ds[i] = sim.Destination{AddrPort: rs.AddrPort, SNAT: after.Masquerade}
	}
	return sim.NewOutcome(v.Flags&Persistent != 0, ds)
}

// filter gives what a built-in chain of the filter table makes of the packet.
func (r *Ruleset) filter(p *xtables.Packet, chain string) sim.Outcome {
	switch p.Walk(r.Tables, "filter", chain) {
	case xtables.Drop:
		return sim.Outcome{Fate: sim.Dropped}
	case xtables.Reject:
		return sim.Outcome{Fate: sim.Rejected}
	}
	return sim.Outcome{}
}

func (r *Ruleset) has(key ElementKey) bool {
	_, ok := slices.BinarySearchFunc(r.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	return ok
}

// inSet looks a packet up in the set of a name.
func (r *Ruleset) inSet(p *xtables.Packet, name, fields string) bool {
	i := slices.IndexFunc(Sets(), func(s Set) bool { return s.Name(r.Family) == name })
	if i < 0 {
		return false
	}
	key := ElementKey{Set: Set(i), Addr: p.Dst, Protocol: p.Protocol, Number: p.Port}
	if strings.HasPrefix(fields, "src") {
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
