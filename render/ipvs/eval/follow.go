package eval

import (
	"slices"

	"github.com/proxyc/proxyc/ir/sim"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/ipvs"
)

// Tables of what packets meet beside rules: Chain is a set, an address and port, a device.
const (
	TableSets    = "ipset"
	TableServers = "ipvs"
	TableDevice  = "device"
)

// Follower tells what packets meet under a Ruleset, whose rules may be those that
// ParseWhole of render/iptables/parse read. It follows one packet at a time.
type Follower struct{ evaluator *Evaluator }

// NewFollower indexes a Ruleset, which costs what it holds.
func NewFollower(r *ipvs.Ruleset, own *sim.Own) *Follower {
	e := newEvaluator(r, own, ipteval.NewPlain)
	e.sent = true // rules are told of where the kernel comes to them
	return &Follower{e}
}

// Follow returns what becomes of a packet, with the rules, elements of sets, virtual and real
// servers, and the address of kube-ipvs0 that it meets, in order; and what is not understood
// on its way.
func (f *Follower) Follow(pkt sim.Packet) sim.Path { return f.FollowMarked(pkt, 0, false) }

// FollowMarked is Follow for a packet that has a mark from others, before, and if it is translated, its destination
// as well, before the nat table.
func (f *Follower) FollowMarked(pkt sim.Packet, mark uint32, translated bool) sim.Path {
	var way sim.Path
	e := f.evaluator
	e.told = func(m sim.Met) {
		if !slices.Contains(way.Met, m) {
			way.Met = append(way.Met, m)
		}
	}
	var cuts sim.Cuts
	way.Outcome = e.outcome(ipteval.Packet{Packet: pkt, Mark: mark, DNAT: translated, Cuts: &cuts}.Telling(e.Family, e.told))
	way.Unknown = cuts.Doubts()
	return way
}
