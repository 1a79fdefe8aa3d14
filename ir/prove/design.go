package prove

import (
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Meant is a Program and the capabilities of the rules that implement it: those of
// its mode, or of rules that were dumped.
type Meant struct {
	*ir.Program
	Caps ir.Capability
}

// MeantBy returns a Program with the capabilities of its mode.
func MeantBy(p *ir.Program) Meant {
	if p == nil {
		return Meant{}
	}
	return Meant{p, p.Node.Mode.Capabilities()}
}

// Design determines the capabilities that cause a difference between two sides,
// both of which implement their Programs. It is safe for concurrent use.
type Design struct {
	a, b Meant

	mu   sync.Mutex
	made map[ir.Capability]*sim.Evaluator // Program a with these capabilities changed to those of b
}

// NewDesign returns a Design, or nil if a side is not a Program, or if their
// capabilities are equal.
func NewDesign(a, b Meant) *Design {
	if a.Program == nil || b.Program == nil || a.Caps == b.Caps {
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
	apart := x.a.Caps ^ x.b.Caps
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
		p := *x.a.Program
		if set.Has(ir.LocalhostNodePorts) { // for loopback alone
			p.Node.NodePorts = x.b.Node.NodePorts
		}
		x.made[set] = sim.NewEvaluatorWith(&p, x.a.Caps^set)
	}
	return x.made[set]
}
