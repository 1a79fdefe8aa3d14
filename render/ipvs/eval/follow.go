package eval

import (
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir/sim"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/ipvs"
)

// Values of sim.Met.Table other than tables of rules. Chain is then a set, an
// address and port, or a device.
const (
	TableSets    = "ipset"
	TableServers = "ipvs"
	TableDevice  = "device"
)

// Follower reports the path of packets under a Ruleset. Its rules may be from
// ParseWhole of render/iptables/parse. It is not safe for concurrent use.
type Follower struct{ evaluator *Evaluator }

// NewFollower indexes a Ruleset. The cost is linear in its size.
func NewFollower(r *ipvs.Ruleset, own *sim.Own) *Follower {
	e := newEvaluator(r, own, ipteval.NewPlain)
	e.sent = true // report rules at the point where the kernel evaluates them
	return &Follower{e}
}

// Follow returns the outcome of a packet and its path: the matching rules, set
// elements, virtual and real servers, and the address of kube-ipvs0, in order. It
// includes parts with unknown meaning.
func (f *Follower) Follow(pkt sim.Packet) sim.Path { return f.FollowMarked(pkt, 0, false) }

// Toward returns the path to one result. It omits real servers that do not lead
// there.
func (f *Follower) Toward(pkt sim.Packet, to sim.Chance) []sim.Met {
	f.evaluator.only = to.AddrPort
	defer func() { f.evaluator.only = netip.AddrPort{} }()
	return f.Follow(pkt).Met
}

// FollowMarked is Follow for a packet with a mark of another program that was set
// before the nat table. translated reports whether its destination was also
// translated before.
func (f *Follower) FollowMarked(pkt sim.Packet, mark uint32, translated bool) sim.Path {
	var way sim.Path
	e := f.evaluator
	e.report = func(m sim.Met) {
		if !slices.Contains(way.Met, m) {
			way.Met = append(way.Met, m)
		}
	}
	var cuts sim.Cuts
	way.Outcome = e.outcome(ipteval.Packet{Packet: pkt, Mark: mark, DNAT: translated, Cuts: &cuts}.Reporting(e.Family, e.report))
	way.Unknown = cuts.Doubts()
	return way
}
