package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// writer commits Plans to one network namespace.
type writer struct {
	log         *slog.Logger // optional
	reader      *reader
	declaration declaration
	meter       *meter // nil if the rules do not count

	conn *conn.Conn
	// purgePending is set if affinity maps may still contain removed backends.
	purgePending bool

	monitor monitor.Handle
	nft     *monitor.NFT // the monitor; nil before Drift
}

func (w *writer) close() error {
	return errors.Join(w.monitor.Close(), w.meter.close(), w.conn.Close())
}

func (w *writer) commit(ctx context.Context, plan *Plan) (apply.Result, error) {
	for try := 1; ; try++ {
		result, err := w.send(ctx, plan)
		if _, stale := errors.AsType[*staleError](err); !stale || plan.want == nil {
			return result, err
		}
		if plan, err = w.replan(ctx, plan); err != nil {
			return apply.Result{}, err
		}
		plan.final = try == maxPlans
	}
}

// maxPlans is how often a commit plans, reading the tables again, if other programs may have changed
// them each time. After that it attributes rejections to Services. The next comparison retries them.
const maxPlans = 3

// replan reads the tables, which have changed since the Plan was made, and plans again.
func (w *writer) replan(ctx context.Context, plan *Plan) (*Plan, error) {
	have, err := w.reader.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	next := newPlan(have, plan.want())
	if plan.purgesAll {
		next.purgeAll()
	}
	return next, nil
}

// staleError is a rejection that may be due to an outdated Plan: an object to create exists, or an
// object to remove does not.
type staleError struct{ refused }

// send sends a Plan. If the kernel only keeps objects in use, it sends the rest.
func (w *writer) send(ctx context.Context, p *Plan) (apply.Result, error) {
	var out outcome
	for try := 0; ; try++ {
		entries, err := w.staleEntries(ctx, p)
		if err != nil {
			return out.result(), err
		}
		if try > 10 {
			entries = nil // they expire faster than they can be removed; finishPurge retries
		}
		b := newBatch(p, entries)
		var refusals []refused
		w.meter.around(ctx, w.conn, p, func() bool {
			refusals, err = w.transact(ctx, b)
			return err == nil && len(refusals) == 0
		})
		if err != nil { // the batch may nevertheless be in force
			w.purgePending = w.purgePending || p.purges()
			return out.result(), err
		}
		if len(refusals) == 0 {
			break
		}
		if all, more := p.unloaded(); more { // to find the Services of the rejected elements
			p = all
			continue
		}
		rest, err := out.without(p, refusals, !p.final)
		if err != nil || len(out.refused) > 0 {
			return out.result(), err
		}
		p = rest
	}
	result := out.result()
	if err := w.finishPurge(ctx, p); err != nil {
		w.purgePending = true
		return result, err
	}
	if p.purgesAll {
		w.purgePending = false
	}
	return result, nil
}

// maxNotified is the maximum number of changed elements in a batch with notifications. The kernel
// needs 25 MB for those of as many elements.
const maxNotified = 3000

// transact sends a batch; a large one without notifications.
func (w *writer) transact(ctx context.Context, b *batch) (refusals []refused, err error) {
	send := func() (done bool) {
		var all []conn.Refusal
		all, err = w.conn.Send(ctx, b.messages)
		refusals = b.refused(all)
		return err == nil && len(all) == 0
	}
	if w.nft == nil || b.elementCount() <= maxNotified {
		w.monitor.Own(func() (certain bool) { return send() && len(b.messages) > 0 })
		return refusals, err
	}
	w.nft.OwnMuted(func() (transactions uint32) {
		if send() {
			transactions = 1
		}
		return transactions
	})
	return refusals, err
}

// staleEntries returns the entries of affinity maps for removed backends.
func (w *writer) staleEntries(ctx context.Context, p *Plan) (stale, error) {
	all := stale{}
	for _, c := range ir.Present(p.families) {
		for _, purge := range c.purge {
			found, err := w.staleIn(ctx, c.family, purge)
			if err != nil {
				return nil, err
			}
			if len(found) > 0 {
				all[purge.set] = found
			}
		}
	}
	return all, nil
}

func (w *writer) staleIn(ctx context.Context, f ir.Family, p purge) ([]rules.Element, error) {
	s := *p.set
	s.Elements = nil
	_, err := w.conn.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(s.Name), func(b []byte) error {
		return codec.DecodeElements(b, &s, f, &codec.Comments{})
	})
	return slices.DeleteFunc(s.Elements, func(e rules.Element) bool {
		_, kept := p.keep[e.To.Addr()]
		return kept
	}), err
}

// finishPurge removes the entries that packets added between the reading of the maps and the
// commit. After the commit, rules add no entries for removed backends.
func (w *writer) finishPurge(ctx context.Context, p *Plan) error {
	for range 10 {
		entries, err := w.staleEntries(ctx, p)
		if err != nil || len(entries) == 0 {
			return err
		}
		b := &batch{}
		for _, c := range ir.Present(p.families) {
			for s, found := range entries {
				if c.owns(s) {
					for i := range found { // one per message, since some may expire meanwhile
						b.elements(c, unix.NFT_MSG_DELSETELEM, s, found[i:i+1], true)
					}
				}
			}
		}
		refusals, err := w.transact(ctx, b)
		if err != nil {
			return err
		}
		if len(refusals) == 0 {
			return nil
		}
	}
	return errors.New("affinity maps change too fast to be rid of backends that are gone")
}

// outcome collects the Services that the kernel refuses, and counts the chains and sets that it
// still uses.
type outcome struct {
	refused []apply.Refusal
	pending ir.PerFamily[int]
}

func (q *outcome) result() apply.Result {
	slices.SortFunc(q.refused, func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
	return apply.Result{Refused: q.refused, Pending: q.pending}
}

// without records the rejected Services, and returns the Plan without the removal of chains and sets
// that are still in use. Expired entries of affinity maps are ignored. A rejection of the batch itself is
// an error, and so is one that the rules do not cause, such as a lack of memory. If stale is set, it
// returns a staleError for rejections that may be due to an outdated Plan.
func (q *outcome) without(p *Plan, refusals []refused, stale bool) (*Plan, error) {
	services := map[ir.Name]bool{}
	drop := map[string]bool{} // chains and sets to keep
	for _, r := range refusals {
		switch {
		case r.Message == nil, errors.Is(r.Err, unix.ENOMEM), errors.Is(r.Err, unix.ENOBUFS), errors.Is(r.Err, unix.EINTR):
			return nil, r
		case r.purge && errors.Is(r.Err, unix.ENOENT):
		case r.removal && errors.Is(r.Err, unix.EBUSY):
			drop[r.object] = true
			*q.pending.At(r.change.family)++
		default:
			e := r.element()
			service := r.service(e)
			if stale && r.mayBeStale() {
				return nil, &staleError{r}
			}
			names := []ir.Name{service}
			if r.set != nil && rules.IsSources(r.set.Name) {
				names = r.change.servicesUsing(r.set.Name)
			}
			if len(names) == 0 || names[0] == (ir.Name{}) {
				return nil, r
			}
			for _, name := range names {
				if !services[name] {
					services[name] = true
					q.refused = append(q.refused, apply.Refusal{Service: name, Reason: r.reason(e)})
				}
			}
		}
	}
	return p.keeping(drop), nil
}

// mayBeStale reports whether the rejection may be due to an outdated Plan.
func (r refused) mayBeStale() bool {
	switch r.Type {
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_NEWSET, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWTABLE:
		return errors.Is(r.Err, unix.EEXIST)
	}
	return errors.Is(r.Err, unix.ENOENT)
}

// reason returns the kernel's error, with the element if it is known.
func (r refused) reason(e *rules.Element) error {
	if e == nil {
		return r
	}
	return fmt.Errorf("%s: %s: %w", r.object, r.set.KeyText(e.Key), r.Err)
}
