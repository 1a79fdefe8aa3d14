package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/ir"
)

// lastInForce are the Programs that were in force before a session, perhaps of another mode.
type lastInForce struct {
	ir.Programs
	from string // whose they are: "the boot file boot.json"; "": there are none for this node
}

// lastInForce returns the Programs of the session before, or else those of the boot file.
func (r *rules) lastInForce() lastInForce {
	if previous := r.process.handover.previous; previous != nil {
		if programs := previous.Applied(); programs.IPv4 != nil {
			return lastInForce{programs, "the configuration before"}
		}
	}
	if programs, ok := r.effects.boot.read(r.input.node); ok {
		return lastInForce{programs, r.effects.boot.name()}
	}
	return lastInForce{}
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
// nothing of the old one is to be written again for a moment then.
const modePatience = 10 * time.Second

// holder keeps what was last in force, and repairs it, while there are no objects to go by.
type holder struct {
	*rules
	stop func() // nil: nothing is held
}

// hold keeps Programs in force until release is called. It reports whether they came in force at
// first; where they did not, that is tried again.
func (h *holder) hold(ctx context.Context, rec reconcile.Reconciler, last lastInForce) (held bool) {
	if modeOf(last.Programs) == h.config.Config.ProxyMode() {
		return h.start(ctx, rec, last)
	}
	held, err := h.holdOther(ctx, rec, last)
	if err == nil {
		return held
	}
	if err = fmt.Errorf("is of mode %s, which cannot be kept: %w", modeOf(last.Programs), err); last.from == h.effects.boot.name() {
		h.effects.boot.leftOut(err)
	} else {
		h.log.Error("what was last in force is left out", "from", last.from, "err", err)
	}
	return false
}

// holdOther is hold for Programs of another mode than the configuration's: what they mean
// in this one only objects tell, and until there are any a node with rules of its mode before
// is better off than one without. Their dataplane is the previous one from now on: what it
// has is removed when the rules of this mode are in force.
func (h *holder) holdOther(ctx context.Context, rec reconcile.Reconciler, last lastInForce) (held bool, err error) {
	h.observer.health.SetNotReady(h.input.lack())
	select {
	case <-ctx.Done():
	case <-h.input.first.objects:
	case <-time.After(modePatience):
	}
	if ctx.Err() != nil || h.input.lack() == "" {
		return false, nil
	}
	cfg := *h.config.Config
	cfg.Mode = string(modeOf(last.Programs))
	differ, err := settings(&cfg, &last.IPv4.Node)
	if err := errors.Join(err, sysctl.Write(kernelRoot, differ)); err != nil {
		return false, err
	}
	dataplane, err := Open(ctx, cfg.ProxyMode(), h.options(&cfg))
	if err != nil {
		return false, err
	}
	h.process.handover.replace(dataplane, cfg.ProxyMode(), h.log)
	ctx, cancel := context.WithCancel(ctx)
	rec.Schedule, rec.Dataplane, rec.Drift = scheduleOf(&cfg), dataplane, h.drift(ctx, dataplane)
	last.from += ", of mode " + cfg.Mode
	held = h.start(ctx, rec, last)
	end := h.stop
	h.stop = func() { end(); cancel() }
	return held, nil
}

// start starts a Reconciler whose Programs stay as they are, and reports whether its first sync
// succeeded.
func (h *holder) start(ctx context.Context, rec reconcile.Reconciler, last lastInForce) (held bool) {
	ctx, cancel := context.WithCancel(ctx)
	h.observer.progress.setInForce(rec.Dataplane.Applied)
	first := make(chan bool, 1)
	rec.Source = unchanging(last.Programs)
	rec.Synced = func(s *reconcile.Sync) {
		ok := h.after(s, last.from)
		select {
		case first <- ok:
		default: // this was not the first one
		}
	}
	rec.Report = func(st reconcile.State) {
		h.observer.reportReason(st, cmp.Or(st.NotReady(), h.input.lack(), "waiting for objects"))
	}
	var running sync.WaitGroup
	running.Go(func() { rec.Run(ctx) })
	h.stop = func() {
		cancel()
		running.Wait()
		h.observer.progress.setHeld("")
	}
	select {
	case held = <-first:
	case <-ctx.Done():
	}
	return held
}

// after does what follows a sync of what is held.
func (h *holder) after(s *reconcile.Sync, from string) (ok bool) {
	defer h.observer.record(s) // last: a reader of the status relies on all of it
	if !h.settled(s) {
		return false
	}
	if h.observer.progress.setHeld(from) {
		h.log.Info("what was last in force is in force, and is kept until there are objects", "from", from, "operations", s.Done.Operations.String())
	}
	// Flows that agree with newer objects than these are not stale, but clients may have
	// connected past rules that were gone.
	h.effects.flows.NoteRemoved(s.Done.Removed)
	h.effects.flows.Ended(conntrack.Work{Programs: s.Work.Programs, All: total(s.Done.Drift) > 0})
	return true
}

// release ends what is held, and waits for it: two Reconcilers must not write the same rules.
func (h *holder) release() {
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// unchanging is a Source whose Programs stay as they are.
type unchanging ir.Programs

func (unchanging) Changed() <-chan struct{} { return nil }

func (u unchanging) Take(reconcile.Kind) reconcile.Work {
	return reconcile.Work{Programs: ir.Programs(u)}
}
