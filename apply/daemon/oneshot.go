package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// OneShot applies Programs to a node once.
type OneShot struct {
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
	Kept      []status.Busy // leftovers that stay until their connections end; not a difference
	Plan      apply.Plan
	Exposed   string            // warning of Exposed about the leftovers
	Stale     []conntrack.Stale // deleted flows
	// Others are foreign rules, which stay; not a difference. Only a dry run checks for them.
	Others apply.Interference
	// Unserved are node ports on localhost that are required and that no process serves; not a
	// difference, since rules cannot serve them.
	Unserved []string
}

// Empty reports whether there were no differences.
func (r *Report) Empty() bool {
	return len(r.Settings) == 0 && len(r.Leftovers) == 0 && len(r.Stale) == 0 && (r.Plan == nil || r.Plan.Empty())
}

// Run applies the Programs in the order that packets require: kernel settings, rules, removal of
// leftovers of other proxies, removal of stale UDP flows. The Report is nil if it failed before the
// commit.
func (t *OneShot) Run(ctx context.Context) (*Report, error) {
	if err := checkMode(t.Programs.IPv4.Node.Mode, t.DryRun); err != nil && !t.SettingsOnly { // before any change
		return nil, err
	}
	if err := once(t.Programs.IPv4.Node.Mode); err != nil && !t.SettingsOnly && !t.DryRun {
		return nil, err
	}
	release, err := lockToWrite(ctx, t.LockTimeout, t.DryRun, t.Waiting)
	if err != nil {
		return nil, err
	}
	defer release()
	out := &Report{}
	if t.SettingsOnly {
		if out.Settings, err = settings(t.Config, &t.Programs.IPv4.Node); err != nil {
			return nil, err
		}
		return out, t.writeSettings(out.Settings)
	}
	mode := t.Programs.IPv4.Node.Mode
	o := dataplaneOptions(t.Config, t.IPVS)
	o.IPTables, o.LockTimeout, o.ReadOnly = t.IPTables, t.LockTimeout, t.DryRun
	dataplane, err := Open(ctx, mode, o) // reports missing kernel features before the settings are read
	if err != nil {
		return nil, err
	}
	defer dataplane.Close()
	if out.Settings, err = settings(t.Config, &t.Programs.IPv4.Node); err != nil {
		return nil, err
	}
	leftovers, err := Leftovers(ctx, mode, dataplane)
	if err != nil {
		return nil, err
	}
	for _, l := range leftovers {
		if !l.Eased {
			out.Leftovers = append(out.Leftovers, l.Object)
		}
	}
	if peer := peers(leftovers); len(peer) > 0 && !t.Takeover && !t.DryRun {
		return nil, fmt.Errorf("the node carries kube-proxy's rules (%s): stop kube-proxy, then say --yes-takeover", strings.Join(peer, ", "))
	}
	if err := t.writeSettings(out.Settings); err != nil {
		return nil, err
	}
	return t.commit(ctx, dataplane, leftovers, out)
}

// commit applies the Programs, and does the work that follows.
func (t *OneShot) commit(ctx context.Context, dataplane apply.Dataplane, leftovers []apply.Leftover, out *Report) (*Report, error) {
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
		out.Kept, easeErr = ease(ctx, leftovers)
		err = errors.Join(err, easeErr)
		out.Leftovers, out.Exposed = gone(leftovers, out.Kept), Exposed(leftovers)
	}
	var staleErr error
	out.Stale, staleErr = staleFlows(ctx, t.Programs, plan.RemovedFrontends(), t.DryRun)
	if t.DryRun {
		var othersErr error
		out.Others, othersErr = Interference(ctx, t.Programs.IPv4.Node.MasqueradeMark())
		staleErr = errors.Join(staleErr, othersErr)
	}
	return out, errors.Join(err, staleErr)
}

// gone returns the names of the removed leftovers.
func gone(leftovers []apply.Leftover, kept []status.Busy) (objects []string) {
	for _, l := range leftovers {
		if !slices.ContainsFunc(kept, func(k status.Busy) bool { return k.Object == l.Object }) {
			objects = append(objects, l.Object)
		}
	}
	return objects
}

func (t *OneShot) writeSettings(settings []sysctl.Setting) error {
	if t.DryRun {
		return nil
	}
	return sysctl.Write(kernelRoot, settings)
}

// staleFlows finds the stale UDP flows to frontends of the Programs and to removed ones. It deletes
// them unless lookOnly is set.
func staleFlows(ctx context.Context, programs ir.Programs, gone []ir.Match, lookOnly bool) (stale []conntrack.Stale, err error) {
	for _, p := range ir.Present(programs) {
		_, familyErr := conntrack.Clean(ctx, conntrack.NewSelector(p, gone), func(found []conntrack.Stale) ([]conntrack.Stale, error) {
			stale = append(stale, found...)
			if lookOnly {
				return nil, nil
			}
			return found, nil
		})
		err = errors.Join(err, familyErr)
	}
	slices.SortFunc(stale, conntrack.Stale.Compare)
	return slices.Compact(stale), err
}
