package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// lastPrograms are the Programs that were applied before a session, possibly in another mode.
type lastPrograms struct {
	ir.Programs
	from  string    // their source: "the boot file boot.json"; "" if there are none for this node
	saved time.Time // modification time of the boot file; zero if they are not from it
}

// lastPrograms returns the Programs of the previous session, or else those of the boot file.
func (r *rules) lastPrograms() lastPrograms {
	if previous := r.process.handover.previous; previous != nil {
		if programs := previous.Applied().Programs(); programs.IPv4 != nil {
			return lastPrograms{Programs: programs, from: "the previous configuration"}
		}
	}
	if boot := r.effects.boot; boot != nil {
		if programs, ok := boot.read(r.input.node); ok {
			return lastPrograms{programs, boot.name(), statFile(boot.files, boot.path).Modified}
		}
	}
	return lastPrograms{}
}

// modeOf returns the mode of Programs; "" if there are none.
func modeOf(programs ir.Programs) ir.Mode {
	for _, p := range ir.Present(programs) {
		return p.Node.Mode
	}
	return ""
}

// modeGrace is how long to wait for objects before rules of another mode than the configured one
// are restored. The mode is usually changed while the API server responds. Writing rules of the old
// mode briefly would then be useless.
const modeGrace = 10 * time.Second

// restorer applies the last Programs and repairs them while there are no objects.
type restorer struct {
	*rules
	stop func() // nil if nothing is restored
}

// restore maintains Programs until release is called. It reports whether they could be applied at
// first. If not, it retries.
func (h *restorer) restore(ctx context.Context, rec reconcile.Reconciler, last lastPrograms) (restored bool) {
	if modeOf(last.Programs) == h.config.Config.ProxyMode() {
		return h.start(ctx, rec, last)
	}
	restored, err := h.restoreOther(ctx, rec, last)
	if err == nil {
		return restored
	}
	if err = fmt.Errorf("is for mode %s, whose rules cannot be restored: %w", modeOf(last.Programs), err); !last.saved.IsZero() {
		h.effects.boot.reject(err)
	} else {
		h.log.Error("the previous rules are not restored", "from", last.from, "err", err)
	}
	return false
}

// restoreOther is restore for Programs of another mode than the configured one. They cannot be
// converted without objects. Until there are any, a node with rules of its previous mode is better
// off than one without rules. Their dataplane becomes the previous one, whose rules are removed after
// those of this mode are applied.
func (h *restorer) restoreOther(ctx context.Context, rec reconcile.Reconciler, last lastPrograms) (restored bool, err error) {
	h.observer.health.SetNotReady(h.input.missing())
	select {
	case <-ctx.Done():
	case <-h.input.first.objects:
	case <-time.After(modeGrace):
	}
	if ctx.Err() != nil || h.input.missing() == "" {
		return false, nil
	}
	cfg := *h.config.Config
	cfg.Mode = string(modeOf(last.Programs))
	differ, err := host.SettingsOf(&cfg, &last.IPv4.Node)
	if err := errors.Join(err, sysctl.Write(host.Root, differ)); err != nil {
		return false, err
	}
	dataplane, err := host.Open(ctx, cfg.ProxyMode(), h.options(&cfg))
	if err != nil {
		return false, err
	}
	h.process.handover.replace(dataplane, cfg.ProxyMode(), h.log)
	ctx, cancel := context.WithCancel(ctx)
	rec.Schedule, rec.Dataplane, rec.Drift = scheduleOf(&cfg), dataplane, h.drift(ctx, dataplane)
	last.from += ", of mode " + cfg.Mode
	restored = h.start(ctx, rec, last)
	end := h.stop
	h.stop = func() { end(); cancel() }
	return restored, nil
}

// start starts a Reconciler with constant Programs, and reports whether its first sync succeeded. If the
// kernel may contain newer rules than the Programs, it keeps those, and starts nothing.
func (h *restorer) start(ctx context.Context, rec reconcile.Reconciler, last lastPrograms) (restored bool) {
	if !last.saved.IsZero() {
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
	}
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

// mendUnknown is mend without Programs: it repairs what is the same for any Node, Service and
// ServiceCIDR, if no object is known after a while.
func (h *restorer) mendUnknown(ctx context.Context, rec reconcile.Reconciler) {
	select {
	case <-ctx.Done():
	case <-h.input.first.objects:
	case <-time.After(modeGrace):
	}
	cfg := h.config.Config
	if ctx.Err() != nil || h.input.missing() == "" || cfg.ProxyMode().ByProcess() {
		return
	}
	if leftovers, _ := host.Leftovers(ctx, cfg.ProxyMode(), rec.Dataplane, true); len(host.OfKubeProxy(leftovers)) > 0 {
		return
	}
	facts, any := h.input.follower.facts, snapshot.New()
	any.SetNode(&snapshot.Node{Name: facts.NodeName, Zone: "z", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("2001:db8::/64")},
		Addresses: []snapshot.NodeAddress{{Type: "InternalIP", Address: "192.0.2.200"}, {Type: "InternalIP", Address: "2001:db8:1::1"}}})
	any.SetServiceCIDR(&snapshot.ServiceCIDR{Name: "any", CIDRs: any.Node(facts.NodeName).PodCIDRs})
	unknown, _ := compiler.Compile(cfg, snapshot.New(), facts)
	known, _ := compiler.Compile(cfg, any, facts)
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
	if h.observer.progress.setRestored(last.from, last.saved) {
		h.logRestored(last, s.Done.Operations)
	}
	// Flows that are valid for newer objects than these are not stale. Clients may however have
	// connected while rules were missing.
	h.effects.flows.NoteRemoved(s.Done.Removed)
	missing := s.Done.Drift.Total() > 0 || s.Done.Operations.Added > 0
	h.effects.flows.EndCommit(conntrack.Work{Programs: s.Work.Programs, All: missing})
	h.effects.checks.sync(s)
	return true
}

// logRestored logs that Programs are restored. Those of the boot file may be old.
func (h *restorer) logRestored(last lastPrograms, operations apply.Count) {
	level, age := slog.LevelInfo, []any(nil)
	if !last.saved.IsZero() {
		level, age = slog.LevelWarn, []any{"saved", last.saved.Format(time.RFC3339), "age", time.Since(last.saved).Round(time.Second).String()}
	}
	h.log.Log(context.Background(), level, "the previous rules are restored, and kept until objects are received",
		append([]any{"from", last.from, "operations", operations.String()}, age...)...)
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
