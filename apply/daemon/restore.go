package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// lastPrograms are the Programs of the boot file; without any if it cannot be used.
type lastPrograms struct {
	ir.Programs
	saved time.Time
}

// lastPrograms returns the Programs of the boot file. Those of another mode cannot be converted without
// objects, so the rules in the kernel stay as they are. After a restart, rules of any mode are in the
// kernel: their health checks are served until there are objects, for load balancers.
func (r *rules) lastPrograms() lastPrograms {
	boot := r.effects.boot
	programs, ok := boot.read(r.input.node)
	if !ok {
		return lastPrograms{}
	}
	mode := modeOf(programs)
	if r.Follows != nil && boot.isCurrent() && !mode.ByProcess() {
		r.effects.checks.sync(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}})
	}
	if mode != r.config.Config.ProxyMode() {
		r.log.Info("the boot file is of another mode: the rules in the kernel stay until objects are received", "file", boot.path, "mode", string(mode))
		return lastPrograms{}
	}
	return lastPrograms{programs, statFile(boot.files, boot.path).Modified}
}

// modeOf returns the mode of Programs; "" if there are none.
func modeOf(programs ir.Programs) ir.Mode {
	for _, p := range ir.Present(programs) {
		return p.Node.Mode
	}
	return ""
}

// restorer applies the last Programs and repairs them while there are no objects.
type restorer struct {
	*rules
	stop func() // nil if nothing is restored
}

// start starts a Reconciler with constant Programs until release is called, and reports whether its first
// sync succeeded. If the kernel may contain newer rules than the Programs, it keeps those, and starts
// nothing.
func (h *restorer) start(ctx context.Context, rec reconcile.Reconciler, last lastPrograms) (restored bool) {
	if why := h.newer(ctx, rec.Dataplane, last.Programs); why != "" {
		h.effects.boot.reject(fmt.Errorf("may be older than %s, which are kept: it was saved %s ago", why, time.Since(last.saved).Round(time.Second)))
		if why == ownRules { // kube-proxy may serve its health checks
			h.effects.checks.sync(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: last.Programs}})
			h.mend(ctx, rec.Dataplane, rec.Drift, last.Programs)
		} else {
			h.stop = func() {}
		}
		return true
	}
	begin := rec.Committing
	rec.Committing = func() { h.effects.boot.note(0); begin() } // else a start after a crash would keep a part of the rules
	ctx, cancel := context.WithCancel(ctx)
	h.observer.progress.setApplied(rec.Dataplane.Applied().Programs)
	first := make(chan bool, 1)
	rec.Source = unchanging(last.Programs)
	rec.Synced = func(s *reconcile.Sync) {
		ok := h.after(s, last)
		select {
		case first <- ok:
		default: // not the first sync
		}
	}
	rec.Report = func(st reconcile.State) {
		h.observer.reportReason(st, cmp.Or(st.NotReady(), h.input.missing(), "waiting for objects"))
	}
	var running sync.WaitGroup
	running.Go(func() { rec.Run(ctx) })
	h.stop = func() {
		cancel()
		running.Wait()
		h.observer.progress.setRestored("", time.Time{})
	}
	select {
	case restored = <-first:
	case <-ctx.Done():
	}
	return restored
}

// mendEvery is the interval of repairs without notifications.
const mendEvery = 30 * time.Second

// mend repairs rules that no Service decides until stop is called. A foreign one among them may be the
// reason why the API server does not respond.
func (h *restorer) mend(ctx context.Context, dataplane apply.Dataplane, drift <-chan struct{}, nodes ...ir.Programs) {
	ctx, cancel := context.WithCancel(ctx)
	once := func() {
		plan, err := apply.PlanShared(ctx, dataplane, nodes...)
		if err == nil && plan != nil && !plan.Empty() {
			_, err = dataplane.Commit(ctx, plan)
			first, total := apply.First(plan, 1)
			h.log.Warn("another program changed rules that no Service decides: they are repaired", "operations", total.String(), "first", first[0].Object, "err", err)
		} else if err != nil && ctx.Err() == nil {
			h.log.Error("rules that no Service decides are not repaired", "err", err)
		}
	}
	once()
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-drift:
			case <-time.After(mendEvery):
			}
			once()
		}
	})
	h.stop = func() { cancel(); running.Wait() }
}

// mendAfter is how long mendUnknown waits for objects.
const mendAfter = 10 * time.Second

// mendUnknown is mend without Programs: it repairs what is the same for any Node, Service and
// ServiceCIDR, if no object is known after a while.
func (h *restorer) mendUnknown(ctx context.Context, rec reconcile.Reconciler) {
	select {
	case <-ctx.Done():
	case <-h.input.first.objects:
	case <-time.After(mendAfter):
	}
	cfg := h.config.Config
	if ctx.Err() != nil || h.input.missing() == "" || cfg.ProxyMode().ByProcess() || cfg.ProxyMode() == ir.ModeIPVS {
		return
	}
	leftovers, _ := host.Leftovers(ctx, cfg.ProxyMode(), rec.Dataplane, true)
	if slices.ContainsFunc(leftovers, func(l apply.Leftover) bool { return !l.Eased }) || len(host.OfKubeProxy(leftovers)) > 0 {
		return // the rules in force are not those of this mode
	}
	facts, sample := h.input.follower.facts, snapshot.New()
	sample.SetNode(&snapshot.Node{Name: facts.NodeName, Zone: "z", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("2001:db8::/64")},
		Addresses: []snapshot.NodeAddress{{Type: "InternalIP", Address: "192.0.2.200"}, {Type: "InternalIP", Address: "2001:db8:1::1"}}})
	sample.SetServiceCIDR(&snapshot.ServiceCIDR{Name: "any", CIDRs: sample.Node(facts.NodeName).PodCIDRs})
	unknown, _ := compiler.Compile(cfg, snapshot.New(), facts)
	known, _ := compiler.Compile(cfg, sample, facts)
	h.mend(ctx, rec.Dataplane, rec.Drift, unknown, known)
}

// ownRules is what newer returns for proxyc's own rules.
const ownRules = "the rules in the kernel"

// newer returns the rules in the kernel that may be newer than the Programs of the boot file; "" if there
// are none. Own rules are incomplete, and then worth less than old ones, if a family of the Programs has
// no frontends.
func (h *restorer) newer(ctx context.Context, dataplane apply.Dataplane, saved ir.Programs) string {
	mode := modeOf(saved)
	leftovers, _ := host.Leftovers(ctx, mode, dataplane, true) // errors are those of other modes
	if peer := host.OfKubeProxy(leftovers); len(peer) > 0 {
		return "the rules of kube-proxy (" + strings.Join(peer, ", ") + ")"
	}
	if h.effects.boot.isCurrent() || mode.ByProcess() {
		return ""
	}
	for _, l := range leftovers {
		if !l.Eased {
			return "the rules of another mode (" + l.Object + ")"
		}
	}
	if err := dataplane.Read(ctx, ir.Programs{}); err != nil {
		return "" // the first sync fails as well, and is retried
	}
	var empty ir.Programs
	for f, p := range ir.Present(saved) {
		*empty.At(f) = &ir.Program{Family: f, Node: p.Node}
	}
	served := dataplane.Plan(empty).RemovedFrontends()
	if len(served) == 0 {
		return ""
	}
	for f, p := range ir.Present(saved) {
		has := slices.ContainsFunc(served, func(m ir.Match) bool { return f.Has(m.Addr) })
		if !has && slices.ContainsFunc(p.Services, func(s ir.Service) bool { return len(s.Frontends) > 0 }) {
			return ""
		}
	}
	return ownRules
}

// after does the work after a sync of restored Programs.
func (h *restorer) after(s *reconcile.Sync, last lastPrograms) (ok bool) {
	if s.Incomplete {
		h.effects.flows.NoteRemoved(s.Done.Removed)
		return false
	}
	defer h.observer.record(s) // last, since readers of the status rely on the rest
	if !h.settled(s) {
		return false
	}
	if h.observer.progress.setRestored(h.effects.boot.name(), last.saved) {
		h.log.Warn("the previous rules are restored, and kept until objects are received", "from", h.effects.boot.name(), "operations", s.Done.Operations.String(),
			"saved", last.saved.Format(time.RFC3339), "age", time.Since(last.saved).Round(time.Second).String())
	}
	// Flows that are valid for newer objects than these are not stale. Clients may however have
	// connected while rules were missing.
	h.effects.flows.NoteRemoved(s.Done.Removed)
	missing := s.Done.Drift.Total() > 0 || s.Done.Operations.Added > 0
	h.effects.flows.EndCommit(conntrack.Work{Programs: s.Work.Programs, All: missing, Missing: missing})
	h.effects.checks.sync(s)
	return true
}

// release stops the restorer and waits, since two Reconcilers must not write the same rules.
func (h *restorer) release() {
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// unchanging is a Source with constant Programs.
type unchanging ir.Programs

func (unchanging) Changed() <-chan struct{} { return nil }

func (u unchanging) Take(reconcile.Kind) reconcile.Work {
	return reconcile.Work{Programs: ir.Programs(u)}
}
