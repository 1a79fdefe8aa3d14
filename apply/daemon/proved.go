package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// proofTime is how long the proof of a Service may run: one may have more packets than that.
const proofTime = time.Second

var (
	errProofTime = fmt.Errorf("to prove the change takes longer than %s", proofTime)
	errPaused    = errors.New("the rules change")
)

// prover holds the rules of Services that changed against what they mean, one after the other,
// beside what else the daemon does: no sync waits for it, and it stands still while there is
// one. What a whole cluster means is not asked: that takes seconds.
type prover struct {
	prove func(context.Context, ir.Programs) []Unproved
	// told is told which Services were asked about, or are to be, of all that there are where
	// all is true; what was found of them, and how many are still to be asked about.
	told func(names map[ir.Name]bool, all bool, found []Unproved, left int)

	mu     sync.Mutex
	due    []*duty // in the order in which they are proved
	paused bool
	stop   context.CancelCauseFunc // of the proof that runs; nil: none does
	wake   chan struct{}           // has a token when there may be something to do
}

// duty is a Service to be proved.
type duty struct {
	name     ir.Name
	programs ir.Programs   // with that Service alone
	spent    time.Duration // that proofs of it, or of what it was before, ran and were stopped
}

func newProver(prove func(context.Context, ir.Programs) []Unproved, told func(map[ir.Name]bool, bool, []Unproved, int)) *prover {
	return &prover{prove: prove, told: told, wake: make(chan struct{}, 1)}
}

// pause stops the proof that runs, and lets none begin.
func (p *prover) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
	if p.stop != nil {
		p.stop(errPaused)
	}
}

// resume lets proofs go on.
func (p *prover) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = false
	select {
	case p.wake <- struct{}{}:
	default: // there is one
	}
}

// add takes what a sync put in force. A Service that is to be proved already is proved as it is now.
func (p *prover) add(w reconcile.Work) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.All {
		p.due = nil
	}
	names := map[ir.Name]bool{}
	for f, changes := range w.Changes.All() {
		for _, c := range changes {
			names[c.Name] = true
			if of := w.Programs.Of(f); of != nil {
				p.replace(f, of, c)
			}
		}
	}
	p.told(names, w.All, nil, len(p.due))
}

// replace puts a Service's newest version of a family in place of the one that is to be proved.
func (p *prover) replace(f ir.Family, node *ir.Program, c ir.Change) {
	d := &duty{name: c.Name}
	at := len(p.due)
	for i, known := range p.due {
		if known.name == c.Name {
			at, d.programs, d.spent = i, known.programs, known.spent
		}
	}
	*d.programs.At(f) = nil
	if c.New != nil {
		one := *node
		one.Services = []ir.Service{*c.New}
		*d.programs.At(f) = &one
	}
	switch gone := d.programs == (ir.Programs{}); {
	case at == len(p.due) && !gone:
		p.due = append(p.due, d)
	case at < len(p.due) && gone:
		p.due = append(p.due[:at:at], p.due[at+1:]...)
	case at < len(p.due):
		p.due[at] = d
	}
}

// next returns the next Service to be proved, and the context for that; nil if there is none now.
func (p *prover) next(ctx context.Context) (*duty, context.Context, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused || len(p.due) == 0 {
		return nil, nil, nil
	}
	d := p.due[0]
	ctx, p.stop = context.WithCancelCause(ctx)
	stop := p.stop
	ctx, cancel := context.WithTimeoutCause(ctx, proofTime-d.spent, errProofTime)
	return d, ctx, func() { cancel(); stop(nil) }
}

// run proves until ctx ends.
func (p *prover) run(ctx context.Context) error {
	for {
		d, of, release := p.next(ctx)
		if d == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
				continue
			}
		}
		began := time.Now()
		found := p.prove(of, d.programs)
		p.end(d, found, errors.Is(context.Cause(of), errPaused), time.Since(began))
		release()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// end takes what came of a proof that ran so long, unless the Service changed meanwhile.
func (p *prover) end(d *duty, found []Unproved, stopped bool, ran time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = nil
	if len(p.due) == 0 || p.due[0] != d {
		return
	}
	d.spent += ran
	switch {
	case stopped && d.spent < proofTime:
		return // it begins anew
	case stopped:
		found = []Unproved{{Want: AnyFate, Have: "not known: " + errProofTime.Error()}}
	}
	for i := range found {
		found[i].Service = d.name.String()
	}
	p.due = p.due[1:]
	p.told(map[ir.Name]bool{d.name: true}, false, found, len(p.due))
}

// proved tells what came of proofs.
func (d *daemon) proved(names map[ir.Name]bool, all bool, found []Unproved, left int) {
	for _, u := range found {
		d.metrics.ProofDifferences.Inc()
		if u.Want == AnyFate {
			d.log.Warn("the rules of a Service are not proved to do what is wanted", "service", u.Service, "packet", u.Packet, "why", u.Have)
		} else {
			d.log.Error("the rules of a Service do not do what is wanted", "service", u.Service, "packet", u.Packet, "want", u.Want, "have", u.Have)
		}
	}
	d.state.setUnproved(names, all, found, left)
}

// proving is a Source whose prover stands still from the moment at which a sync begins.
type proving struct {
	reconcile.Source
	prover *prover
}

func (s proving) Take(k reconcile.Kind) reconcile.Work {
	s.prover.pause()
	return s.Source.Take(k)
}
