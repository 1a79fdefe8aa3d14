package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/iptables"
	"github.com/proxyc/proxyc/ir"
	tables "github.com/proxyc/proxyc/render/iptables"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Dataplane is a Proxy with its iptables rules.
type Dataplane struct {
	apply.Drainer // the proxy

	rules    *iptables.Dataplane
	proxy    *Proxy
	readOnly bool
	log      *slog.Logger

	applied apply.Applied
	state   ir.PerFamily[*lowered]    // applied state; nil if unknown or empty
	kept    ir.PerFamily[rules.Ports] // proxy ports used by the rules that were read
}

var (
	_ apply.Dataplane        = (*Dataplane)(nil)
	_ apply.LeftoverFinder   = (*Dataplane)(nil)
	_ apply.Counted          = (*Dataplane)(nil)
	_ apply.ConcurrentReader = (*Dataplane)(nil)
	_ apply.Attributor       = (*Dataplane)(nil)
	_ apply.Drainer          = (*Dataplane)(nil)
)

// Open opens the Dataplane.
func Open(ctx context.Context, o apply.Options) (*Dataplane, error) {
	d := &Dataplane{readOnly: o.ReadOnly, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	var err error
	if d.rules, err = iptables.Open(ctx, o); err != nil {
		return nil, err
	}
	limits := fitLimits(DefaultLimits)
	d.proxy = NewProxy(Options{Limits: limits, DialTimeouts: rules.DialTimeouts(), Log: o.Log})
	d.Drainer = d.proxy
	if !o.ReadOnly {
		d.log.Info("proxying connections in this process", "connections", limits.Connections, "udpClients", limits.Sessions, "listeners", limits.Listeners)
	}
	return d, nil
}

// lowered is the rendered state of one family, by Service.
type lowered struct {
	node      ir.Node
	lower     *rules.Node
	ports     rules.Ports
	fragments map[ir.Name]rules.Fragment
}

func newLowered(p *ir.Program, ports rules.Ports) *lowered {
	l := &lowered{node: p.Node, ports: ports, fragments: make(map[ir.Name]rules.Fragment, len(p.Services))}
	l.lower = rules.LowerNode(p.Family, &l.node)
	for i := range p.Services {
		l.fragments[p.Services[i].Name] = l.lower.LowerService(&p.Services[i], ports)
	}
	return l
}

// ruleset returns the rules of all Services. others replaces the Fragments of some Services; nil
// removes one.
func (l *lowered) ruleset(others map[ir.Name]*rules.Fragment) *tables.Ruleset {
	names := slices.AppendSeq(slices.Collect(maps.Keys(l.fragments)), maps.Keys(others))
	slices.SortFunc(names, ir.Name.Compare)
	var all rules.Fragment
	for _, name := range slices.Compact(names) {
		if other, is := others[name]; !is {
			all.Append(l.fragments[name])
		} else if other != nil {
			all.Append(*other)
		}
	}
	return l.lower.Rules(&all)
}

// Read reads the rules. The listeners belong to this process.
func (d *Dataplane) Read(ctx context.Context, _ ir.Programs) error {
	return apply.ReadNow(ctx, d)
}

// ReadConcurrently implements apply.ConcurrentReader.
func (d *Dataplane) ReadConcurrently(ctx context.Context) (use func(), err error) {
	read, err := d.rules.ReadConcurrently(ctx)
	return func() {
		read()
		for f, r := range ir.Present(d.rules.Found().PerFamily) {
			*d.kept.At(f) = rules.PortsOf(r)
		}
	}, err
}

// Plan compares the rules that were read and the open listeners with the Programs. Service ports
// keep their proxy ports.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	p := &Plan{Desired: apply.Desired{Full: true, Programs: want}, dataplane: d, have: d.rules.Found()}
	families := d.rules.Families()
	for f, program := range ir.Present(want) {
		if !slices.Contains(families, f) {
			continue
		}
		kept := rules.Ports{}
		maps.Copy(kept, d.kept.Of(f))
		for _, k := range d.proxy.Keys() {
			if at, ok := d.proxy.At(k); ok && k.Family == f {
				kept[k.Port] = at.Port()
			}
		}
		ports, unserved := rules.AssignPorts(program, kept)
		next := newLowered(program, ports)
		fp := &familyPlan{family: f, next: next, unserved: unserved}
		wanted := map[Key]bool{}
		for _, x := range next.fragments {
			for i := range x.Listeners {
				wanted[KeyOf(f, &x.Listeners[i])] = true
				fp.add(d, &x.Listeners[i])
			}
		}
		for _, k := range d.proxy.Keys() {
			if k.Family == f && !wanted[k] {
				fp.addRemoved(d, k)
			}
		}
		fp.sort()
		*p.families.At(f) = fp
	}
	p.difference()
	return p
}

// PlanChanges plans the changed Services only. If only endpoints change, it does not render rules.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	p := &Plan{Desired: apply.Desired{Changes: changes}, dataplane: d}
	for f, now := range ir.Present(d.state) {
		if of := changes.Of(f); len(of) > 0 {
			fp := planChanges(d, f, now, of)
			fp.sort()
			*p.families.At(f) = fp
			if fp.rulesDiffer(now) {
				*p.have.At(f) = now.ruleset(nil)
			}
		}
	}
	p.difference()
	return p
}

// Commit opens listeners, writes the rules that redirect to them, and closes listeners without
// rules. A Service whose listener cannot be opened is refused.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("userspace cannot commit a %T", p)
	}
	d.kept = ir.PerFamily[rules.Ports]{}
	plan, refused := d.open(plan)
	if len(refused) > 0 {
		return apply.Result{Refused: refused}, nil
	}
	result, err := d.rules.Commit(ctx, plan.rules)
	if err != nil || len(result.Refused) > 0 {
		return result, err // listeners without rules are harmless; the next Plan uses or closes them
	}
	d.remember(plan)
	for _, f := range ir.Present(plan.families) {
		for _, s := range f.removed {
			d.proxy.CloseListener(s.Key)
		}
		for _, l := range f.listeners {
			if err := d.proxy.Reserve(f.family, l.Port, l.Reserved); err != nil {
				d.log.Warn("another program uses a port of a Service", "service", l.Port.Service.String(), "port", l.Port.String(), "err", err)
			}
		}
	}
	return result, nil
}

// open opens and updates the listeners of a Plan. If one is on another port than planned, it returns a
// Plan with adapted rules.
func (d *Dataplane) open(p *Plan) (revised *Plan, refused []apply.Refusal) {
	own := *p
	again := false
	for family, f := range ir.Present(p.families) {
		out := apply.Refusals{}
		for _, name := range f.unserved {
			first, last, _ := rules.ProxyPorts(&f.next.node)
			err := fmt.Errorf("no proxy port is left for %s: portRange has %d-%d", name, first, last)
			out.Add(name.Service, err)
		}
		if u := f.next.node.Userspace; u != nil {
			d.proxy.SetUDPIdle(u.UDPIdleTimeout)
		}
		moved := rules.Ports{}
		var opened []Key // in this call
		for _, l := range f.listeners {
			if out[l.Port.Service] != nil {
				continue
			}
			_, before := d.proxy.At(KeyOf(f.family, l))
			at, err := d.proxy.Open(f.family, l, f.alternatives(l))
			if err != nil {
				out.Add(l.Port.Service, fmt.Errorf("its listener: %w", err))
				for _, k := range opened { // free its port for others
					if k.Port.Service == l.Port.Service {
						d.proxy.CloseListener(k)
					}
				}
				continue
			}
			if !before {
				opened = append(opened, KeyOf(f.family, l))
			}
			if at.Port() != l.Listen.Port() {
				d.log.Info("another program uses a proxy port", "port", l.Port.String(), "wanted", l.Listen.Port(), "got", at.Port())
				moved[l.Port] = at.Port()
			}
		}
		if len(moved) > 0 {
			again = true
			*own.families.At(family) = f.revised(moved, p.service)
		}
		refused = append(refused, out.List()...)
	}
	if !again {
		return p, refused
	}
	own.difference()
	return &own, refused
}

// remember records a Plan as applied.
func (d *Dataplane) remember(p *Plan) {
	d.applied.Take(p.Desired)
	for f, of := range ir.Present(p.families) {
		if p.Full {
			*d.state.At(f) = of.next
			continue
		}
		now := d.state.Of(f)
		for name, x := range of.others {
			for _, l := range now.fragments[name].Listeners {
				delete(now.ports, l.Port)
			}
			if x == nil {
				delete(now.fragments, name)
				continue
			}
			now.fragments[name] = *x
			for _, l := range x.Listeners {
				now.ports[l.Port] = l.Listen.Port()
			}
		}
	}
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// ChangedBy returns the programs that changed the rules since the last call.
func (d *Dataplane) ChangedBy() []string { return apply.ChangedBy(d.rules) }

// Drift reports changes of the rules.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) { return d.rules.Drift(ctx) }

// Leftovers returns iptables rules of kube-proxy, in both variants, and those of other modes in the
// unused variant. Plan adopts those in the used one.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	return apply.Leftovers(ctx, d.rules)
}

// Counters returns the counters of the Proxy.
func (d *Dataplane) Counters() apply.Counters { return apply.Counters{Proxied: d.proxy.Counts} }

// closeTimeout bounds the removal of the rules.
const closeTimeout = 5 * time.Second

// Close removes the rules of Services, so that none redirects to a closed port, and closes the
// listeners. Connections continue until Drain.
func (d *Dataplane) Close() error {
	if d.readOnly {
		return d.rules.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := removeServiceRules(ctx, d.rules, d.state)
	d.proxy.CloseListeners()
	return errors.Join(err, d.rules.Close())
}

// removeServiceRules removes the rules of Services. It keeps the chains, whose rules keep existing
// connections tracked.
func removeServiceRules(ctx context.Context, in *iptables.Dataplane, state ir.PerFamily[*lowered]) error {
	found, err := in.Rulesets(ctx)
	if err != nil {
		return err
	}
	var have, idle tables.Rulesets
	for f, r := range ir.Present(found.PerFamily) {
		ours := rules.Chains(r)
		if now := state.Of(f); now != nil && len(ours.Nat.Chains) > 0 { // otherwise they are of another mode
			*have.At(f), *idle.At(f) = ours, now.lower.Rules(&rules.Fragment{})
		}
	}
	_, err = in.Commit(ctx, in.Difference(have, idle))
	return err
}
