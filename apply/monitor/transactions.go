package monitor

import "slices"

// transaction is one change of nf_tables that the kernel told of.
type transaction struct {
	generation uint32
	program    string // that made it, by the kernel's name of at most 15 bytes
	touched    bool   // it changed something of ours
}

// transactions distinguishes those of others from those of our own, which cannot be
// told by process: rules are also written by tools that we start, and have
// ended when their message arrives.
type transactions struct {
	own []string // names of programs that are ours while we are at work

	busy  bool
	until uint32        // generation at the end of our last work
	held  []transaction // that happened during it
}

// begin notes that our own work begins.
func (t *transactions) begin() { t.busy = true }

// end notes that our own work has ended at a generation, and reports whether
// somebody else was at work meanwhile.
func (t *transactions) end(generation uint32) (foreign bool) {
	t.busy, t.until = false, generation
	held := t.held
	t.held = nil
	for _, one := range held {
		foreign = t.met(one) || foreign
	}
	return foreign
}

// met reports whether a transaction is somebody else's, and concerns us.
func (t *transactions) met(one transaction) (foreign bool) {
	if !one.touched {
		return false
	}
	if t.busy {
		t.held = append(t.held, one)
		return false
	}
	late := int32(one.generation-t.until) <= 0 // generations wrap around
	return !(late && slices.Contains(t.own, one.program))
}
