package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Commit sends a Plan in one batch for both families. Where the kernel refuses
// parts of some Services, nothing of these is sent, but the rest is: what the
// kernel had of them goes with the next Plan. Affinity maps forget the backends
// that are gone in the same batch; where that must be finished afterwards and
// fails, all else is in force, and the next Plan comes back to it.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("nftables cannot commit a %T", p)
	}
	d.have = state{} // it will be another one
	var result apply.Result
	var err error
	if !plan.Empty() {
		result, err = d.commit(ctx, plan)
	}
	if err == nil && len(result.Refused) == 0 {
		d.remember(plan)
	}
	return result, err
}

func (d *Dataplane) commit(ctx context.Context, plan *Plan) (apply.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commits.Add(1)
	defer d.commits.Add(1)
	for try := 1; ; try++ {
		result, err := d.send(ctx, plan)
		if _, stale := errors.AsType[*staleError](err); !stale || plan.want == nil {
			return result, err
		}
		if plan, err = d.replan(ctx, plan); err != nil {
			return apply.Result{}, err
		}
		plan.final = try == maxPlans
	}
}

// maxPlans is how often a commit reads the node and plans again, if others change
// what it is about each time. After that it counts what is refused as the fault of
// its Service: the next comparison tries it again.
const maxPlans = 3

// replan reads the node, which is not what the plan began with.
func (d *Dataplane) replan(ctx context.Context, plan *Plan) (*Plan, error) {
	generation, err := d.c.Generation(ctx)
	if err != nil {
		return nil, err
	}
	have, err := d.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	again := newPlan(have, plan.want())
	again.generation = generation
	if plan.purgesAll {
		again.purgeAll()
	}
	return again, nil
}

// mayBeStale reports whether the kernel's state can be the reason for refusals: some
// table changed since the plan was made, or may have.
func (d *Dataplane) mayBeStale(ctx context.Context, p *Plan, refusals []refused) (bool, error) {
	if p.final || !slices.ContainsFunc(refusals, refused.mayBeStale) {
		return false, nil
	}
	if p.generation == 0 {
		return true, nil
	}
	generation, err := d.c.Generation(ctx)
	return generation != p.generation, err
}

// staleError is a refusal for which the kernel's state can be the reason: what
// was to be made is there, or what was to be removed is not.
type staleError struct{ refused }

// send sends the plan, and, when parts are refused, what is left without them.
func (d *Dataplane) send(ctx context.Context, p *Plan) (apply.Result, error) {
	var out quarantine
	for try := 0; ; try++ {
		entries, err := d.staleEntries(ctx, p)
		if err != nil {
			return out.result(), err
		}
		if try > 10 {
			entries = nil // they expire faster than they are removed: forget comes back to them
		}
		refusals, err := d.transact(ctx, newBatch(p, entries))
		if err != nil { // the batch may be in force for all that
			d.purgePending = d.purgePending || p.purges()
			return out.result(), err
		}
		if len(refusals) == 0 {
			break
		}
		if all, more := p.unloaded(); more { // to tell of which Services the refused elements are
			p = all
			continue
		}
		stale, err := d.mayBeStale(ctx, p, refusals)
		if err != nil {
			return out.result(), err
		}
		rest, err := out.without(p, refusals, stale)
		if err != nil {
			return out.result(), err
		}
		p = rest
	}
	result := out.result()
	if err := d.finishPurge(ctx, p); err != nil {
		d.purgePending = true
		return result, err
	}
	if p.purgesAll && len(result.Refused) == 0 { // what is refused keeps its maps as they are
		d.purgePending = false
	}
	return result, nil
}

// maxNotified is how many elements a batch changes of which the kernel is let tell us: while it commits
// these, what it tells takes 25 MB.
const maxNotified = 3000

// transact sends a batch, a large one apart from what listens to others.
func (d *Dataplane) transact(ctx context.Context, b *batch) (refusals []refused, err error) {
	send := func() (done bool) {
		var all []conn.Refusal
		all, err = d.c.Send(ctx, b.messages)
		refusals = b.refused(all)
		return err == nil && len(all) == 0
	}
	if d.nft == nil || b.elementCount() <= maxNotified {
		d.monitor.Own(func() (certain bool) { return send() && len(b.messages) > 0 })
		return refusals, err
	}
	d.nft.OwnMuted(func() (transactions uint32) {
		if send() {
			transactions = 1
		}
		return transactions
	})
	return refusals, err
}

// staleEntries finds what affinity maps remember of backends that go.
func (d *Dataplane) staleEntries(ctx context.Context, p *Plan) (stale, error) {
	all := stale{}
	for _, c := range ir.Present(p.families) {
		for _, purge := range c.purge {
			gone, err := d.staleIn(ctx, c.family, purge)
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

func (d *Dataplane) staleIn(ctx context.Context, f ir.Family, p purge) ([]rules.Element, error) {
	s := *p.set
	s.Elements = nil
	_, err := d.c.Dump(ctx, unix.NFT_MSG_GETSETELEM, codec.Family(f), codec.ElementsIn(s.Name), func(b []byte) error {
		return codec.DecodeElements(b, &s, f, &codec.Comments{})
	})
	return slices.DeleteFunc(s.Elements, func(e rules.Element) bool {
		_, stays := p.keep[e.To.Addr()]
		return stays
	}), err
}

// finishPurge removes what connections under way remembered between the reading of
// the maps and the commit. After the commit nothing remembers what is gone.
func (d *Dataplane) finishPurge(ctx context.Context, p *Plan) error {
	for range 10 {
		entries, err := d.staleEntries(ctx, p)
		if err != nil || len(entries) == 0 {
			return err
		}
		b := &batch{}
		for _, c := range ir.Present(p.families) {
			for s, gone := range entries {
				if c.owns(s) {
					for i := range gone { // one by one: some may expire meanwhile
						b.elements(c, unix.NFT_MSG_DELSETELEM, s, gone[i:i+1], true)
					}
				}
			}
		}
		refusals, err := d.transact(ctx, b)
		if err != nil {
			return err
		}
		if len(refusals) == 0 {
			return nil
		}
	}
	return errors.New("affinity maps change too fast to be rid of backends that are gone")
}

// quarantine collects the Services that the kernel refuses, and counts the
// chains and sets that it still uses.
type quarantine struct {
	refused []apply.Refusal
	busy    ir.PerFamily[int]
}

func (q *quarantine) result() apply.Result {
	slices.SortFunc(q.refused, func(a, b apply.Refusal) int { return a.Service.Compare(b.Service) })
	return apply.Result{Refused: q.refused, Busy: q.busy}
}

// without returns the plan without what was refused: entries of affinity maps
// that expired meanwhile are no matter, nor are chains and sets that something
// still holds to; of other things, nothing of the whole Service is sent. If stale,
// a refusal for which the kernel's state can be the reason is a staleError.
func (q *quarantine) without(p *Plan, refusals []refused, stale bool) (*Plan, error) {
	services := map[ir.Name]bool{}
	drop := map[string]bool{} // chains and sets not to remove
	for _, r := range refusals {
		switch {
		case r.Message == nil:
			return nil, r
		case r.purge && errors.Is(r.Err, unix.ENOENT):
		case r.removal && errors.Is(r.Err, unix.EBUSY):
			drop[r.object] = true
			*q.busy.At(r.change.family)++
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
	return p.withoutServices(services, drop), nil
}

// mayBeStale reports whether the kernel's state can be the reason.
func (r refused) mayBeStale() bool {
	switch r.Type {
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_NEWSET, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWTABLE:
		return errors.Is(r.Err, unix.EEXIST)
	}
	return errors.Is(r.Err, unix.ENOENT)
}

// reason is the kernel's, with the element if it is known.
func (r refused) reason(e *rules.Element) error {
	if e == nil {
		return r
	}
	return fmt.Errorf("%s: %s: %w", r.object, r.set.KeyText(e.Key), r.Err)
}
