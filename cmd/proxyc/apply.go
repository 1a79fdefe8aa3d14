package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	engine "github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// kernelRoot is where the kernel's settings are.
const kernelRoot = sysctl.Root("/")

type applyCmd struct {
	configFlags
	Snapshot []string `short:"s" placeholder:"FILE" sep:"none" help:"Services, EndpointSlices, Nodes and ServiceCIDRs, as for compile. May be repeated."`
	Limit    byteSize `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"How much the files of --snapshot may have together, as 256Mi; 0: any amount."`

	DryRun      bool          `help:"Print what would be changed, and change nothing."`
	Check       bool          `help:"Print what differs, change nothing, and exit 1 if anything does."`
	AllowEmpty  bool          `help:"Accept a snapshot with neither a Service nor a Node, as a failed kubectl leaves behind; all rules for Services go."`
	YesTakeover bool          `name:"yes-takeover" help:"Take the node over from kube-proxy, whose rules are on it."`
	Output      string        `short:"o" enum:"text,wide,json" default:"text" help:"How to print the plan: text counts by Service, wide lists each operation and its origin, json has both."`
	Variant     string        `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Which iptables to use; auto is the one that the node uses."`
	LockTimeout time.Duration `default:"30s" placeholder:"DURATION" help:"How long to wait while another proxyc or another program holds a lock."`
}

// errEmpty keeps what a failed kubectl left behind from wiping a node. A cluster
// without Services is no such thing: it has Nodes.
var errEmpty = errors.New("-s: the snapshot has no Service and no Node, and all rules for Services would go: say --allow-empty if that is meant")

type cleanupCmd struct {
	DryRun        bool `help:"Print what would be removed, and remove nothing."`
	KeepKubeProxy bool `help:"Remove what proxyc left beside a kube-proxy that runs again, and keep kube-proxy's rules."`
}

// lookOnly tells that nothing may be written.
func (c *applyCmd) lookOnly() bool { return c.DryRun || c.Check }

func (c *applyCmd) Run(e *env) error {
	if c.DryRun && c.Check {
		return errors.New("--dry-run, --check: one of them is enough")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	j := &job{snap: snapshot.New()}
	resolved, err := c.resolve(e, &j.diags)
	if err != nil {
		return err
	}
	j.Resolved = resolved
	if c.Cleanup {
		e.report(j.diags)
		return cleanUp(ctx, e, c.lookOnly())
	}
	if !c.InitOnly && len(c.Snapshot) == 0 {
		return errNoSnapshot
	}
	if !e.readSnapshot(j, c.Snapshot, int64(c.Limit)) {
		return j.finish(e, errReported)
	}
	if !c.InitOnly && !c.AllowEmpty && len(j.snap.Services())+len(j.snap.Nodes()) == 0 {
		return j.finish(e, errEmpty)
	}
	if err := e.setNode(j); err != nil {
		return err
	}
	if err := needRoot("apply"); err != nil {
		return j.finish(e, err)
	}
	if j.facts.Interfaces, err = e.interfaces(); err != nil {
		return j.finish(e, err)
	}
	j.facts.Liberal = sysctl.Liberal(kernelRoot)
	programs := j.compile()
	e.report(j.findings())
	for _, d := range j.diags {
		if d.Severity == diag.Error && d.Object == "" {
			return errReported
		}
	}
	return c.converge(ctx, e, j, programs)
}

// converge brings the node to the programs, in the order in which packets need it:
// kernel settings, rules, what other proxies left, connections of UDP clients
// that hold on to what is gone.
func (c *applyCmd) converge(ctx context.Context, e *env, j *job, programs ir.Programs) error {
	lockCtx, cancel := context.WithTimeout(ctx, c.LockTimeout)
	defer cancel()
	release, err := lockToWrite(lockCtx, c.lookOnly())
	if err != nil {
		return err
	}
	defer release()

	settings, err := c.settings(j, programs)
	if err != nil {
		return err
	}
	out := report{Settings: settings}
	if c.InitOnly {
		return c.finish(e, out, c.writeSettings(settings))
	}
	mode := programs.IPv4.Node.Mode
	dataplane, err := engine.Open(ctx, mode, apply.Options{IPTables: variantOf(c.Variant), LockTimeout: c.LockTimeout})
	if err != nil {
		return err
	}
	defer dataplane.Close()
	leftovers, err := engine.Leftovers(ctx, mode, dataplane)
	if err != nil {
		return err
	}
	for _, l := range leftovers {
		out.Leftovers = append(out.Leftovers, l.Object)
	}
	if peer := engine.Peers(leftovers); len(peer) > 0 && !c.YesTakeover && !c.lookOnly() {
		return fmt.Errorf("the node carries kube-proxy's rules (%s): stop kube-proxy, then say --yes-takeover", strings.Join(peer, ", "))
	}
	if err := c.writeSettings(settings); err != nil {
		return err
	}
	plan, result, err := apply.Once(ctx, dataplane, programs, func(apply.Plan) bool { return !c.lookOnly() })
	if plan == nil {
		return err
	}
	out.Plan = plan
	if err != nil {
		return c.finish(e, out, errors.Join(err, result.Error()))
	}
	err = result.Error()
	if !c.lookOnly() {
		err = errors.Join(err, engine.Remove(ctx, leftovers))
	}
	stale, staleErr := c.flows(programs, plan.Gone())
	out.Stale = stale
	if c.lookOnly() {
		var dropErr error
		out.MayDrop, dropErr = engine.MayDrop(ctx)
		staleErr = errors.Join(staleErr, dropErr)
	}
	return c.finish(e, out, errors.Join(err, staleErr))
}

// lockToWrite takes the node's lock. Who only looks goes without it, so that a
// daemon, which holds it as long as it runs, can be checked: the kernel gives
// each table as it is between two commits.
func lockToWrite(ctx context.Context, lookOnly bool) (release func() error, err error) {
	if lookOnly {
		return func() error { return nil }, nil
	}
	lock, err := apply.AcquireLock(ctx, lockDir)
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

// settings are the kernel settings that are not yet as wanted.
func (c *applyCmd) settings(j *job, programs ir.Programs) ([]sysctl.Setting, error) {
	host := sysctl.ReadHost(kernelRoot, runtime.NumCPU())
	wanted := append(sysctl.Conntrack(&j.Config.Conntrack, host), sysctl.Dataplane(&programs.IPv4.Node, host)...)
	return sysctl.Diff(kernelRoot, wanted)
}

func (c *applyCmd) writeSettings(settings []sysctl.Setting) error {
	if c.lookOnly() {
		return nil
	}
	return sysctl.Write(kernelRoot, settings)
}

// flows deletes the UDP flows that hold on to what is gone, and gives them.
func (c *applyCmd) flows(programs ir.Programs, gone []ir.Match) ([]conntrack.Stale, error) {
	if !conntrack.Concern(programs, gone) {
		return nil, nil
	}
	table, err := conntrack.Open(0)
	if err != nil {
		return nil, err
	}
	defer table.Close()
	var stale []conntrack.Stale
	for f, p := range programs.All() {
		entries, err := table.UDP(f)
		if err != nil {
			return nil, err
		}
		stale = append(stale, conntrack.Find(entries, ir.NewPrograms(p), gone)...)
	}
	if c.lookOnly() {
		return stale, nil
	}
	entries := make([]conntrack.Entry, len(stale))
	for i, s := range stale {
		entries[i] = s.Entry
	}
	_, err = table.Delete(entries)
	return stale, err
}

// report is what an apply did, or would do.
type report struct {
	Settings  []sysctl.Setting
	Leftovers []string
	Plan      apply.Plan
	Stale     []conntrack.Stale
	// MayDrop are rules of others, which stay: no difference.
	MayDrop []string
}

func (r *report) empty() bool {
	return len(r.Settings) == 0 && len(r.Leftovers) == 0 && len(r.Stale) == 0 && (r.Plan == nil || r.Plan.Empty())
}

// finish prints the report and gives the error with which the verb ends.
func (c *applyCmd) finish(e *env, r report, err error) error {
	printing := r.print
	if c.Output == "json" {
		printing = r.printJSON
	}
	if printErr := printing(e.stdout, c.Output == "wide"); printErr != nil {
		return cmp.Or(err, printErr)
	}
	if err == nil && c.Check && !r.empty() {
		return errFindings
	}
	return err
}

func (r *report) print(w io.Writer, wide bool) error {
	return buffered(w, func(w io.Writer) error {
		for _, s := range r.Settings {
			fmt.Fprintf(w, "set %s # %s\n", s, s.Why)
		}
		for _, l := range r.Leftovers {
			fmt.Fprintf(w, "remove %s\n", l)
		}
		for _, s := range r.Stale {
			fmt.Fprintf(w, "delete flow %s # %s\n", s.Entry, s.Why)
		}
		for _, rule := range r.MayDrop {
			fmt.Fprintf(w, "foreign rules that may drop: %s\n", rule)
		}
		if r.Plan == nil {
			return nil
		}
		return apply.Print(w, r.Plan, wide)
	})
}

func (r *report) printJSON(w io.Writer, _ bool) error {
	var rules json.RawMessage
	if r.Plan != nil {
		var b strings.Builder
		if err := apply.PrintJSON(&b, r.Plan); err != nil {
			return err
		}
		rules = json.RawMessage(b.String())
	}
	flows := make([]string, len(r.Stale))
	for i, s := range r.Stale {
		flows[i] = s.Entry.String()
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Settings  []sysctl.Setting `json:"settings"`
		Leftovers []string         `json:"leftovers"`
		Rules     json.RawMessage  `json:"rules,omitempty"`
		Flows     []string         `json:"flows"`
		MayDrop   []string         `json:"mayDrop,omitempty"`
	}{append([]sysctl.Setting{}, r.Settings...), append([]string{}, r.Leftovers...), rules, flows, r.MayDrop})
}

func (c *cleanupCmd) Run(e *env) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if c.KeepKubeProxy {
		return cleanBeside(ctx, e, c.DryRun)
	}
	return cleanUp(ctx, e, c.DryRun)
}

// errNoPeer keeps the rules of a node that has no others.
var errNoPeer = errors.New("--keep-kube-proxy: kube-proxy has written no rules here, and there would be none: start it first")

// cleanBeside removes what proxyc left on a node to which kube-proxy is back.
func cleanBeside(ctx context.Context, e *env, dryRun bool) error {
	return remove(ctx, e, dryRun, func(ctx context.Context) ([]apply.Leftover, error) {
		all, err := allLeftovers(ctx)
		if err == nil && len(engine.Peers(all)) == 0 {
			err = errNoPeer
		}
		if err != nil {
			return nil, err
		}
		return engine.Beside(ctx)
	})
}

// cleanUp removes all that proxyc or kube-proxy left on the node, in every
// mode and family.
func cleanUp(ctx context.Context, e *env, dryRun bool) error {
	return remove(ctx, e, dryRun, allLeftovers)
}

// remove removes what find gives, and prints it.
func remove(ctx context.Context, e *env, dryRun bool, find func(context.Context) ([]apply.Leftover, error)) error {
	if err := needRoot("cleanup"); err != nil {
		return err
	}
	release, err := lockToWrite(ctx, dryRun)
	if err != nil {
		return err
	}
	defer release()
	leftovers, err := find(ctx)
	for _, l := range leftovers {
		fmt.Fprintf(e.stdout, "remove %s\n", l.Object)
	}
	if err == nil && len(leftovers) == 0 {
		fmt.Fprintln(e.stdout, "nothing to remove")
	}
	if dryRun {
		return err
	}
	return errors.Join(err, engine.Remove(ctx, leftovers))
}

// allLeftovers are those of all modes.
func allLeftovers(ctx context.Context) ([]apply.Leftover, error) {
	return engine.Leftovers(ctx, "", nil)
}

// variantOf reads --iptables-variant; empty: the one that the node uses.
func variantOf(flag string) string {
	if flag == "auto" {
		return ""
	}
	return flag
}
