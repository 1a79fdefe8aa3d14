package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/monitor"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// Variant selects the kernel interface of the tools. Each variant shows only its own rules, but
// packets pass the rules of both.
type Variant string

const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// maxRulesNFT is the maximum number of rules per run of iptables-nft-restore, whose time grows
// superlinearly.
const maxRulesNFT = 4000

// toolDeadline is the maximum duration of a run of a tool. A tool that hangs is killed, so that the
// rules are not outdated for longer.
const toolDeadline = 5 * time.Minute

// runner runs a tool, like [run.To].
type runner func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error

// withDeadline returns a runner that kills a tool after deadline.
func withDeadline(r runner, deadline time.Duration) runner {
	return func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
		ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("%s was killed: it took more than %s", name, deadline))
		defer cancel()
		err := r(ctx, stdin, stdout, name, args...)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}
}

// Dataplane is the iptables of the process's network namespace.
type Dataplane struct {
	Variant  Variant
	version  version
	families []ir.Family // supported by the kernel
	wait     time.Duration
	maxNFT   int // maximum rules per run of the nft variant
	run      runner

	chainToolsMu sync.Mutex
	chainTools   ir.PerFamily[chainTool] // nil until needed

	readOnly bool         // disables changes
	log      *slog.Logger // optional
	lowering Lowering
	found    rules.Rulesets // from the last Read
	applied  apply.Applied
	lowerers ir.PerFamily[Lowerer] // for the applied Programs; nil until needed
	monitor  monitor.Handle
}

var (
	_ apply.Dataplane      = (*Dataplane)(nil)
	_ apply.LeftoverFinder = (*Dataplane)(nil)
	_ apply.Counted        = (*Dataplane)(nil)
)

// Lowering renders Programs as tables. Modes that use iptables among other things have their own.
type Lowering struct {
	// All returns the tables for the Programs of a node.
	All func(ir.Programs) rules.Rulesets
	// Changes returns the Lowerer for changes of a Program.
	Changes func(*ir.Program) Lowerer
}

// Lowerer renders changes of a Program, like rules.Lowerer.
type Lowerer interface {
	Change([]ir.Change) (have, want *rules.Ruleset)
	Size() [2]int
}

// ModeIPTables is the Lowering of mode iptables.
var ModeIPTables = Lowering{
	All:     rules.LowerAll,
	Changes: func(p *ir.Program) Lowerer { return rules.NewLowerer(p) },
}

// Open determines the variant that the node uses, the version of the tools, and the families that
// the kernel supports. The default of LockTimeout is 5 s.
func Open(ctx context.Context, o apply.Options) (*Dataplane, error) {
	return OpenWith(ctx, ModeIPTables, o)
}

// OpenWith is like Open for the rules of another mode.
func OpenWith(ctx context.Context, lowering Lowering, o apply.Options) (*Dataplane, error) {
	d := &Dataplane{Variant: Variant(o.IPTables), lowering: lowering, wait: cmp.Or(o.LockTimeout, 5*time.Second), maxNFT: maxRulesNFT, run: withDeadline(run.To, toolDeadline), log: o.Log, readOnly: o.ReadOnly}
	if err := d.detect(ctx); err != nil {
		return nil, err
	}
	if o.Log != nil {
		o.Log.Info("using iptables", "variant", d.Variant)
	}
	var missing []error
	for _, f := range ir.Families() {
		if _, err := d.exists(ctx, f, "nat", "POSTROUTING"); unsupported(err) {
			missing = append(missing, err)
			continue
		} else if err != nil {
			return nil, err
		}
		d.families = append(d.families, f)
	}
	if len(d.families) == 0 {
		return nil, missing[0] // the errors of all families are alike
	}
	return d, nil
}

// unsupported reports whether a tool's error means that the tool does not exist, or that the kernel lacks
// a feature: xtables exits with 1 to 3 then. A tool that was killed, could not start, or did not
// get the lock is not evidence for that.
func unsupported(err error) bool {
	if exit, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		return 1 <= exit.ExitCode() && exit.ExitCode() <= 3
	}
	return errors.Is(err, exec.ErrNotFound)
}

// Families returns the families that the kernel supports. Plans contain only these.
func (d *Dataplane) Families() []ir.Family { return slices.Clone(d.families) }

// detect determines variant and version.
func (d *Dataplane) detect(ctx context.Context) error {
	if d.Variant == "" {
		v, err := d.detectVariant(ctx)
		if err != nil {
			return err
		}
		d.Variant = v
	}
	out, err := d.output(ctx, tool(ir.IPv4, d.Variant, "restore"), "--version")
	if err != nil {
		return err
	}
	d.version = parseVersion(out)
	return nil
}

// tool returns the name of a tool: iptables-nft-restore.
func tool(f ir.Family, v Variant, verb string) string {
	return rules.Tool(f) + "-" + string(v) + "-" + verb
}

// detectVariant returns the variant that the node uses. It is, in this order: the one with the kubelet's
// hint chain (KEP-3178, iptables ownership), the one with rules of kube-proxy or proxyc, the one
// with more rules, nft. The legacy tools are run only if legacy tables exist. They would create
// tables that every packet then has to pass.
func (d *Dataplane) detectVariant(ctx context.Context) (Variant, error) {
	type sign struct{ table, chain string }
	var signs []sign
	for _, chain := range rules.KubeletChains() {
		signs = append(signs, sign{"mangle", chain})
	}
	signs = append(signs, sign{"nat", rules.ChainServices})
	candidates := []*Dataplane{{Variant: NFT, wait: d.wait, run: d.run}}
	if has, err := hasLegacyTables(); has || err != nil {
		candidates = append(candidates, &Dataplane{Variant: Legacy, wait: d.wait, run: d.run})
	}
	for _, sign := range signs {
		for _, of := range candidates {
			for _, f := range ir.Families() {
				if found, err := of.exists(ctx, f, sign.table, sign.chain); err != nil && !unsupported(err) {
					return "", err
				} else if found {
					return of.Variant, nil
				}
			}
		}
	}
	return d.variantWithMoreRules(ctx)
}

// variantWithMoreRules returns the variant with more rules, or nft if there are none.
func (d *Dataplane) variantWithMoreRules(ctx context.Context) (best Variant, err error) {
	most := -1
	var missing []error
	for _, v := range [...]Variant{NFT, Legacy} {
		if v == Legacy && best == NFT {
			if has, err := hasLegacyTables(); !has && err == nil {
				break
			}
		}
		for _, f := range ir.Families() {
			out, err := d.output(ctx, tool(f, v, "save"))
			if err != nil && !unsupported(err) {
				return "", err
			}
			if err != nil {
				missing = append(missing, err)
				continue
			}
			if n := strings.Count(out, "\n-A "); n > most {
				best, most = v, n
			}
		}
	}
	if best == "" {
		return "", errors.Join(missing...)
	}
	return best, nil
}

// version is a release of the tools: {1, 8, 9} for 1.8.9.
type version [3]int

// parseVersion parses "iptables-restore v1.8.9 (nf_tables)". It returns the oldest relevant version
// if it cannot.
func parseVersion(s string) version {
	for word := range strings.FieldsSeq(s) {
		parts := strings.Split(strings.TrimPrefix(word, "v"), ".")
		if word[0] != 'v' || len(parts) != 3 {
			continue
		}
		var v version
		for i, p := range parts {
			n, err := strconv.Atoi(p)
			if err != nil {
				return version{1, 4, 11}
			}
			v[i] = n
		}
		return v
	}
	return version{1, 4, 11}
}

func (v version) atLeast(o version) bool { return slices.Compare(v[:], o[:]) >= 0 }

// since1_6_2 reports whether iptables-restore can wait for the lock, and MASQUERADE supports random
// ports.
func (v version) since1_6_2() bool { return v.atLeast(version{1, 6, 2}) }

// since1_8_6 reports whether the legacy tools accept another lock file than their own.
func (v version) since1_8_6() bool { return v.atLeast(version{1, 8, 6}) }

// locks reports whether this process holds the lock of the legacy tools while it runs them. Older
// tools lock themselves. Other programs may then change the tables before the monitor reads the
// result, so everything is compared after each run.
func (d *Dataplane) locks() bool { return d.Variant == Legacy && d.version.since1_8_6() }

// waitFlags returns the options that make iptables-restore wait for the lock. The nft variant has
// none.
func (d *Dataplane) waitFlags() []string {
	if d.Variant != Legacy || !d.version.since1_6_2() {
		return nil
	}
	return []string{"--wait=" + strconv.Itoa(d.waitSeconds()), "--wait-interval=100000"}
}

// waitSeconds returns the lock timeout in seconds, at least 1: for the tools 0 is infinite.
func (d *Dataplane) waitSeconds() int {
	return max(1, int(d.wait.Round(time.Second)/time.Second))
}

// save writes a table to out.
func (d *Dataplane) save(ctx context.Context, f ir.Family, table string, out io.Writer) error {
	return d.run(ctx, nil, out, tool(f, d.Variant, "save"), "-t", table)
}

// output runs a tool and returns its output.
func (d *Dataplane) output(ctx context.Context, name string, args ...string) (string, error) {
	var out strings.Builder
	err := d.run(ctx, nil, &out, name, args...)
	return out.String(), err
}

// Read reads our chains in the tables filter and nat.
func (d *Dataplane) Read(ctx context.Context, _ ir.Programs) (err error) {
	d.found, err = d.read(ctx)
	return err
}

func (d *Dataplane) read(ctx context.Context) (sets rules.Rulesets, err error) {
	for _, f := range d.families {
		if *sets.At(f), err = d.readFamily(ctx, f); err != nil {
			return sets, err
		}
		if d.Variant != NFT {
			continue
		}
		for _, t := range sets.Of(f).Tables() {
			if t.Dormant, err = dormant(f, t.Name); err != nil {
				return sets, err
			}
		}
	}
	return sets, nil
}

// readFamily reads our chains of a family. If the tools cannot list them, it removes the rules that
// cause this, and tries again.
func (d *Dataplane) readFamily(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	for {
		r, err := d.listFamily(ctx, f)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		removed, why := d.removeNatives(f)
		if why != nil {
			return nil, fmt.Errorf("%w; %w", err, why)
		}
		if !removed {
			return nil, err
		}
	}
}

// incompatible is what iptables-nft-save prints, with exit status 0, instead of a table with
// unknown rules.
const incompatible = "is incompatible, use 'nft' tool"

func (d *Dataplane) listFamily(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	saved := iptparse.NewParser(f)
	for _, table := range [...]string{"filter", "nat"} {
		unlisted := finder{text: incompatible}
		if err := d.save(ctx, f, table, io.MultiWriter(saved, &unlisted)); err != nil {
			return nil, err
		}
		if unlisted.found {
			return nil, fmt.Errorf("%s: table %s %s", tool(f, d.Variant, "save"), table, incompatible)
		}
	}
	r, err := saved.Ruleset()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool(f, d.Variant, "save"), err)
	}
	return r, nil
}

// tool returns the name of the tool for single rules: iptables-nft.
func (d *Dataplane) tool(f ir.Family) string { return rules.Tool(f) + "-" + string(d.Variant) }

// Found returns the result of the last Read, for Difference.
func (d *Dataplane) Found() rules.Rulesets { return d.found }

// Rulesets reads our chains.
func (d *Dataplane) Rulesets(ctx context.Context) (rules.Rulesets, error) { return d.read(ctx) }

// Plan compares the state that was read with the Programs.
func (d *Dataplane) Plan(want ir.Programs) apply.Plan {
	p := d.Difference(d.found, d.lowering.All(want))
	p.desired = apply.Desired{Full: true, Programs: want}
	return p
}

// Difference plans the changes from one state to another. It omits families that the kernel lacks,
// and options that the tools lack. The plan contains only the differences, since it exists while
// the tools run, which need memory, too.
func (d *Dataplane) Difference(have, want rules.Rulesets) *Plan {
	var old, now rules.Rulesets
	var sizes ir.PerFamily[[2]int]
	for f, w := range ir.Present(want.PerFamily) {
		if slices.Contains(d.families, f) {
			w = d.supported(w)
			*sizes.At(f) = w.Size()
			*old.At(f), *now.At(f) = differing(family(have, f), w)
		}
	}
	return newPlan(old, now).sized(sizes)
}

// PlanChanges plans the changed Services only. It omits families without changes.
func (d *Dataplane) PlanChanges(changes ir.Changes) apply.Plan {
	if d.lowerers == (ir.PerFamily[Lowerer]{}) {
		d.lowerers = d.assemble(d.applied.Programs())
	}
	var have, want rules.Rulesets
	var sizes ir.PerFamily[[2]int]
	for f, a := range d.lowerers.All() {
		if a == nil || len(changes.Of(f)) == 0 {
			continue
		}
		h, w := a.Change(changes.Of(f))
		*have.At(f), *want.At(f) = d.supported(h), d.supported(w)
		*sizes.At(f) = a.Size()
	}
	p := newPlan(have, want).sized(sizes)
	p.desired.Changes = changes
	return p
}

// Compare runs only tools that read, which need no lock.
func (d *Dataplane) Compare(ctx context.Context) (apply.Plan, error) {
	found, err := d.read(ctx)
	if err != nil {
		return nil, err
	}
	return d.Difference(found, d.lowering.All(d.applied.Programs())), nil
}

// assemble returns the Lowerers for the tables of Programs.
func (d *Dataplane) assemble(programs ir.Programs) (all ir.PerFamily[Lowerer]) {
	for f, p := range ir.Present(programs) {
		if slices.Contains(d.families, f) {
			*all.At(f) = d.lowering.Changes(p)
		}
	}
	return all
}

// remember records a Plan as applied.
func (d *Dataplane) remember(p *Plan) {
	d.applied.Take(p.desired)
	if p.desired.Full {
		d.lowerers = ir.PerFamily[Lowerer]{}
	}
}

// Applied returns the Programs that were last known to be applied.
func (d *Dataplane) Applied() *apply.Applied { return &d.applied }

// Leftovers returns iptables rules of other modes and of kube-proxy, in both variants.
func (d *Dataplane) Leftovers(ctx context.Context) ([]apply.Leftover, error) {
	return Leftovers(ctx, d)
}

// Counters returns the packet counters of our rules.
func (d *Dataplane) Counters() apply.Counters {
	return apply.Counters{InvalidDropped: d.invalidDropped, LocalhostNodePorts: d.localhostNodePorts}
}

// Close closes the monitor of Drift.
func (d *Dataplane) Close() error { return d.monitor.Close() }

// supported returns r without options that the tools do not support.
func (d *Dataplane) supported(r *rules.Ruleset) *rules.Ruleset {
	if d.version.since1_6_2() {
		return r
	}
	return r.WithoutRandomFully()
}

// Saved returns the output of the variant's iptables-save for all tables of a family.
func (d *Dataplane) Saved(ctx context.Context, f ir.Family) (string, error) {
	return d.output(ctx, tool(f, d.Variant, "save"))
}
