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

// transactions separates the transactions of others from our own.
//
// The name of a program is no proof: others run iptables-nft-restore as well. Nor
// is the number of a process: the kernel reports the one of the initial namespace
// of processes, which a container does not see. So our own work is divided into
// windows. In each, one process (or one thread of this one) changes the rules at
// least once. If the kernel reports one process of our names in a window, it is
// ours. If it reports two, one of them is foreign, and both count as foreign:
// that costs a comparison, the other choice would cost a repair.
type transactions struct {
	own     []string  // names of the programs that write rules for us
	windows []*window // whose messages may still come
	heard   uint32    // generation of the last message, or at the beginning

	touched Touched  // by others, and not taken yet
	by      []string // who these were, the first of them
}

// window is the generations after from, up to until, in which one process of ours
// changed the rules.
type window struct {
	from, until uint32
	open        bool         // until is not known yet
	first       *transaction // what the first process of our names did; nil: none so far
	foreign     bool         // all transactions in it count as foreign
}

// contains reports whether a generation is in the window.
func (w *window) contains(generation uint32) bool {
	return after(generation, w.from) && (w.open || !after(generation, w.until))
}

// after compares generations, which wrap around.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// mostBy is how many programs are remembered that changed something.
const mostBy = 5

// name is how messages name who made a transaction.
func (t *transaction) name() string {
	if t.program == "" {
		return "a program that the kernel does not name"
	}
	return fmt.Sprintf("%s (process %d)", t.program, t.process)
}

// begin opens a window after a generation.
func (t *transactions) begin(generation uint32) *window {
	w := &window{from: generation, open: true}
	t.windows = append(t.windows, w)
	return w
}

// end closes a window at a generation, and reports whether a transaction in it is
// foreign. certain means that our process made at least one of them.
func (t *transactions) end(w *window, generation uint32, certain bool) (foreign bool) {
	w.until, w.open = generation, false
	if !certain {
		foreign = t.distrust(w)
	}
	t.forget()
	return foreign
}

// forget drops the windows of which all messages came.
func (t *transactions) forget() {
	t.windows = slices.DeleteFunc(t.windows, func(w *window) bool {
		return !w.open && (w.until == w.from || !after(w.until, t.heard))
	})
}

// distrust lets all transactions in a window count as foreign, and reports whether
// one of them touched something of ours.
func (t *transactions) distrust(w *window) (foreign bool) {
	if w.first != nil {
		foreign = t.enterForeign(w.first)
	}
	w.first, w.foreign = nil, true
	return foreign
}

// lost notes that messages are missing. Which process is ours in the windows so far
// cannot be found out any longer.
func (t *transactions) lost() {
	for _, w := range t.windows {
		t.distrust(w)
	}
	t.windows = slices.DeleteFunc(t.windows, func(w *window) bool { return !w.open })
	t.touched = Touched{More: true}
}

// met enters a transaction, and reports whether something of ours was touched by
// others. Messages come in the order of generations.
func (t *transactions) met(one transaction) (foreign bool) {
	t.heard = one.generation
	ours := false
	for _, w := range t.windows {
		if !w.contains(one.generation) || !slices.Contains(t.own, one.program) {
			continue
		}
		switch {
		case w.foreign:
		case w.first == nil:
			first := one
			first.touched.Elements = slices.Clip(first.touched.Elements)
			w.first, ours = &first, true
		case w.first.process == one.process:
			w.first.touched.add(one.touched)
			ours = true
		default:
			foreign = t.distrust(w) || foreign
		}
	}
	t.forget()
	return !ours && t.enterForeign(&one) || foreign
}

// enterForeign enters a transaction as foreign, and reports whether it touched something of ours.
func (t *transactions) enterForeign(one *transaction) bool {
	if !one.touched.Any() {
		return false
	}
	t.touched.add(one.touched)
	if name := one.name(); len(t.by) < mostBy && !slices.Contains(t.by, name) {
		t.by = append(t.by, name)
	}
	return true
}
