// Package proofs compares the rules of changed Services with the IR while the daemon runs.
package proofs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/ir"
)

// proofTime is how long the proof of a Service may run: one may have more packets than that.
const proofTime = time.Second

var (
	errProofTime = fmt.Errorf("the proof takes longer than %s", proofTime)
	errPaused    = errors.New("the rules change")
)

// Proofs compares the rules of each changed Service with the IR, one Service at a time. No sync
// waits for a proof, and no proof runs during a sync. The Services of a whole cluster are not
// proved, since that takes seconds. The methods of a nil value do nothing.
type Proofs struct {
	prove func(context.Context, ir.Programs) []status.Unproved
	log   *slog.Logger
	count func() // called for each difference

	mu       sync.Mutex
	due      []*duty // in order of proof
	paused   bool
	stop     context.CancelCauseFunc // of the running proof; nil without one
	wake     chan struct{}           // receives a token when there may be work
	unproved []status.Unproved       // sorted by Service
}

// duty is a Service to be proved.
type duty struct {
	name     ir.Name
	programs ir.Programs   // with only that Service
	spent    time.Duration // by stopped proofs of this and earlier versions
}

func New(prove func(context.Context, ir.Programs) []status.Unproved, log *slog.Logger, count func()) *Proofs {
	if prove == nil {
		return nil
	}
	return &Proofs{prove: prove, log: log, count: count, wake: make(chan struct{}, 1)}
}

// Pause stops the running proof, and starts none until Resume is called.
func (p *Proofs) Pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
	if p.stop != nil {
		p.stop(errPaused)
	}
}

// Resume ends a pause.
func (p *Proofs) Resume() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = false
	select {
	case p.wake <- struct{}{}:
	default: // a token is already pending
	}
}

// Add adds the Services of a sync. A Service that is already waiting is replaced by its current
// version.
func (p *Proofs) Add(w reconcile.Work) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.All {
		p.due, p.unproved = nil, nil
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
	p.forget(names)
}

// replace replaces a waiting Service by its newest version in a family.
func (p *Proofs) replace(f ir.Family, node *ir.Program, c ir.Change) {
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

// next returns the next Service to prove, with a context; nil if there is none.
func (p *Proofs) next(ctx context.Context) (*duty, context.Context, func()) {
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

// Run proves until ctx ends.
func (p *Proofs) Run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	for ctx.Err() == nil {
		if p.step(ctx) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		}
	}
	return nil
}

// step proves one Service. It returns false if there is none.
func (p *Proofs) step(ctx context.Context) bool {
	d, of, release := p.next(ctx)
	if d == nil {
		return false
	}
	defer release()
	began := time.Now()
	found := p.prove(of, d.programs)
	for _, u := range p.end(d, found, errors.Is(context.Cause(of), errPaused), time.Since(began)) {
		p.record(u) // without the lock, since writing a log may block
	}
	return true
}

// end stores and returns the differences that a proof found, unless the Service changed meanwhile.
// ran is the duration of the proof.
func (p *Proofs) end(d *duty, found []status.Unproved, stopped bool, ran time.Duration) []status.Unproved {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = nil
	if len(p.due) == 0 || p.due[0] != d {
		return nil
	}
	d.spent += ran
	switch {
	case stopped && d.spent < proofTime:
		return nil // restart it
	case stopped:
		found = []status.Unproved{{Want: status.AnyFate, Have: "not known: " + errProofTime.Error()}}
	}
	p.due = p.due[1:]
	p.forget(map[ir.Name]bool{d.name: true})
	for i := range found {
		found[i].Service = d.name.String()
	}
	p.unproved = append(p.unproved, found...)
	slices.SortStableFunc(p.unproved, func(a, b status.Unproved) int { return strings.Compare(a.Service, b.Service) })
	return found
}

// forget removes the differences of Services. It copies the list, since a Status may share it.
func (p *Proofs) forget(services map[ir.Name]bool) {
	p.unproved = slices.DeleteFunc(slices.Clone(p.unproved), func(u status.Unproved) bool {
		namespace, name, _ := strings.Cut(u.Service, "/")
		return services[ir.Name{Namespace: namespace, Name: name}]
	})
}

// record logs and counts a difference.
func (p *Proofs) record(u status.Unproved) {
	p.count()
	if u.Want == status.AnyFate {
		p.log.Warn("the rules of a Service could not be proved to match the IR", "service", u.Service, "packet", u.Packet, "why", u.Have)
	} else {
		p.log.Error("the rules of a Service do not match the IR", "service", u.Service, "packet", u.Packet, "want", u.Want, "have", u.Have)
	}
}

// Report adds the unproved Services to a Status.
func (p *Proofs) Report(st *status.Status) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st.Unproved, st.Proving = p.unproved, len(p.due)
}

// Source is a reconcile.Source that pauses proofs when a sync starts.
type Source struct {
	reconcile.Source
	Proofs *Proofs
}

func (s Source) Take(k reconcile.Kind) reconcile.Work {
	s.Proofs.Pause()
	return s.Source.Take(k)
}
