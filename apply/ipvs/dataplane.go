package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// kernel is the interface to ip_vs, ipsets and kube-ipvs0 of one network namespace.
type kernel interface {
	read(ctx context.Context, f ir.Family) (*state, error)
	// dests returns the real servers of a virtual server, or none if that does not exist.
	dests(ctx context.Context, key ir.Match) (map[netip.AddrPort]dest, error)
	// counted returns how many connections each virtual server has scheduled.
	counted(ctx context.Context, f ir.Family) ([]apply.Value[ir.Match], error)
	// do executes requests in order, and continues after refused ones. After an error the state of
	// the remaining requests is unknown.
	do(ctx context.Context, requests []request) ([]failure, error)
	// listen reports foreign changes of the addresses of kube-ipvs0 to report, with an error when it
	// cannot receive them. The caller runs the returned function, which returns when ctx ends.
	listen(ctx context.Context, report func(error)) (run func(), err error)
	close() error
}

// failure is a request that the kernel refused.
type failure struct {
	at  int
	err error
}

// Errors of requests that are already fulfilled, or whose object does not exist or no longer
// exists.
var (
	errExists  = errors.New("exists already")
	errMissing = errors.New("does not exist")
	// errEnvironment is wrapped by errors that are not caused by the object: missing permissions or
	// memory, or a kernel without ip_vs.
	errEnvironment = errors.New("the kernel cannot")
)

// Dataplane is the ip_vs of one network namespace, with its ipsets, device and iptables rules.
type Dataplane struct {
	families []ir.Family
	rules    apply.Dataplane // iptables
	manage   bool            // --ipvs-manage-all
	readOnly bool
	drains   *drainer
	meter    *meter // nil if traffic is not counted

	found    ir.PerFamily[*state] // state from the last Read
	capacity ir.PerFamily[sizes]  // capacity of the sets, in elements
	applied  apply.Applied
	lowerers ir.PerFamily[*rules.Lowerer] // for the applied Programs; nil until needed

	background background
}

var (
	_ apply.Dataplane      = (*Dataplane)(nil)
	_ apply.LeftoverFinder = (*Dataplane)(nil)
	_ apply.Counted        = (*Dataplane)(nil)
	_ apply.Mender         = (*Dataplane)(nil)
	_ apply.Attributor     = (*Dataplane)(nil)
)

// newDataplane returns the Dataplane of a kernel.
func newDataplane(k kernel, tables apply.Dataplane, families []ir.Family, o apply.Options) *Dataplane {
	d := &Dataplane{
		families: families, rules: tables, manage: o.IPVS.ManageAll, readOnly: o.ReadOnly,
		drains: &drainer{log: o.Log, deadline: cmp.Or(o.IPVS.DrainDeadline, apply.DrainDeadline), now: time.Now, k: k, of: map[drainKey]drain{}},
	}
	if o.ServiceMetrics == apply.MetricsServices {
		d.meter = &meter{apply.NewMeter[ir.Match](o.Log), k, families, &d.applied}
	}
	return d
}

// Read reads the state of the node, in families that have iptables.
func (d *Dataplane) Read(ctx context.Context, want ir.Programs) error {
	found, err := d.readAll(ctx)
	if err != nil {
		return err
	}
	d.found = found
	for f, s := range ir.Present(found) {
		*d.capacity.At(f) = s.capacity()
	}
	return d.rules.Read(ctx, want)
}

func (d *Dataplane) readAll(ctx context.Context) (all ir.PerFamily[*state], err error) {
	d.drains.mu.Lock()
	defer d.drains.mu.Unlock()
	for _, f := range d.families {
		if *all.At(f), err = d.drains.k.read(ctx, f); err != nil {
			return all, err
		}
	}
	d.drains.observe(all)
	return all, nil
}

// capacity returns the capacity of the sets in elements; 0 for no limit.
func (s *state) capacity() sizes {
	of := sizes{}
	for name, set := range s.sets {
		of[name] = set.max
	}
	return of
}

// Plan compares the state that was read with the Programs.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	p := d.difference(d.found, d.applied.Programs(), want)
	p.rules, p.desired = d.rules.Plan(want), apply.Desired{Full: true, Programs: want}
	return p
}

// difference plans everything except the iptables rules.
func (d *Dataplane) difference(have ir.PerFamily[*state], applied, want ir.Programs) *Plan {
	p := &Plan{}
	d.drains.mu.Lock()
	known := d.drains.known()
	d.drains.mu.Unlock()
	if d.readOnly { // a drained real server does not affect packets; the next writer removes it
		known = func(ir.Match, netip.AddrPort) bool { return true }
	}
	for f, program := range ir.Present(want) {
		h := have.Of(f)
		if h == nil {
			continue
		}
		if times := h.times.overriddenBy(wantedTimeouts(&program.Node)); times != h.times && !slices.ContainsFunc(p.grow, func(r request) bool { return r.op == setTimeouts }) {
			p.grow = append(p.grow, request{op: setTimeouts, family: f, times: times, have: h.times.String()})
		}
		ours := map[ir.Match]bool{}
		if before := applied.Of(f); before != nil && before != program {
			for _, v := range rules.Lower(before).VirtualServers {
				ours[v.Key] = true
			}
		}
		p.add(fullChange(h, rules.Lower(program), policy{d.manage, ours, known}))
	}
	return p
}

// PlanShared plans the repair of the iptables rules, of which no Service decides any.
func (d *Dataplane) PlanShared(ctx context.Context, nodes ...ir.Programs) (apply.Plan, error) {
	tables, err := apply.PlanShared(ctx, d.rules, nodes...)
	return &Plan{rules: tables}, err
}

// PlanChanges plans the changed Services only.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
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
			p.add(partialChange(l, changes.Of(f), d.capacity.Of(f)))
		}
	}
	return p
}

// Commit executes a Plan. It adds sets, then virtual servers with their real servers, then rules,
// then addresses. It removes in the opposite order.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("ipvs cannot commit a %T", p)
	}
	d.drains.mu.Lock()
	defer d.drains.mu.Unlock()
	defer d.drains.publish()
	d.found = ir.PerFamily[*state]{} // outdated by the commit
	c := commit{drains: d.drains, rules: d.rules, refused: apply.Refusals{}}
	err := d.meter.measured(ctx, plan, &c)
	if err == nil && len(c.refused) == 0 {
		d.remember(plan)
	}
	c.result.Refused = c.refused.List()
	return c.result, err
}

// remember records a Plan as applied.
func (d *Dataplane) remember(p *Plan) {
	for f, of := range p.size.All() {
		for s, n := range of {
			if room := d.capacity.At(f); *room == nil {
				*room = sizes{s: rules.MaxElem(n)}
			} else if have, exists := (*room)[s]; !exists || have > 0 && have < n {
				(*room)[s] = rules.MaxElem(n)
			}
		}
	}
	d.applied.Take(p.desired)
	if p.desired.Full {
		d.lowerers = ir.PerFamily[*rules.Lowerer]{}
	}
	if d.meter != nil {
		d.meter.Forget(p.desired, &d.applied)
	}
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// Leftovers returns iptables rules of other modes and of kube-proxy.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	return apply.Leftovers(ctx, d.rules)
}

// Counters returns the draining backends, and the connections of virtual servers.
func (d *Dataplane) Counters() apply.Counters {
	c := apply.Counters{Draining: func() []apply.Drain {
		if list := d.drains.published.Load(); list != nil {
			return *list
		}
		return nil
	}}
	if d.meter != nil {
		c.Traffic = d.meter.traffic
	}
	return c
}

// Close ends the goroutines of Drift and closes the connections.
func (d *Dataplane) Close() error {
	d.background.close()
	return errors.Join(d.rules.Close(), d.drains.k.close())
}
