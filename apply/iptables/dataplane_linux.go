package iptables

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Dataplane is the iptables of the process's network namespace.
type Dataplane struct {
	*tables
	lowering Lowering
	have     rules.Rulesets // from the last Read
	applied  apply.Applied
	lowerers ir.PerFamily[Lowerer]   // for the applied Programs; nil until needed
	meter    *apply.Meter[counterID] // nil if traffic is not counted
}

var (
	_ apply.Dataplane        = (*Dataplane)(nil)
	_ apply.LeftoverFinder   = (*Dataplane)(nil)
	_ apply.Counted          = (*Dataplane)(nil)
	_ apply.ConcurrentReader = (*Dataplane)(nil)
	_ apply.Mender           = (*Dataplane)(nil)
	_ apply.Attributor       = (*Dataplane)(nil)
)

// Lowering renders Programs as tables. Modes that use iptables among other things have their own.
type Lowering struct {
	// All returns the tables for the Programs of a node.
	All func(ir.Programs) rules.Rulesets
	// Changes returns the Lowerer for changes of a Program.
	Changes func(*ir.Program) Lowerer
}

// Lowerer renders changes of a Program, like rules.Lowerer.
type Lowerer interface {
	Change([]ir.Change) (have, want *rules.Ruleset)
	Size() [2]int
}

// ModeIPTables is the Lowering of mode iptables.
var ModeIPTables = Lowering{
	All:     rules.LowerAll,
	Changes: func(p *ir.Program) Lowerer { return rules.NewLowerer(p) },
}

// Open determines the variant that the node uses, the version of the tools, and the families that
// the kernel supports. The default of LockTimeout is 5 s.
func Open(ctx context.Context, o apply.Options) (*Dataplane, error) {
	return OpenWith(ctx, ModeIPTables, o)
}

// OpenWith is like Open for the rules of another mode.
func OpenWith(ctx context.Context, lowering Lowering, o apply.Options) (*Dataplane, error) {
	t := &tools{Variant: Variant(o.IPTables), wait: cmp.Or(o.LockTimeout, 5*time.Second), run: withDeadline(run.To, toolDeadline)}
	missing, err := t.detect(ctx)
	if err != nil {
		return nil, err
	}
	if o.Log != nil {
		o.Log.Info("using iptables", "variant", t.Variant)
		for _, why := range missing {
			o.Log.Warn("the kernel lacks a family: its Services get no rules", "err", why)
		}
	}
	d := &Dataplane{tables: &tables{tools: t, maxNFT: maxRulesNFT, log: o.Log, readOnly: o.ReadOnly}, lowering: lowering}
	if o.ServiceMetrics == apply.MetricsServices {
		d.meter = apply.NewMeter[counterID](o.Log)
	}
	return d, nil
}

// Read reads our chains in the tables filter and nat.
func (d *Dataplane) Read(ctx context.Context, _ ir.Programs) error {
	return apply.ReadNow(ctx, d)
}

// ReadConcurrently needs no lock. It may remove foreign native rules from own chains, as a read does.
func (d *Dataplane) ReadConcurrently(ctx context.Context) (use func(), err error) {
	have, err := d.Rulesets(ctx)
	return func() { d.have = have }, err
}

// Found returns the result of the last Read, for Difference.
func (d *Dataplane) Found() rules.Rulesets { return d.have }

// Plan compares the state that was read with the Programs.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	p := d.Difference(d.have, d.lowering.All(want))
	p.desired = apply.Desired{Full: true, Programs: want}
	return p
}

// Difference plans the changes from one state to another. It omits families that the kernel lacks.
// The plan contains only the differences, since it exists while
// the tools run, which need memory, too.
func (d *Dataplane) Difference(have, want rules.Rulesets) *Plan {
	var old, now rules.Rulesets
	var sizes ir.PerFamily[[2]int]
	for f, w := range ir.Present(want.PerFamily) {
		if slices.Contains(d.families, f) {
			*sizes.At(f) = w.Size()
			*old.At(f), *now.At(f) = differing(family(have, f), w)
		}
	}
	return newPlan(old, now).sized(sizes)
}

// PlanShared plans the repair of chains and jumps that no Service decides. From a chain with rules of
// Services, which their comments name, it only removes foreign rules.
func (d *Dataplane) PlanShared(ctx context.Context, nodes ...ir.Programs) (apply.Plan, error) {
	have, err := d.Rulesets(ctx)
	if err != nil {
		return nil, err
	}
	want := d.lowering.All(nodes[0])
	for f, w := range ir.Present(want.PerFamily) {
		h := family(have, f)
		if len(nodes) > 1 && !slices.ContainsFunc(h.Nat.Chains, func(c rules.Chain) bool { return rules.OnlyOurs(c.Name) }) {
			*w = *h
			continue
		}
		for i, t := range w.Tables() {
			for _, other := range nodes[1:] {
				agree(t, family(d.lowering.All(other), f).Tables()[i], h.Tables()[i].Jumps)
			}
			t.Chains = sharedChains(h.Tables()[i].Chains, t.Chains)
		}
	}
	return d.Difference(have, want), nil
}

// PlanChanges plans the changed Services only. It omits families without changes.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	if d.lowerers == (ir.PerFamily[Lowerer]{}) {
		for f, p := range ir.Present(d.applied.Programs()) {
			if slices.Contains(d.families, f) {
				*d.lowerers.At(f) = d.lowering.Changes(p)
			}
		}
	}
	var have, want rules.Rulesets
	var sizes ir.PerFamily[[2]int]
	for f, a := range d.lowerers.All() {
		if a == nil || len(changes.Of(f)) == 0 {
			continue
		}
		*have.At(f), *want.At(f) = a.Change(changes.Of(f))
		*sizes.At(f) = a.Size()
	}
	p := newPlan(have, want).sized(sizes)
	p.desired.Changes = changes
	return p
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// ChangedBy returns the programs that changed our chains since the last call. It returns nothing in
// the legacy variant, for which the kernel sends no notifications.
func (d *Dataplane) ChangedBy() []string { return d.monitor.ChangedBy() }

// Drift monitors foreign transactions by notifications, or the tables by polling in the legacy
// variant.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	return d.monitor.Start(ctx, d.log, func(notify func(missed error)) (monitor.Monitor, error) {
		if d.Variant == Legacy {
			return monitor.OpenLegacy(notify), nil
		}
		return monitor.OpenNFT(monitor.IPTables, notify)
	})
}

// Leftovers returns iptables rules of other modes and of kube-proxy, in both variants.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	return Leftovers(ctx, d, d.readOnly)
}

// Counters returns the packet counters of our rules.
func (d *Dataplane) Counters() apply.Counters {
	c := apply.Counters{InvalidDropped: d.invalidDropped, LocalhostNodePorts: d.localhostNodePorts}
	if d.meter != nil {
		c.Traffic = d.traffic
	}
	return c
}

// Close closes the monitor of Drift.
func (d *Dataplane) Close() error { return d.monitor.Close() }
