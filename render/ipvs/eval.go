package ipvs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Eval walks the first packet of a connection through the hooks of the kernel:
// the iptables rules, and the virtual servers where the kernel looks for them:
// on the way in for what is delivered to the node (the addresses of kube-ipvs0
// are), and on the way out for what the node sends. local tells the node's own
// addresses, without those of kube-ipvs0.
func (r *Ruleset) Eval(pkt sim.Packet, local func(netip.Addr) bool) sim.Outcome {
	w := walk{rules: r, pkt: pkt, local: local}
	if pkt.FromNode() {
		return w.output()
	}
	w.chain("nat", "PREROUTING")
	if !w.isLocal(pkt.Dst) {
		return w.fate("FORWARD")
	}
	if out := w.fate("INPUT"); out.Fate != sim.NotOurs {
		return out
	}
	return w.balance()
}

// walk is a packet on its way.
type walk struct {
	rules  *Ruleset
	pkt    sim.Packet
	local  func(netip.Addr) bool
	server *VirtualServer // set once the kernel balances the connection
	mark   uint32
	masq   bool
}

func (w *walk) isLocal(a netip.Addr) bool {
	return a.IsLoopback() || w.local(a) || w.has(ElementKey{Set: IPVSIPs, Addr: a})
}

// output is the way of what the node sends. The balancer stands between the
// nat and the filter table; what it does not take goes to the node itself, or away.
func (w *walk) output() sim.Outcome {
	w.chain("nat", "OUTPUT")
	w.server = w.rules.virtualServer(w.key())
	if w.server != nil && len(w.server.RealServers) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	if out := w.fate("OUTPUT"); out.Fate != sim.NotOurs {
		return out
	}
	if w.server == nil && w.isLocal(w.pkt.Dst) {
		return w.fate("INPUT")
	}
	return w.balance()
}

func (w *walk) key() ir.Match {
	return ir.Match{Addr: w.pkt.Dst, Protocol: w.pkt.Protocol, Port: w.pkt.Port}
}

// balance gives the real servers, each with what the postrouting hook makes of it.
func (w *walk) balance() sim.Outcome {
	w.server = w.rules.virtualServer(w.key())
	if w.server == nil {
		return sim.Outcome{}
	}
	if len(w.server.RealServers) == 0 {
		return sim.Outcome{Fate: sim.Rejected}
	}
	ds := make([]sim.Destination, len(w.server.RealServers))
	for i, rs := range w.server.RealServers {
		after := *w
		after.pkt.Dst, after.pkt.Port = rs.AddrPort.Addr(), rs.AddrPort.Port()
		after.chain("nat", "POSTROUTING")
		ds[i] = sim.Destination{AddrPort: rs.AddrPort, SNAT: after.masq}
	}
	return sim.NewOutcome(w.server.Flags&Persistent != 0, ds)
}

// fate gives what a built-in chain of the filter table makes of the packet.
func (w *walk) fate(chain string) sim.Outcome {
	switch w.chain("filter", chain) {
	case Drop:
		return sim.Outcome{Fate: sim.Dropped}
	case RejectPort:
		return sim.Outcome{Fate: sim.Rejected}
	}
	return sim.Outcome{}
}

// chain walks one chain and gives the target that ended the walk, Return if none did.
func (w *walk) chain(table, name string) Target {
	for _, rule := range w.rules.chain(table, name) {
		if !slices.ContainsFunc(rule.Matches, func(m Match) bool { return !m.holds(w) }) {
			if end := w.target(table, rule.Target); end != "" {
				return end
			}
		}
	}
	return Return
}

// target does what a rule's target says, and gives the target that ends the
// chain that the rule stands in, or nothing.
func (w *walk) target(table string, t Target) Target {
	name, _, _ := strings.Cut(string(t), " ")
	switch {
	case t == Accept || t == Drop || t == RejectPort || t == Return:
		return t
	case t == Masquerade || t == MasqueradeRandom:
		w.masq = true
		return Accept
	case name == "MARK":
		w.setMark(t)
		return ""
	}
	if end := w.chain(table, string(t)); end != Return {
		return end
	}
	return ""
}

func (w *walk) setMark(t Target) {
	for bit := range 32 {
		switch mark := uint32(1) << bit; t {
		case SetMark(mark):
			w.mark |= mark
		case ClearMark(mark):
			w.mark &^= mark
		}
	}
}

func (r *Ruleset) chain(table, name string) []Rule {
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			if t.Name == table && c.Name == name {
				return c.Rules
			}
		}
	}
	return nil
}

func (w *walk) has(key ElementKey) bool {
	_, ok := slices.BinarySearchFunc(w.rules.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	return ok
}

func (m Source) holds(w *walk) bool { return m.Prefix.Contains(w.pkt.Src) != m.Not }

func (m Input) holds(w *walk) bool {
	name, isPrefix := strings.CutSuffix(m.Interface, "+")
	hit := w.pkt.In == name
	if isPrefix {
		hit = w.pkt.In != "" && strings.HasPrefix(w.pkt.In, name)
	}
	return hit != m.Not
}

func (m Protocol) holds(w *walk) bool { return w.pkt.Protocol == ir.Protocol(m) }

func (m InSet) holds(w *walk) bool {
	key := ElementKey{Set: m.Set, Addr: w.pkt.Dst, Protocol: w.pkt.Protocol, Number: w.pkt.Port}
	if strings.HasPrefix(m.Fields, "src") {
		key.Addr = w.pkt.Src
	}
	switch m.Set.Type() {
	case HashIP:
		key.Protocol, key.Number = 0, 0
	case BitmapPort:
		key.Addr, key.Protocol = netip.Addr{}, 0
	case HashIPPortIP:
		key.Source = netip.PrefixFrom(w.pkt.Src, w.pkt.Src.BitLen())
	case HashIPPortNet:
		for bits := range w.pkt.Src.BitLen() + 1 {
			key.Source, _ = w.pkt.Src.Prefix(bits)
			if w.has(key) {
				return true
			}
		}
		return false
	}
	return w.has(key)
}

func (m AddrType) holds(w *walk) bool {
	addr := w.pkt.Dst
	if m.Source {
		addr = w.pkt.Src
	}
	return w.isLocal(addr) != m.Not
}

func (NotBridged) holds(*walk) bool { return true } // a Packet comes in by a routed interface

func (m Marked) holds(w *walk) bool { return (w.mark&m.Mark == m.Mark) != m.Not }

func (m State) holds(*walk) bool { return m == "NEW" } // a Packet is the first of its connection

func (m Balanced) holds(w *walk) bool { return w.server != nil && w.server.Key == ir.Match(m) }
