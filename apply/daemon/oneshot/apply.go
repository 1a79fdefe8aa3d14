// Package oneshot applies or removes the rules of a node once, without a daemon. It implements proxyc
// apply and proxyc cleanup.
package oneshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// acquireLock acquires the node's lock. Read-only commands do not need it, so they can check a node
// whose daemon holds it: the kernel returns each table as it is between two commits. waiting is as
// in host.AcquireLock.
func acquireLock(ctx context.Context, timeout time.Duration, waiting func(why error)) (*apply.Lock, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return host.AcquireLock(ctx, waiting)
}

// Apply applies Programs to a node once.
type Apply struct {
	Config   *config.Config
	Programs ir.Programs
	// IPTables is the variant, as in apply.Options.
	IPTables string
	// IPVS contains settings of mode ipvs that the configuration lacks.
	IPVS apply.IPVS
	// LockTimeout is the timeout for another proxyc, and for the lock of iptables.
	LockTimeout time.Duration
	// Waiting is called with the reason if the wait for another proxyc takes longer than a second.
	Waiting func(why error)
	// DryRun disables changes.
	DryRun bool
	// Takeover allows replacing kube-proxy's rules.
	Takeover bool
	// SettingsOnly sets only the kernel settings.
	SettingsOnly bool
}

// Report is what a OneShot did, or would do.
type Report struct {
	Settings  []sysctl.Setting
	Leftovers []string      // removed
	Kept      []status.Kept // leftovers that stay until their connections end; not a difference
	Plan      apply.Plan
	Exposed   string            // warning of Exposed about the leftovers
	Stale     []conntrack.Stale // deleted flows
	// Foreign are foreign rules, which stay; not a difference.
	Foreign apply.Interference
	// ForeignErr is why Foreign is unknown. The rules were written nevertheless; a dry run fails instead.
	ForeignErr error
	// Unserved are node ports on localhost that are required and that no process serves; not a
	// difference, since rules cannot serve them.
	Unserved []string
}

// Empty reports whether there were no differences.
func (r *Report) Empty() bool {
	return len(r.Settings) == 0 && len(r.Leftovers) == 0 && len(r.Stale) == 0 && (r.Plan == nil || r.Plan.Empty())
}

// Run applies the Programs in the order that packets require: kernel settings, rules, removal of
// leftovers of other proxies, removal of stale flows. The Report is nil if it failed before the
// commit.
func (t *Apply) Run(ctx context.Context) (*Report, error) {
	node := &t.Programs.IPv4.Node
	if err := t.check(node.Mode); err != nil { // before any change
		return nil, err
	}
	var lock *apply.Lock
	if !t.DryRun {
		var err error
		if lock, err = acquireLock(ctx, t.LockTimeout, t.Waiting); err != nil {
			return nil, err
		}
		defer lock.Release()
	}
	if t.SettingsOnly {
		return t.set()
	}
	o := host.Options(t.Config, t.IPVS)
	o.IPTables, o.LockTimeout, o.ReadOnly = t.IPTables, t.LockTimeout, t.DryRun
	dataplane, err := host.Open(ctx, node.Mode, o) // reports missing kernel features before the settings are read
	if err != nil {
		return nil, err
	}
	defer dataplane.Close()
	leftovers, unknown := host.Leftovers(ctx, node.Mode, dataplane, t.DryRun)
	if peer := host.OfKubeProxy(leftovers); len(peer) > 0 && !t.Takeover && !t.DryRun {
		return nil, fmt.Errorf("the node has kube-proxy's rules (%s): stop kube-proxy, then use --yes-takeover", strings.Join(peer, ", "))
	}
	out, err := t.set()
	if err == nil && !t.DryRun {
		err = lock.SetNote("") // no boot file contains the rules that follow
	}
	if err != nil {
		return nil, err
	}
	for _, l := range leftovers {
		if !l.Eased {
			out.Leftovers = append(out.Leftovers, l.Object)
		}
	}
	out, err = t.commit(ctx, dataplane, leftovers, out)
	return out, errors.Join(err, unknown)
}

// check returns an error if a mode cannot be applied, or has no effect without a process.
func (t *Apply) check(mode ir.Mode) error {
	if t.SettingsOnly {
		return nil
	}
	if err := host.CheckMode(mode, t.DryRun); err != nil || t.DryRun || !mode.ByProcess() {
		return err
	}
	return fmt.Errorf("mode: mode %s requires a running process: use proxyc watch, or --dry-run or --check with apply", mode)
}

// set sets the kernel settings that differ.
func (t *Apply) set() (*Report, error) {
	differ, err := host.SettingsOf(t.Config, &t.Programs.IPv4.Node)
	if err != nil {
		return nil, err
	}
	out := &Report{Settings: differ}
	if t.DryRun {
		return out, nil
	}
	return out, sysctl.Write(host.Root, differ)
}

// commit applies the Programs, and does the work that follows.
func (t *Apply) commit(ctx context.Context, dataplane apply.Dataplane, leftovers []apply.Leftover, out *Report) (*Report, error) {
	plan, result, err := apply.Once(ctx, dataplane, t.Programs, func(apply.Plan) bool { return !t.DryRun })
	if plan == nil {
		return nil, err
	}
	out.Plan, out.Unserved = plan, unserved(t.Programs)
	if err != nil {
		return out, errors.Join(err, result.Error())
	}
	err = result.Error()
	if !t.DryRun {
		var easeErr error
		out.Kept, easeErr = host.Ease(ctx, leftovers)
		err = errors.Join(err, easeErr)
		out.Leftovers, out.Exposed = removed(leftovers, out.Kept), host.Exposed(leftovers, t.Programs)
	}
	var staleErr error
	out.Stale, staleErr = staleFlows(ctx, t.Programs, plan.RemovedFrontends(), t.DryRun)
	err = errors.Join(err, staleErr)
	var foreignErr error
	if out.Foreign, foreignErr = host.Interference(ctx, t.Programs.IPv4.Node.MasqueradeMark(), t.Programs); t.DryRun {
		return out, errors.Join(err, foreignErr)
	}
	out.ForeignErr = foreignErr
	return out, err
}

// removed returns the names of the removed leftovers.
func removed(leftovers []apply.Leftover, kept []status.Kept) (objects []string) {
	for _, l := range leftovers {
		if !slices.ContainsFunc(kept, func(k status.Kept) bool { return k.Object == l.Object }) {
			objects = append(objects, l.Object)
		}
	}
	return objects
}

// staleFlows finds the stale flows to frontends of the Programs and to removed ones. It deletes
// them unless readOnly is set.
func staleFlows(ctx context.Context, programs ir.Programs, gone []ir.Match, readOnly bool) (stale []conntrack.Stale, err error) {
	for _, p := range ir.Present(programs) {
		_, familyErr := conntrack.Clean(ctx, conntrack.NewSelector(p, gone), func(found []conntrack.Stale) ([]conntrack.Stale, error) {
			stale = append(stale, found...)
			if readOnly {
				return nil, nil
			}
			return found, nil
		})
		err = errors.Join(err, familyErr)
	}
	slices.SortFunc(stale, conntrack.Stale.Compare)
	return slices.Compact(stale), err
}

// unserved returns the node ports on localhost that the Programs require and no process serves.
func unserved(programs ir.Programs) []string {
	var all []string
	for _, l := range userspace.Unserved(programs) {
		all = append(all, l.Listen.String()+"/tcp of "+l.Port.String()+": only proxyc watch serves node ports on localhost")
	}
	return apply.Lines(all)
}
