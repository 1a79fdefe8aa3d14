package prove

import (
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Classifier divides the packets to one address and port into classes with equal
// outcomes. It is not safe for concurrent use.
type Classifier struct{ e *explorer }

// NewClassifier returns a Classifier of the packets that are possible on a node.
// As in CompareAt, a client that is a backend may share the class of others if
// only the masquerading of its hairpin connection differs.
func NewClassifier(n Node, side Side) *Classifier {
	e := newExplorer(n, side, different{}, func() bool { return false })
	e.cuts.SplitHairpins = true
	return &Classifier{e}
}

// Classes returns all classes of packets to an address and port, with their
// outcomes as A of a Difference. The list is valid until the next call. ok is
// false if there are too many classes.
func (c *Classifier) Classes(dst netip.Addr, protocol ir.Protocol, port uint16) (all []Difference, ok bool) {
	c.e.found = found{list: c.e.list[:0]}
	c.e.port(destination{Addrs: Addrs{dst, dst}}, protocol, nil, port)
	c.e.sure = c.e.sure[:0]
	for i := range c.e.list {
		c.e.sure = append(c.e.sure, c.e.list[i].Difference)
	}
	return c.e.sure, c.e.endless == ""
}

// different is a side whose outcomes equal no others.
type different struct{}

func (different) Outcome(sim.Packet, *sim.Cuts) sim.Outcome { return sim.Outcome{Fate: 255} }

func (different) Destinations(func(netip.Prefix)) {}
