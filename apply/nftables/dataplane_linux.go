package nftables

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Dataplane is the nf_tables of one network namespace.
type Dataplane struct {
	log *slog.Logger // nil: nobody is told

	ownTables bool // the tables are to be this process's
	readOnly  bool
	fastpath  *flowtable.Keeper // nil: none is wanted

	mu      sync.Mutex // held by a commit; what else uses c waits
	c       *conn.Conn
	commits atomic.Uint64 // begun and ended

	reading  sync.Mutex // a reading does not keep a commit waiting
	r        *conn.Conn
	listener *conn.Listener
	readAt   time.Time // when all was read last
	// compareAll has the next Compare read everything: the last one failed, and what
	// others had touched is not remembered.
	compareAll bool
	// lookupFrom is how large a set has to be for its elements to be asked for one by one.
	lookupFrom int

	have         state // by the last Read
	purgePending bool  // affinity maps may remember backends that are gone
	applied      apply.Applied
	lowerers     ir.PerFamily[*rules.Lowerer] // of what is applied; nil: to be made
	monitor      monitor.Handle
	nft          *monitor.NFT // what monitor has; nil: none
}

var (
	_ apply.Dataplane      = (*Dataplane)(nil)
	_ apply.LeftoverFinder = (*Dataplane)(nil)
	_ apply.Attributor     = (*Dataplane)(nil)
	_ apply.Totaller       = (*Plan)(nil)
	_ apply.GoneLister     = (*Plan)(nil)
)

// Open connects to the network namespace of the calling thread.
func Open(_ context.Context, o apply.Options) (*Dataplane, error) { return OpenIn(0, o) }

// OpenIn connects to the network namespace behind a file descriptor.
func OpenIn(netns int, o apply.Options) (*Dataplane, error) {
	c, err := conn.Dial(netns)
	if err != nil {
		return nil, err
	}
	d := &Dataplane{c: c, log: o.Log, readOnly: o.ReadOnly, lookupFrom: lookupFrom}
	if d.r, err = conn.Dial(netns); err == nil {
		d.listener, err = conn.DialListener(netns, c)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	if o.OwnTables && !o.ReadOnly {
		d.claimOwnership()
	}
	if o.Fastpath.On() && !o.ReadOnly {
		d.fastpath = flowtable.New(netns, o.Fastpath, o.Log)
	}
	return d, nil
}

// Close closes the connections.
func (d *Dataplane) Close() error {
	d.fastpath.Close()
	err := errors.Join(d.monitor.Close(), d.c.Close())
	if d.r != nil {
		err = errors.Join(err, d.r.Close())
	}
	if d.listener != nil {
		err = errors.Join(err, d.listener.Close())
	}
	return err
}

// Read reads both tables as they were at one moment. It is faster, and keeps less, where
// the tables contain what the Programs want.
func (d *Dataplane) Read(ctx context.Context, want ir.Programs) (err error) {
	d.have, err = d.readFor(ctx, want)
	return err
}

// Tables returns what both tables hold. A family without our table has an empty
// Ruleset.
func (d *Dataplane) Tables(ctx context.Context) (rules.Tables, error) { return d.read(ctx, nil) }

// Plan compares what was read with what the Programs want.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	p := planFor(d.have, want, d.flags())
	if adopted, ok := adoptSlots(p, want); ok {
		want, p = adopted, planFor(d.have, adopted, d.flags())
	}
	p.desired = apply.Desired{Full: true, Programs: want}
	if d.purgePending {
		p.purgeAll()
	}
	return p
}

// PlanChanges plans from the Services that change alone.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	for _, of := range changes.All() {
		for i := range of {
			of[i].New = keepSlots(of[i].Old, of[i].New)
		}
	}
	if d.lowerers.IPv4 == nil {
		d.lowerers = lowerersOf(d.applied.Programs())
	}
	all := &Plan{desired: apply.Desired{Changes: changes}}
	for f, node := range ir.Present(d.applied.Node()) {
		*all.families.At(f) = planChanges(d.lowerers.Of(f).Change(&node.Node, changes.Of(f)...))
	}
	return all
}

// Compare reads the tables over a connection of its own; where others are known
// to have touched single elements of ours, and nothing else, these alone.
func (d *Dataplane) Compare(ctx context.Context) (plan apply.Plan, err error) {
	all := d.compareAll
	defer func() { d.compareAll = err != nil }()
	if d.nft != nil && !all {
		if what, ok := parseNotified(d.nft.Changes()); ok {
			if p, err := d.compareNotified(ctx, what); p != nil || err != nil {
				return p, err
			}
		}
	}
	applied := d.applied.Programs()
	found, err := d.readFor(ctx, applied)
	if err != nil {
		return nil, err
	}
	d.fastpath.Renew()
	return planFor(found, applied, d.flags()), nil
}

// lowerersOf returns the Lowerers of tables that hold the Programs.
func lowerersOf(programs ir.Programs) (all ir.PerFamily[*rules.Lowerer]) {
	for f, p := range ir.Present(programs) {
		l := rules.NewLowerer(f)
		l.Fill(p)
		*all.At(f) = l
	}
	return all
}

// remember notes that a Plan is in force.
func (d *Dataplane) remember(p *Plan) {
	d.applied.Take(p.desired)
	if p.desired.Full {
		d.lowerers = ir.PerFamily[*rules.Lowerer]{}
	}
}

// Applied returns the Programs that the tables held when that was last known.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// Drift listens to what the kernel tells of others' transactions, and keeps the fast path.
func (d *Dataplane) Drift(ctx context.Context) (<-chan struct{}, error) {
	if d.fastpath != nil {
		d.fastpath.Start(ctx)
	}
	return d.monitor.Start(ctx, d.log, func(notify func(bool)) (monitor.Monitor, error) {
		nft, err := monitor.OpenNFT(monitor.NFTables, notify)
		d.nft = nft
		return nft, err
	})
}

// ChangedBy returns who changed our tables since it was called last.
func (d *Dataplane) ChangedBy() []string { return d.monitor.ChangedBy() }

// Leftovers returns what others left in nf_tables: kube-proxy, and a daemon with a fast
// path, where none is wanted. Who only looks does not know that.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	left, err := Leftovers(ctx, true)
	return slices.DeleteFunc(left, func(l apply.Leftover) bool {
		return l.Object == flowtable.Object && (d.fastpath != nil || d.readOnly)
	}), err
}
