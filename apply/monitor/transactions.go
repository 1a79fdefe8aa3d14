package monitor

import (
	"fmt"
	"slices"
)

// transaction is a change of nf_tables that the kernel reported.
type transaction struct {
	generation uint32
	program    string // name of the program, truncated by the kernel to 15 bytes
	process    uint32 // its process ID
	touched    bool   // it changed something of ours
}

// transactions distinguishes foreign transactions from our own.
//
// The name of a program is no proof, since other programs run iptables-nft-restore, too. Neither is
// the process ID: the kernel reports that of the initial PID namespace, which a container does not
// see. Our own changes are therefore made in windows. In each window, one process (or one thread of
// this one) changes the rules at least once. If the kernel reports one process with one of our
// names in a window, that process is ours. If it reports two, one of them is foreign, and both
// count as foreign. That costs a comparison; the opposite choice could miss a required repair.
type transactions struct {
	own     []string  // names of the programs that write our rules
	windows []*window // windows whose messages may still arrive
	last    uint32    // generation of the last message, or at the start

	programs []string // the first programs that made foreign changes which were not returned yet
}

// window is the range of generations after from, up to until, in which one of our processes changed
// the rules.
type window struct {
	from, until uint32
	open        bool         // until is not known yet
	first       *transaction // changes by the first process with one of our names; nil if none
	foreign     bool         // all transactions in it count as foreign
}

// contains reports whether a generation is in the window.
func (w *window) contains(generation uint32) bool {
	return after(generation, w.from) && (w.open || !after(generation, w.until))
}

// after compares generations, which wrap around.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// maxPrograms bounds the number of reported programs.
const maxPrograms = 5

// name describes the process that made a transaction.
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

// end closes a window at a generation, and reports whether a transaction in it is foreign. certain
// is set if our process made at least one of them.
func (t *transactions) end(w *window, generation uint32, certain bool) (foreign bool) {
	w.until, w.open = generation, false
	if !certain {
		foreign = t.markForeign(w)
	}
	t.forget()
	return foreign
}

// forget drops closed windows whose messages have all arrived.
func (t *transactions) forget() {
	t.windows = slices.DeleteFunc(t.windows, func(w *window) bool {
		return !w.open && (w.until == w.from || !after(w.until, t.last))
	})
}

// markForeign marks all transactions in a window as foreign, and reports whether one of them
// changed something of ours.
func (t *transactions) markForeign(w *window) (foreign bool) {
	if w.first != nil {
		foreign = t.addForeign(w.first)
	}
	w.first, w.foreign = nil, true
	return foreign
}

// lost records that messages were missed. Our process in the current windows can no longer be
// identified.
func (t *transactions) lost() {
	for _, w := range t.windows {
		t.markForeign(w)
	}
	t.windows = slices.DeleteFunc(t.windows, func(w *window) bool { return !w.open })
}

// add adds a transaction, and reports whether a foreign one changed something of ours. Messages
// arrive in order of generation.
func (t *transactions) add(one transaction) (foreign bool) {
	t.last = one.generation
	ours := false
	for _, w := range t.windows {
		if !w.contains(one.generation) || !slices.Contains(t.own, one.program) {
			continue
		}
		switch {
		case w.foreign:
		case w.first == nil:
			first := one
			w.first, ours = &first, true
		case w.first.process == one.process:
			w.first.touched = w.first.touched || one.touched
			ours = true
		default:
			foreign = t.markForeign(w) || foreign
		}
	}
	t.forget()
	return !ours && t.addForeign(&one) || foreign
}

// addForeign adds a foreign transaction, and reports whether it changed something of ours.
func (t *transactions) addForeign(one *transaction) bool {
	if !one.touched {
		return false
	}
	if name := one.name(); len(t.programs) < maxPrograms && !slices.Contains(t.programs, name) {
		t.programs = append(t.programs, name)
	}
	return true
}
