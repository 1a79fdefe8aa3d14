package daemon

import (
	"context"
	"sync"

	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// lastInForce returns the Programs of the life before, or else those of the boot file, and
// whose they are; "": there are none for this mode and node.
func (d *daemon) lastInForce() (programs ir.Programs, from string) {
	if d.previous.mode == d.cfg.ProxyMode() {
		if programs = d.previous.Applied(); programs.IPv4 != nil {
			return programs, "the configuration before"
		}
	}
	if programs, ok := d.boot.read(d.cfg.ProxyMode(), d.nodeName); ok {
		return programs, "the boot file " + d.BootFrom
	}
	return ir.Programs{}, ""
}

// hold keeps Programs in force, and puts back what others take away, until release is called: there
// are no objects yet to go by. held reports whether they came in force at first; that is tried again
// where they did not. from is whose they are, and lack says what is waited for.
func (d *daemon) hold(ctx context.Context, r reconcile.Reconciler, programs ir.Programs, from string, lack func() string) (held bool, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	first := make(chan bool, 1)
	tellFirst := func(ok bool) { first <- ok }
	r.Source = unchanging(programs)
	r.Synced = func(s *reconcile.Sync) {
		ok := d.settled(s)
		if ok {
			if d.state.setHeld(from) {
				d.log.Info("what was last in force is in force, and is kept until there are objects", "from", from, "operations", s.Done.Operations.String())
			}
			// What goes by newer objects than these is no stale flow, but clients may have come
			// past rules that were gone.
			d.flows.NoteRemoved(s.Done.Removed)
			d.flows.Ended(conntrack.Work{Programs: s.Work.Programs, All: total(s.Done.Drift) > 0})
			d.health.SetNotReady(lack())
		}
		d.state.synced(s)
		tellFirst(ok)
		tellFirst = func(bool) {}
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
		d.state.setHeld("")
	}
}

// unchanging is a Source whose Programs stay as they are.
type unchanging ir.Programs

func (unchanging) Changed() <-chan struct{} { return nil }

func (u unchanging) Take(reconcile.Kind) reconcile.Work {
	return reconcile.Work{Programs: ir.Programs(u)}
}
