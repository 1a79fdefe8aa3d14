package eval

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
)

// Foreign is a rule that another tool defines, such as iptables. Only a Follower
// evaluates it.
type Foreign struct {
	Text string // as printed by its tool
	// Run applies the rule to a packet. The zero Verdict continues with the next
	// rule.
	Run func(*Passing) nftables.Verdict
}

func (s Foreign) AppendText(b []byte, _ ir.Family) []byte { return append(b, s.Text...) }

func (w *walk) foreign(s Foreign) step {
	p := &Passing{walk: w}
	v := s.Run(p)
	if v.Kind == 0 {
		return endRule
	}
	if !p.reported {
		w.recordVerdict(v, nil)
	}
	return w.decide(v)
}

// Machine provides facts about the node that rules query in the kernel. A nil
// function means that the fact is unknown.
type Machine struct {
	// Out returns the interface on which the node sends a packet that was
	// received on in, or "" if it sends it nowhere.
	Out func(src, dst netip.Addr, in string, mark uint32) (string, error)
	// Carries reports whether an interface has an address.
	Carries func(a netip.Addr, on string) bool
	// Bridged reports whether an interface is a bridge that passes its packets to
	// netfilter.
	Bridged func(in string) bool
}

// Passing is a packet on its path through the hooks, for a Foreign rule.
type Passing struct {
	*walk
	reported bool // the rule was reported as one that the packet matched
}

// Src returns the source address, which no rule has changed yet.
func (p *Passing) Src() netip.Addr { return p.src }

// Dst returns the current destination address.
func (p *Passing) Dst() netip.Addr { return p.dst }

// Port returns the current destination port.
func (p *Passing) Port() uint16 { return p.port }

// First returns the packet before any translation.
func (p *Passing) First() sim.Packet { return p.pkt }

// Hook returns the current hook.
func (p *Passing) Hook() nftables.Hook { return p.base.Hook }

// Own reports whether the node has an address.
func (p *Passing) Own(a netip.Addr) bool { return p.own.Has(a) }

// Translated reports whether the destination, or the source, was translated.
func (p *Passing) Translated() (dst, src bool) { return p.dnat, p.snat }

// Tracked reports whether connection tracking has processed the packet.
func (p *Passing) Tracked() bool { return p.tracked && !p.untracked }

// Untracked reports whether a rule exempted the packet from connection tracking.
func (p *Passing) Untracked() bool { return p.untracked }

// Mark returns the mark of the packet, and of its connection.
func (p *Passing) Mark() (packet, connection uint32) { return p.mark, p.ctmark }

// SetMark changes the mark of the packet, and of its connection.
func (p *Passing) SetMark(packet, connection uint32) {
	p.setMark(packet)
	p.ctmark = connection
	p.report()
}

// Untrack exempts the packet from connection tracking.
func (p *Passing) Untrack() {
	p.untracked = true
	p.report()
}

// Redirect changes the destination of the packet. A port of 0 keeps the port.
func (p *Passing) Redirect(to netip.AddrPort) {
	p.dst, p.dnat = to.Addr(), true
	if to.Port() != 0 {
		p.port = to.Port()
	}
	p.report()
}

// Masquerade changes the source address of the connection.
func (p *Passing) Masquerade() {
	p.snat, p.hidden = true, !strings.Contains(p.chain, ", chain KUBE-")
	p.report()
}

func (p *Passing) report() {
	if !p.reported {
		p.record(nil, false, false)
		p.reported = true
	}
}

// Matched continues with the next statement of the rule, without an effect on the
// packet.
func (p *Passing) Matched() nftables.Verdict {
	p.reported = true
	return nftables.Verdict{Kind: nftables.Continue}
}

// Doubt records that the rule is not supported, so that the outcome of the packet
// is unknown.
func (p *Passing) Doubt(why string) { p.doubt("%s", why) }

// Choose returns whether the packet is in a random share of packets. Both paths
// are evaluated.
func (p *Passing) Choose(share float64) bool {
	if share <= 0 || share >= 1 {
		return share >= 1
	}
	if p.step == len(p.path) {
		p.path = append(p.path, choicePoint{of: 2, share: share})
	}
	p.step++
	return p.path[p.step-1].taken == 0
}

// Remember adds the client to a list.
func (p *Passing) Remember(list string) {
	p.way.Memory = append(p.way.Memory, sim.Remembered{In: list})
}

// Remembers reports whether a list contains the client.
func (p *Passing) Remembers(m sim.Memory) bool {
	if slices.Contains(p.known, sim.Remembered{In: m.Name}) {
		p.way.Hit = append(p.way.Hit, m)
		return true
	}
	p.way.Missed = append(p.way.Missed, m)
	return false
}

// In returns the input interface, or "" if the hook has none.
func (p *Passing) In() (name string, known bool) {
	return p.in, p.base.Hook != nftables.Postrouting || p.in == ""
}

// Out returns the output interface, or "" if the hook has none.
func (p *Passing) Out() (name string, known bool) {
	if p.base.Hook == nftables.Prerouting || p.base.Hook == nftables.Input {
		return "", true
	}
	if p.pkt.FromNode() && p.own.Has(p.dst) {
		return "lo", true
	}
	if p.machine.Out == nil {
		return "", false
	}
	mark := p.mark
	if p.base.Hook != nftables.Output {
		mark = p.routed
	}
	src := p.src
	if p.pkt.FromNode() {
		src = netip.Addr{}
	}
	name, err := p.machine.Out(src, p.dst, p.pkt.In, mark)
	return name, err == nil
}

// Returns reports whether the node's route to the source of the packet uses the
// interface on which the packet was received, or, if loose, whether such a route
// exists.
func (p *Passing) Returns(marked, loose bool) (ok, known bool) {
	if p.in == "lo" {
		return true, true
	}
	if p.machine.Out == nil {
		return false, false
	}
	mark := uint32(0)
	if marked {
		mark = p.mark
	}
	by, err := p.machine.Out(netip.Addr{}, p.src, "", mark)
	return by != "" && (loose || by == p.in), err == nil
}

// Carries reports whether an interface has an address.
func (p *Passing) Carries(a netip.Addr, on string) (ok, known bool) {
	if !p.own.Has(a) {
		return false, true
	}
	if p.machine.Carries == nil {
		return false, false
	}
	return p.machine.Carries(a, on), true
}

// Bridged reports whether the packet passes the hook inside a bridge. in: it was
// received on a port of a bridge. through: it leaves by the same bridge.
func (p *Passing) Bridged() (in, through, known bool) {
	switch {
	case p.pkt.FromNode() || p.base.Hook == nftables.Input || p.base.Hook == nftables.Output:
		return false, false, true
	case p.machine.Bridged == nil:
		return false, false, false
	case !p.machine.Bridged(p.pkt.In):
		return false, false, true
	case p.base.Hook == nftables.Prerouting:
		return true, false, true
	}
	out, known := p.Out()
	return out == p.pkt.In, out == p.pkt.In, known
}
