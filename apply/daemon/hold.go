package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/ir"
)

// lastInForce returns the Programs of the life before, or else those of the boot file, and
// whose they are; "": there are none for this node. They may be of another mode.
func (d *daemon) lastInForce() (programs ir.Programs, from string) {
	if d.previous.Dataplane != nil {
		if programs = d.previous.Applied(); programs.IPv4 != nil {
			return programs, "the configuration before"
		}
	}
	if programs, ok := d.boot.read(d.nodeName); ok {
		return programs, d.boot.name()
	}
	return ir.Programs{}, ""
}

// modeOf is the mode of Programs for a node; "": there are none.
func modeOf(programs ir.Programs) ir.Mode {
	for _, p := range ir.Present(programs) {
		return p.Node.Mode
	}
	return ""
}

// modePatience is how long objects are waited for before rules of another mode than the
// configuration's are held. A mode is changed while the API server answers, most often:
// nothing of the old one is to be written anew for a moment then.
const modePatience = 10 * time.Second

// holdOther is hold for Programs of another mode than the configuration's: what they mean
// in this one only objects tell, and until there are any a node with rules of its mode before
// is better off than one without. Their dataplane is the previous one from now on: what it
// has goes when the rules of this mode are in force.
func (d *daemon) holdOther(ctx context.Context, r reconcile.Reconciler, o apply.Options, programs ir.Programs, from string, synced <-chan struct{}, lack func() string) (held bool, release func()) {
	d.health.SetNotReady(lack())
	select {
	case <-ctx.Done():
	case <-synced:
	case <-time.After(modePatience):
	}
	if ctx.Err() != nil || lack() == "" {
		return false, func() {}
	}
	cfg := *d.cfg
	cfg.Mode = string(modeOf(programs))
	fail := func(err error) (bool, func()) {
		if err = fmt.Errorf("is of mode %s, which cannot be kept: %w", cfg.Mode, err); from == d.boot.name() {
			d.boot.leftOut(err)
		} else {
			d.log.Error("what was last in force is left out", "from", from, "err", err)
		}
		return false, func() {}
	}
	differ, err := settings(&cfg, &programs.IPv4.Node)
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		return fail(err)
	}
	o.IPVS = dataplaneOptions(&cfg, d.IPVS).IPVS
	dataplane, err := Open(ctx, cfg.ProxyMode(), o)
	if err != nil {
		return fail(err)
	}
	d.closeBefore()
	d.previous = previous{dataplane, cfg.ProxyMode()}
	ctx, cancel := context.WithCancel(ctx)
	r.Schedule, r.Dataplane = scheduleOf(&cfg), dataplane
	if r.Drift, err = dataplane.Drift(ctx); err != nil {
		d.log.Error("changes of the rules by others will be seen late", "err", err)
	}
	held, end := d.hold(ctx, r, programs, from+", of mode "+cfg.Mode, lack)
	return held, func() {
		end()
		cancel()
	}
}

// hold keeps Programs in force, and puts back what others take away, until release is called: there
// are no objects yet to go by. held reports whether they came in force at first; that is tried again
// where they did not. from is whose they are, and lack says what is waited for.
func (d *daemon) hold(ctx context.Context, r reconcile.Reconciler, programs ir.Programs, from string, lack func() string) (held bool, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	d.progress.setInForce(r.Dataplane.Applied)
	first := make(chan bool, 1)
	tellFirst := func(ok bool) { first <- ok }
	r.Source = unchanging(programs)
	r.Synced = func(s *reconcile.Sync) {
		ok := d.settled(s)
		if ok {
			if d.progress.setHeld(from) {
				d.log.Info("what was last in force is in force, and is kept until there are objects", "from", from, "operations", s.Done.Operations.String())
			}
			// What goes by newer objects than these is no stale flow, but clients may have come
			// past rules that were gone.
			d.flows.NoteRemoved(s.Done.Removed)
			d.flows.Ended(conntrack.Work{Programs: s.Work.Programs, All: total(s.Done.Drift) > 0})
		}
		d.record(s)
		tellFirst(ok)
		tellFirst = func(bool) {}
	}
	r.Report = func(st reconcile.State) {
		d.report(st, cmp.Or(st.NotReady(), lack(), "waiting for objects"))
	}
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	select {
	case held = <-first:
	case <-ctx.Done():
	}
	return held, func() {
		cancel()
		running.Wait()
		d.progress.setHeld("")
	}
}

// unchanging is a Source whose Programs stay as they are.
type unchanging ir.Programs

func (unchanging) Changed() <-chan struct{} { return nil }

func (u unchanging) Take(reconcile.Kind) reconcile.Work {
	return reconcile.Work{Programs: ir.Programs(u)}
}
