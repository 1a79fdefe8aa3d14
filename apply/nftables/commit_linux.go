package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Target is the nf_tables of one network namespace. Its methods may be called
// from several goroutines; a Read does not keep a Commit waiting.
type Target struct {
	Log *slog.Logger // of what is odd; nil: nowhere

	mu sync.Mutex
	c  *conn

	reading sync.Mutex
	r       *conn
	others  *listener
}

var _ apply.Target[rules.Tables] = (*Target)(nil)

// Open connects to the network namespace of the calling thread.
func Open() (*Target, error) { return OpenIn(0) }

// OpenIn connects to the network namespace behind a file descriptor.
func OpenIn(netns int) (*Target, error) {
	c, err := dial(netns)
	if err != nil {
		return nil, err
	}
	t := &Target{c: c}
	if t.r, err = dial(netns); err == nil {
		t.others, err = dialListener(netns)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Close closes the connections.
func (t *Target) Close() error {
	err := t.c.nl.Close()
	if t.r != nil {
		err = errors.Join(err, t.r.nl.Close())
	}
	if t.others != nil {
		err = errors.Join(err, t.others.nl.Close())
	}
	return err
}

// Plan compares.
func (t *Target) Plan(have, want rules.Tables) apply.Plan { return newPlan(have, want) }

// Commit sends a Plan in one batch for both families. Where the kernel refuses
// parts of some Services, these Services are left as they are and the rest is
// sent. Affinity maps forget the backends that are gone in the same batch.
func (t *Target) Commit(ctx context.Context, p apply.Plan) error {
	plan, ok := p.(*Plan)
	if !ok {
		return fmt.Errorf("nftables cannot commit a %T", p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	plan.kept = map[ir.Family]int{}
	err := t.commit(ctx, plan)
	var stale *staleError
	if errors.As(err, &stale) && plan.want != nil {
		// The node is not what the plan began with. It is read and planned anew, once.
		have, err := t.Read(ctx)
		if err != nil {
			return err
		}
		again := newPlan(have, *plan.want)
		again.again, again.kept = true, plan.kept
		return t.commit(ctx, again)
	}
	return err
}

// staleError is a refusal for which the kernel's state can be the reason: what
// was to be made is there, or what was to be removed is not.
type staleError struct{ refused }

// commit sends the plan, and, when parts are refused, what is left without them.
func (t *Target) commit(ctx context.Context, p *Plan) error {
	out := quarantine{kept: p.kept}
	for try := 0; ; try++ {
		entries, err := t.staleEntries(ctx, p)
		if err != nil {
			return err
		}
		if try > 10 {
			entries = nil // they expire faster than they are removed: forget comes back to them
		}
		refusals, err := t.c.send(ctx, newBatch(p, entries))
		if err != nil {
			return err
		}
		if len(refusals) == 0 {
			break
		}
		if p, err = out.without(p, refusals); err != nil {
			return err
		}
	}
	if err := t.forget(ctx, p); err != nil {
		return err
	}
	return out.error()
}

// staleEntries finds what affinity maps remember of backends that go.
func (t *Target) staleEntries(ctx context.Context, p *Plan) (stale, error) {
	all := stale{}
	for _, c := range ir.Present(p.families) {
		for _, purge := range c.purge {
			gone, err := t.staleIn(ctx, c.family, purge)
			if err != nil {
				return nil, err
			}
			if len(gone) > 0 {
				all[purge.set] = gone
			}
		}
	}
	return all, nil
}

func (t *Target) staleIn(ctx context.Context, f ir.Family, p purge) ([]rules.Element, error) {
	s := *p.set
	s.Elements = nil
	_, err := t.c.dump(ctx, getElem, nfFamily(f), encodeNamed(2, s.Name), func(b []byte) error {
		return decodeElements(b, &s, f, (&notes{}).frontend)
	})
	return slices.DeleteFunc(s.Elements, func(e rules.Element) bool {
		_, stays := p.keep[e.To.Addr()]
		return stays
	}), err
}

// forget removes what connections under way remembered between the reading of
// the maps and the commit. After the commit nothing remembers what is gone.
func (t *Target) forget(ctx context.Context, p *Plan) error {
	for range 10 {
		entries, err := t.staleEntries(ctx, p)
		if err != nil || len(entries) == 0 {
			return err
		}
		b := &batch{}
		for _, c := range ir.Present(p.families) {
			for s, gone := range entries {
				if c.owns(s) {
					for i := range gone { // one by one: some may expire meanwhile
						b.elements(c, delElem, s, gone[i:i+1], true)
					}
				}
			}
		}
		refusals, err := t.c.send(ctx, b)
		if err != nil {
			return err
		}
		if len(refusals) == 0 {
			return nil
		}
	}
	return errors.New("affinity maps change too fast to be rid of backends that are gone")
}

// quarantine collects the Services that the kernel refuses.
type quarantine struct {
	refusals []apply.Refusal
	kept     map[ir.Family]int // chains and sets that it does not let go
}

func (q *quarantine) error() error {
	if len(q.refusals) == 0 {
		return nil
	}
	slices.SortFunc(q.refusals, func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
	return &apply.Quarantine{Refused: q.refusals}
}

// without gives the plan without what was refused: entries of affinity maps
// that expired meanwhile are no matter, nor are chains and sets that something
// still holds to; of other things, the whole Service is left as it is.
func (q *quarantine) without(p *Plan, refusals []refused) (*Plan, error) {
	services := map[ir.Name]bool{}
	drop := map[string]bool{} // chains and sets not to remove
	for _, r := range refusals {
		switch {
		case r.message == nil:
			return nil, r
		case r.purge && errors.Is(r.err, unix.ENOENT):
		case r.removal && errors.Is(r.err, unix.EBUSY):
			drop[r.object] = true
			q.kept[r.change.family]++
		default:
			e := r.element(r.offset)
			service := r.service(e)
			if len(q.refusals) == 0 && !p.again && r.mayBeStale() {
				return nil, &staleError{r}
			}
			if service == (ir.Name{}) {
				return nil, r
			}
			if !services[service] {
				services[service] = true
				q.refusals = append(q.refusals, apply.Refusal{Service: service, Reason: r.reason(e)})
			}
		}
	}
	return p.without(services, drop), nil
}

// mayBeStale tells whether the kernel's state can be the reason.
func (r refused) mayBeStale() bool {
	switch r.typ {
	case newElem, newSet, newChain, newTable:
		return errors.Is(r.err, unix.EEXIST)
	}
	return errors.Is(r.err, unix.ENOENT)
}

// reason is the kernel's, with the element if it is known.
func (r refused) reason(e *rules.Element) error {
	if e == nil {
		return r
	}
	return fmt.Errorf("%s: %s: %w", r.object, r.set.KeyText(e.Key), r.err)
}
