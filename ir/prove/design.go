package prove

import (
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Design determines the capabilities that cause a difference between two modes,
// both of which implement their Programs. It is safe for concurrent use.
type Design struct {
	a, b *ir.Program

	mu   sync.Mutex
	made map[ir.Capability]*sim.Evaluator // Program a with these capabilities changed to those of b
}

// NewDesign returns a Design, or nil if the sides are not Programs of different
// modes.
func NewDesign(a, b *ir.Program) *Design {
	if a == nil || b == nil || a.Node.Mode == b.Node.Mode {
		return nil
	}
	return &Design{a: a, b: b, made: map[ir.Capability]*sim.Evaluator{}}
}

// Of returns the smallest set of capabilities that explains a difference: with
// these changed, a handles its packets like b. It returns 0 if no set does.
func (x *Design) Of(d *Difference) ir.Capability {
	if x == nil {
		return 0
	}
	apart := x.a.Node.Mode.Capabilities() ^ x.b.Node.Mode.Capabilities()
	if !d.Packet.Dst.IsLoopback() {
		apart &^= ir.LocalhostNodePorts
	}
	explains := func(set ir.Capability) bool { return x.with(set).Outcome(d.Packet, nil).Equal(d.B) }
	if !x.with(0).Outcome(d.Packet, nil).Equal(d.A) || !explains(apart) {
		return 0
	}
	for bit := ir.Capability(1); bit != 0; bit <<= 1 {
		if apart&bit != 0 && explains(apart&^bit) {
			apart &^= bit
		}
	}
	return apart
}

// with returns an evaluator of Program a with some capabilities changed to those
// of b.
func (x *Design) with(set ir.Capability) *sim.Evaluator {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.made[set] == nil {
		p := *x.a
		if set.Has(ir.LocalhostNodePorts) { // for loopback alone
			p.Node.NodePorts = x.b.Node.NodePorts
		}
		x.made[set] = sim.NewEvaluatorWith(&p, p.Node.Mode.Capabilities()^set)
	}
	return x.made[set]
}
