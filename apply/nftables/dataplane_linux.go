package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Dataplane is the nf_tables of one network namespace.
type Dataplane struct {
	log      *slog.Logger // optional
	readOnly bool
	fastpath *flowtable.Keeper // nil without a fast path
	reader   *reader
	writer   *writer

	have     state // from the last Read
	applied  apply.Applied
	lowerers ir.PerFamily[*rules.Lowerer] // for the applied Programs; nil until needed
}

var (
	_ apply.Dataplane      = (*Dataplane)(nil)
	_ apply.LeftoverFinder = (*Dataplane)(nil)
	_ apply.Attributor     = (*Dataplane)(nil)
	_ apply.Counted        = (*Dataplane)(nil)
	_ apply.Mender         = (*Dataplane)(nil)
	_ apply.Totaller       = (*Plan)(nil)
	_ apply.GoneLister     = (*Plan)(nil)
)

// Open connects to the network namespace of the calling thread.
func Open(_ context.Context, o apply.Options) (*Dataplane, error) { return OpenIn(0, o) }

// OpenIn connects to the network namespace of a file descriptor.
func OpenIn(netns int, o apply.Options) (*Dataplane, error) {
	c, err := conn.Dial(netns)
	if err != nil {
		return nil, err
	}
	w := &writer{log: o.Log, conn: c, declaration: declaration{counters: o.ServiceMetrics}}
	w.reader = &reader{readOnly: o.ReadOnly, conn: c}
	d := &Dataplane{writer: w, reader: w.reader, log: o.Log, readOnly: o.ReadOnly}
	if o.OwnTables && !o.ReadOnly {
		w.claimOwnership()
	}
	if o.ServiceMetrics == apply.MetricsServices {
		if err := d.meterIn(netns); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	if o.Fastpath.On() && !o.ReadOnly {
		d.fastpath = flowtable.New(netns, o.Fastpath, o.Log)
	}
	return d, nil
}

// Close closes the connection.
func (d *Dataplane) Close() error {
	d.fastpath.Close()
	return d.writer.close()
}

// Read reads both tables consistently. It is faster, and keeps less, if they contain what the
// Programs require.
func (d *Dataplane) Read(ctx context.Context, want ir.Programs) (err error) {
	d.have, err = d.reader.readExpected(ctx, want)
	d.fastpath.Renew()
	return err
}

// Tables returns the content of both tables. A missing table is an empty Ruleset.
func (d *Dataplane) Tables(ctx context.Context) (rules.Tables, error) {
	return d.reader.read(ctx, nil)
}

// Plan compares what was read with what the Programs require. Other slots than those that were applied
// are a difference. If nothing was applied, existing slots are adopted.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	want = keepAllSlots(d.applied.Programs(), want)
	p := planFor(d.have, want, d.writer.declaration)
	if adopted, ok := adoptSlots(p, want); ok && d.applied.Node() == (ir.Programs{}) {
		want, p = adopted, planFor(d.have, adopted, d.writer.declaration)
	}
	p.desired = apply.Desired{Full: true, Programs: want}
	if d.writer.purgePending {
		p.purgeAll()
	}
	return p
}

// PlanShared plans the repair of chains that no Service decides, and the removal of foreign base chains.
func (d *Dataplane) PlanShared(ctx context.Context, nodes ...ir.Programs) (apply.Plan, error) {
	have, err := d.reader.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	for f, program := range ir.Present(nodes[0]) {
		h := tableIn(have, f)
		if !h.Exists {
			continue
		}
		want := *h
		want.Chains = rules.Shared(&program.Node, f, h.Chains)
		for _, other := range nodes[1:] {
			chains := rules.Shared(&other.Of(f).Node, f, h.Chains)
			want.Chains = slices.DeleteFunc(want.Chains, func(c rules.Chain) bool {
				return !slices.ContainsFunc(chains, func(o rules.Chain) bool { return o.Name == c.Name && o.SameRules(&c, f) })
			})
		}
		for _, c := range h.Chains {
			if c.Base == nil && !slices.ContainsFunc(want.Chains, func(o rules.Chain) bool { return o.Name == c.Name }) {
				want.Chains = append(want.Chains, c)
			}
		}
		*p.families.At(f) = compareTables(h, &want)
	}
	return p, nil
}

// PlanChanges plans the changed Services only.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	for _, of := range changes.All() {
		for i := range of {
			of[i].New = keepSlots(of[i].Old, of[i].New)
		}
	}
	if d.lowerers.IPv4 == nil {
		for f, p := range ir.Present(d.applied.Programs()) {
			l := rules.NewLowerer(f)
			l.Fill(p)
			*d.lowerers.At(f) = l
		}
	}
	all := &Plan{desired: apply.Desired{Changes: changes}}
	for f, node := range ir.Present(d.applied.Node()) {
		if of := changes.Of(f); len(of) > 0 {
			*all.families.At(f) = difference(d.lowerers.Of(f).Change(&node.Node, of...))
		}
	}
	return all
}

// Commit sends a Plan in one batch for both families. If the kernel rejects parts of some
// Services, it sends the rest without these Services; their old parts are removed by the next Plan.
// The batch also removes deleted backends from affinity maps. If that has to continue afterwards
// and fails, everything else is in force, and the next Plan repeats it.
func (d *Dataplane) Commit(ctx context.Context, p apply.Plan) (apply.Result, error) {
	plan, ok := p.(*Plan)
	if !ok {
		return apply.Result{}, fmt.Errorf("nftables cannot commit a %T", p)
	}
	d.have = state{} // outdated by the commit
	var result apply.Result
	var err error
	if !plan.Empty() {
		result, err = d.writer.commit(ctx, plan)
	}
	if err == nil && len(result.Refused) == 0 {
		d.applied.Take(plan.desired)
		if d.writer.meter != nil {
			d.writer.meter.Forget(plan.desired, &d.applied)
		}
		if plan.desired.Full {
			d.lowerers = ir.PerFamily[*rules.Lowerer]{}
		}
	}
	return result, err
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// Drift monitors foreign transactions, and maintains the fast path.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	if d.fastpath != nil {
		d.fastpath.Start(ctx)
	}
	return d.writer.monitor.Start(ctx, d.log, func(notify func(missed error)) (monitor.Monitor, error) {
		nft, err := monitor.OpenNFT(monitor.NFTables, notify)
		d.writer.nft = nft
		return nft, err
	})
}

// ChangedBy returns the programs that changed our tables since the last call.
func (d *Dataplane) ChangedBy() []string { return d.writer.monitor.ChangedBy() }

// Leftovers returns the tables of kube-proxy, and the flowtable of an earlier daemon unless this
// one has a fast path. A read-only Dataplane omits the flowtable, since a daemon may use it.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	left, err := Leftovers(ctx, true)
	return slices.DeleteFunc(left, func(l apply.Leftover) bool {
		return l.Object == flowtable.Object && (d.fastpath != nil || d.readOnly)
	}), err
}
