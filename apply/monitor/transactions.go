package monitor

import (
	"fmt"
	"slices"
)

// transaction is one change of nf_tables that the kernel told of.
type transaction struct {
	generation uint32
	program    string // that made it, by the kernel's name of at most 15 bytes
	process    uint32 // its number
	touched    Touched
}

// Touched is what of ours was changed.
type Touched struct {
	// Elements are messages about elements of sets, from their head on.
	Elements [][]byte
	// More tells that something else was changed, or that nobody knows.
	More bool
}

// mostElements is how many messages about elements are held. Where there are
// more, it is less work to look at all that there is.
const mostElements = 1000

// Any reports whether anything was changed.
func (t *Touched) Any() bool { return t.More || len(t.Elements) > 0 }

func (t *Touched) add(o Touched) {
	t.Elements = append(t.Elements, o.Elements...)
	if t.More = t.More || o.More || len(t.Elements) > mostElements; t.More {
		t.Elements = nil
	}
}

// transactions distinguishes those of others from those of our own, which cannot be
// told by process: rules are also written by tools that we start, and have
// ended when their message arrives.
type transactions struct {
	own []string // names of programs that are ours while we are at work

	busy  bool
	until uint32        // generation at the end of our last work
	held  []transaction // that happened during it

	touched Touched  // by others, and not taken yet
	by      []string // who these were, the first of them
}

// mostBy is how many programs are remembered that changed something.
const mostBy = 5

// name is how messages name who made a transaction.
func (t *transaction) name() string {
	if t.program == "" {
		return "a program that the kernel does not name"
	}
	return fmt.Sprintf("%s (process %d)", t.program, t.process)
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
	if !one.touched.Any() {
		return false
	}
	if t.busy {
		t.held = append(t.held, one)
		return false
	}
	late := int32(one.generation-t.until) <= 0 // generations wrap around
	if late && slices.Contains(t.own, one.program) {
		return false
	}
	t.touched.add(one.touched)
	if name := one.name(); len(t.by) < mostBy && !slices.Contains(t.by, name) {
		t.by = append(t.by, name)
	}
	return true
}
