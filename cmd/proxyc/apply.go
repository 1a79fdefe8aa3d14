package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/oneshot"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

type applyCmd struct {
	configFlags
	Snapshot []string   `short:"s" placeholder:"FILE" sep:"none" help:"Snapshot of the cluster: a file, a directory, or - for standard input. May be repeated."`
	Limit    help.Bytes `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"Limit of the size of all snapshot files; 0: no limit."`

	DryRun      bool          `help:"Print the changes, and write nothing."`
	Check       bool          `help:"Print the differences, write nothing, and exit 1 if there are any."`
	AllowEmpty  bool          `help:"Accept a snapshot that looks incomplete. It contains no Service, lacks the EndpointSlices of Services with selectors, or has an empty file, as after a failed kubectl. All rules for Services, or all backends, are then removed."`
	YesTakeover bool          `name:"yes-takeover" help:"Replace the rules of kube-proxy on this node."`
	Output      string        `short:"o" enum:"text,wide,json" default:"text" help:"Output: text, wide or json. Format text counts operations by Service, and shows the first differences of --check. Format wide lists each operation with its origin, the actual and the desired state. Format json contains both."`
	Variant     string        `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Variant of iptables: auto, nft or legacy. auto is the one that the node uses."`
	LockTimeout time.Duration `default:"30s" placeholder:"DURATION" help:"Longest wait for a lock that another program holds."`
	ipvsFlags
}

// ipvsFlags are settings of mode ipvs that the configuration lacks.
type ipvsFlags struct {
	ManageAll     bool          `name:"ipvs-manage-all" help:"Remove virtual servers of other programs too, as kube-proxy does (mode ipvs). Those in ipvs.excludeCIDRs are kept."`
	DrainDeadline time.Duration `name:"ipvs-drain-deadline" default:"1h" placeholder:"DURATION" help:"Longest time that a removed backend keeps its connections (mode ipvs). After a change from mode ipvs, watch keeps such connections too."`
}

func (f ipvsFlags) options() apply.IPVS {
	return apply.IPVS{ManageAll: f.ManageAll, DrainDeadline: f.DrainDeadline}
}

type cleanupCmd struct {
	DryRun        bool `help:"Print what would be removed, but remove nothing."`
	KeepKubeProxy bool `help:"Remove only proxyc's rules, beside a running kube-proxy."`
}

// readOnly reports whether the command must not write.
func (c *applyCmd) readOnly() bool { return c.DryRun || c.Check }

func (c *applyCmd) Run(e *env) (err error) {
	if c.DryRun && c.Check {
		return errors.New("--dry-run, --check: cannot be combined")
	}
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	j := &review.Input{Snapshot: snapshot.New()}
	j.Resolved, err = c.resolve(e)
	if err != nil {
		if errors.Is(err, errReported) { // the snapshot may have errors, too
			e.readSnapshot(j, c.Snapshot, int64(c.Limit))
			e.report(slices.DeleteFunc(j.Diags, func(d diag.Diagnostic) bool { return d.Severity != diag.Error }))
		}
		return err
	}
	if c.Cleanup {
		return cleanUp(ctx, e, false, c.readOnly())
	}
	if !c.InitOnly && len(c.Snapshot) == 0 {
		return errNoSnapshot
	}
	if err := c.read(e, j); err != nil {
		return e.finish(j, err)
	}
	if err := needRoot("apply"); err != nil {
		return e.finish(j, err)
	}
	if err := j.ReadFacts(e.interfaces); err != nil {
		return e.finish(j, err)
	}
	j.Facts.Files = j.Facts.Files || !c.readOnly()
	programs := j.Compile()
	j.WarnRefused()
	e.report(j.Findings())
	if wholeFile(j.Diags) {
		return errReported
	}
	if err := c.converge(ctx, e, j, programs); err != nil && !errors.Is(err, errFindings) || !j.Diags.HasErrors() {
		return err
	}
	return errReported // valid objects are applied, and errors were printed
}

// read reads the snapshot, which must have what the rules of this node need.
func (c *applyCmd) read(e *env, j *review.Input) error {
	j.Reader.Whole, j.AllowEmpty, j.EmptyHint = true, c.AllowEmpty || c.InitOnly, ", or use --allow-empty if that is intended"
	if !e.readSnapshot(j, c.Snapshot, int64(c.Limit)) {
		return errReported
	}
	why := j.Reader.Missing(j.Snapshot)
	switch {
	case why == "" || j.AllowEmpty:
	case wholeFile(j.Diags): // a truncated file explains an empty snapshot, which is then not intended
		return errReported
	default:
		return fmt.Errorf("-s: the snapshot %s: use --allow-empty if that is intended", why)
	}
	if err := e.setNode(j, ""); err != nil || c.InitOnly {
		return err
	}
	// Rules without addresses, zone and endpoints would replace the node's own.
	if err := j.NoSuchNode("--hostname-override", deref(c.HostnameOverride) != ""); err != nil {
		return err
	}
	if lack := daemon.MissingPodRanges(j.Config, j.Snapshot, j.Facts.NodeName); lack != "" {
		return errors.New("missing: " + lack + "; the rules are unchanged")
	}
	return nil
}

// wholeFile reports whether an error is about a whole file, rather than an object.
func wholeFile(all diag.List) bool {
	return slices.ContainsFunc(all, func(d diag.Diagnostic) bool { return d.Severity == diag.Error && d.Object == "" })
}

// converge applies the Programs to the node once.
func (c *applyCmd) converge(ctx context.Context, e *env, j *review.Input, programs ir.Programs) error {
	once := &oneshot.Apply{Config: j.Config, Programs: programs, IPTables: c.Variant, LockTimeout: c.LockTimeout,
		IPVS: c.ipvsFlags.options(), DryRun: c.readOnly(), Takeover: c.YesTakeover, SettingsOnly: c.InitOnly,
		Waiting: func(why error) { fmt.Fprintf(e.stderr, "waiting for another proxyc process to stop: %s\n", why) }}
	done, err := once.Run(ctx)
	if done == nil {
		return err
	}
	return c.finish(e, outcome{done}, err)
}

// outcome is what an apply did, or would do, for output.
type outcome struct{ *oneshot.Report }

// finish prints the report, and returns the command's error.
func (c *applyCmd) finish(e *env, r outcome, err error) error {
	printing := r.print
	if c.Output == "json" {
		printing = r.printJSON
	}
	shown := 0 // operations of the plan
	switch {
	case c.Output == "wide":
		shown = apply.All
	case c.Check:
		shown = differencesShown
	}
	if printErr := printing(e.stdout, shown); printErr != nil {
		return cmp.Or(err, printErr)
	}
	e.warn(r.Exposed)
	if r.ForeignErr != nil {
		e.warn("foreign rules are not known: " + r.ForeignErr.Error())
	}
	if err == nil && c.Check && !r.Empty() {
		return errFindings
	}
	return err
}

// differencesShown is how many operations text output shows on request.
const differencesShown = 20

func (r *outcome) print(w io.Writer, operations int) error {
	return review.Buffered(w, func(w io.Writer) error {
		for _, s := range r.Settings {
			fmt.Fprintf(w, "set %s # %s\n", s, s.Why)
		}
		for _, l := range r.Leftovers {
			fmt.Fprintf(w, "remove %s\n", l)
		}
		for _, k := range r.Kept {
			fmt.Fprintf(w, "keep %s # until its connections end: %d\n", k.Object, k.Connections)
		}
		for _, s := range r.Stale {
			fmt.Fprintf(w, "delete flow %s # %s\n", s.Entry, s.Why)
		}
		for _, line := range r.Foreign.Lines() {
			fmt.Fprintln(w, line)
		}
		for _, port := range r.Unserved {
			fmt.Fprintf(w, "not served: %s\n", port)
		}
		if r.Plan == nil {
			return nil
		}
		return apply.Print(w, r.Plan, operations)
	})
}

func (r *outcome) printJSON(w io.Writer, _ int) error {
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
	return review.WriteDocument(w, "Plan", "  ", struct {
		Settings  []sysctl.Setting `json:"settings"`
		Leftovers []string         `json:"leftovers"`
		Kept      []status.Kept    `json:"kept,omitempty"`
		Rules     json.RawMessage  `json:"rules,omitempty"`
		Flows     []string         `json:"flows"`
		MayDrop   []string         `json:"mayDrop,omitempty"`
		MayDivert []string         `json:"mayDivert,omitempty"`
		Discards  []string         `json:"mayDiscard,omitempty"` // kernel settings and routes
		Unserved  []string         `json:"unserved,omitempty"`
	}{append([]sysctl.Setting{}, r.Settings...), append([]string{}, r.Leftovers...), r.Kept, rules, flows, r.Foreign.Drops, r.Foreign.Diverts, r.Foreign.Settings, r.Unserved})
}

func (c *cleanupCmd) Run(e *env) (err error) {
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	return cleanUp(ctx, e, c.KeepKubeProxy, c.DryRun)
}

// cleanUp removes everything that proxyc or kube-proxy left on the node, in every mode and family.
// With keepKubeProxy it removes what proxyc left besides kube-proxy's rules.
func cleanUp(ctx context.Context, e *env, keepKubeProxy, dryRun bool) error {
	if err := needRoot("cleanup"); err != nil {
		return err
	}
	var found []apply.Leftover
	err := oneshot.Cleanup(ctx, keepKubeProxy, dryRun, func(leftovers []apply.Leftover, kept []string) {
		found = leftovers
		to := e.stdout
		if len(leftovers) == 0 {
			to = e.stderr
			fmt.Fprintln(e.stdout, "nothing to remove")
		}
		for _, l := range leftovers {
			fmt.Fprintf(e.stdout, "remove %s\n", l.Object)
		}
		for _, k := range kept {
			fmt.Fprintf(to, "keep %s\n", k)
		}
	})
	if !dryRun {
		e.warn(host.Exposed(found, ir.Programs{}))
	}
	return err
}

// warn prints a warning, unless it is empty.
func (e *env) warn(text string) {
	if text != "" {
		fmt.Fprintln(e.stderr, "warning: "+text)
	}
}
