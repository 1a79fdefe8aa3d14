package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// kernel is what a Dataplane has to do with: ip_vs, ipsets and kube-ipvs0 of one
// network namespace.
type kernel interface {
	read(ctx context.Context, f ir.Family) (*state, error)
	// dests returns the real servers of a virtual server; none if that is not there.
	dests(ctx context.Context, key ir.Match) (map[destKey]dest, error)
	// do makes requests one after the other, and goes on where one is refused. An
	// error is for what came after that: nobody knows what of it was done.
	do(ctx context.Context, requests []request) ([]failure, error)
	close() error
}

// failure is a request that the kernel refused.
type failure struct {
	at  int
	err error
}

// Errors of requests that say no more than that it is done already, or that what
// it is about is there no longer, or not yet.
var (
	errExists  = errors.New("exists already")
	errMissing = errors.New("does not exist")
	// errEnvironment is wrapped by what is no fault of the object's: permissions,
	// memory, a kernel without ip_vs.
	errEnvironment = errors.New("the kernel cannot")
)

// Dataplane is the ip_vs of one network namespace, with the sets, the device and
// the rules of iptables that belong to it.
type Dataplane struct {
	log      *slog.Logger // nil: nobody is told
	families []ir.Family
	rules    apply.Dataplane // of iptables
	manage   bool            // --ipvs-manage-all
	lookOnly bool

	mu     sync.Mutex // held by what uses k: Read, Commit, and the sweep of drains
	k      kernel
	drains drains
	told   atomic.Pointer[[]apply.Drain] // what drains, for who does not wait for a commit

	reading kernel // a reading does not keep a commit waiting

	found    ir.PerFamily[*state] // by the last Read
	room     ir.PerFamily[sizes]  // how many elements sets can have
	applied  apply.Applied
	lowerers ir.PerFamily[*rules.Lowerer] // of what is applied; nil: to be made

	watching watching
}

var _ apply.Dataplane = (*Dataplane)(nil)

// newDataplane returns the Dataplane of a kernel, which it also reads by a
// second connection.
func newDataplane(k, reading kernel, tables apply.Dataplane, families []ir.Family, o apply.Options) *Dataplane {
	return &Dataplane{
		log: o.Log, families: families, rules: tables, manage: o.IPVS.ManageAll, lookOnly: o.ReadOnly, k: k, reading: reading,
		drains: newDrains(cmp.Or(o.IPVS.DrainDeadline, apply.DrainDeadline), time.Now),
	}
}

// Read reads what the node has, in families that have iptables.
func (d *Dataplane) Read(ctx context.Context) error {
	found, err := d.readOwn(ctx)
	if err != nil {
		return err
	}
	d.found = found
	for f, s := range ir.Present(found) {
		*d.room.At(f) = s.room()
	}
	return d.rules.Read(ctx)
}

// readOwn reads over the connection of commits, which the sweep uses, too.
func (d *Dataplane) readOwn(ctx context.Context) (ir.PerFamily[*state], error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, err := d.readAll(ctx, d.k)
	if err == nil {
		d.drains.found(found)
		d.tell()
	}
	return found, err
}

func (d *Dataplane) readAll(ctx context.Context, k kernel) (all ir.PerFamily[*state], err error) {
	for _, f := range d.families {
		if *all.At(f), err = k.read(ctx, f); err != nil {
			return all, err
		}
	}
	return all, nil
}

// room is how many elements the sets can have; 0: any number.
func (s *state) room() sizes {
	of := sizes{}
	for name, set := range s.sets {
		of[name] = set.max
	}
	return of
}

// Plan compares what was read with what the Programs want.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	p := d.difference(d.found, want)
	p.rules, p.desired = d.rules.Plan(want), apply.Desired{Full: true, Programs: want}
	return p
}

// difference plans all but the rules of iptables.
func (d *Dataplane) difference(have ir.PerFamily[*state], want ir.Programs) *Plan {
	p := &Plan{}
	d.mu.Lock()
	known := d.drains.known()
	d.mu.Unlock()
	if d.lookOnly { // one that has drained changes no packet's way: who writes next removes it
		known = func(ir.Match, netip.AddrPort) bool { return true }
	}
	for f, program := range ir.Present(want) {
		h := have.Of(f)
		if h == nil {
			continue
		}
		if times := h.times.over(wantedTimeouts(&program.Node)); times != h.times && !slices.ContainsFunc(p.grow, func(r request) bool { return r.op == setTimeouts }) {
			p.grow = append(p.grow, request{op: setTimeouts, family: f, times: times, have: h.times.String()})
		}
		p.add(whole(h, rules.Lower(program), policy{d.manage, known}))
	}
	return p
}

// PlanChanges plans from the Services that change alone.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	changes = d.applied.From(changes)
	if d.lowerers == (ir.PerFamily[*rules.Lowerer]{}) {
		for f, p := range ir.Present(d.applied.Programs()) {
			if slices.Contains(d.families, f) {
				*d.lowerers.At(f) = rules.NewLowerer(p)
			}
		}
	}
	p := &Plan{desired: apply.Desired{Changes: changes}, rules: d.rules.PlanChanges(changes)}
	for f, l := range ir.Present(d.lowerers) {
		if len(changes.Of(f)) > 0 {
			p.add(portion(l.Change(changes.Of(f)), d.room.Of(f)))
		}
	}
	return p
}

// Compare reads over a connection of its own. Backends that drain are no
// difference.
func (d *Dataplane) Compare(ctx context.Context) (apply.Plan, error) {
	found, err := d.readAll(ctx, d.reading)
	if err != nil {
		return nil, err
	}
	d.noteDrains(found)
	tables, err := d.rules.Compare(ctx)
	if err != nil {
		return nil, err
	}
	p := d.difference(found, d.applied.Programs())
	p.rules = tables
	return p, nil
}

// Commit carries a Plan out. Sets come first, then virtual servers with their
// real ones, then rules, then addresses; what goes does so the other way
// round.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("ipvs cannot commit a %T", p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.tell()
	d.found = ir.PerFamily[*state]{} // it will be another one
	c := commit{Dataplane: d, refused: apply.Refusals{}}
	err := c.carryOut(ctx, plan)
	if err == nil && len(c.refused) == 0 {
		d.remember(plan)
	}
	c.result.Refused = c.refused.List()
	return c.result, err
}

// remember notes that a Plan is in force.
func (d *Dataplane) remember(p *Plan) {
	for f, of := range p.size.All() {
		for s, n := range of {
			if room := d.room.At(f); *room == nil {
				*room = sizes{s: rules.MaxElem(n)}
			} else if have, there := (*room)[s]; !there || have > 0 && have < n {
				(*room)[s] = rules.MaxElem(n)
			}
		}
	}
	d.applied.Take(p.desired)
	if p.desired.Full {
		d.lowerers = ir.PerFamily[*rules.Lowerer]{}
	}
}

// Applied returns the Programs that the node had when that was last known.
func (d *Dataplane) Applied() ir.Programs { return d.applied.Programs() }

// Leftovers returns what other modes and kube-proxy left in iptables.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	return d.rules.Leftovers(ctx)
}

// Counters returns what drains.
func (d *Dataplane) Counters() apply.Counters {
	return apply.Counters{Draining: func() []apply.Drain {
		if told := d.told.Load(); told != nil {
			return *told
		}
		return nil
	}}
}

// Close ends what Drift began, and lets go of the kernel.
func (d *Dataplane) Close() error {
	d.watching.close()
	return errors.Join(d.rules.Close(), d.k.close(), d.reading.close())
}
