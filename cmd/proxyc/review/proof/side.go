package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/ipvs"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
	nftparse "github.com/proxyc/proxyc/render/nftables/parse"
	"github.com/proxyc/proxyc/render/xtables"
)

// Side is one side of a proof.
type Side struct {
	name        string
	sides       ir.PerFamily[*prove.Side]   // nil if the side does not have the family
	toward      ir.PerFamily[toward]        // nil if the rules cannot be followed, or there are none
	programs    ir.Programs                 // source of the side; nil for a dump
	caps        ir.PerFamily[ir.Capability] // of a dump's rules
	mode        ir.Mode                     // of the rules; "" if there are none
	notCompared []string                    // parts of a dump that are not compared
	altered     bool                        // some of them may change results
	dump        printed                     // tool that printed the dump; "" if the side is not a dump
}

// beside adds effects on packets besides our rules, which are not compared.
func (d *Side) beside(others apply.Interference, more ...string) {
	d.notCompared = slices.Concat(d.notCompared, others.Lines(), more)
	d.altered = d.altered || len(others.Drops)+len(others.Diverts)+len(others.Settings)+len(more) > 0
}

// missing returns what a dump without rules of a family needs in addition.
func (d *Side) missing(f ir.Family) string {
	tool := "nft list ruleset"
	switch {
	case d.dump == "":
		return ""
	case d.dump == savedRules && f == ir.IPv6:
		tool = "ip6tables-save"
	case d.dump == savedRules:
		tool = "iptables-save"
	}
	return "; add the output of " + tool + " on the node to " + d.name
}

// notes explains differences between a side and another one.
func (d *Side) notes(other *Side) (notes []string) {
	for f, p := range ir.Present(other.programs) {
		if mode := p.Node.Mode; d.dump != "" && other.name == "ir" && mode != d.mode {
			return []string{fmt.Sprintf("%s contains rules of mode %s, the configuration has mode %s: add --mode %s", d.name, d.mode, mode, d.mode)}
		}
		for _, addr := range cmp.Or(d.programs.Of(f), &ir.Program{}).Node.Addrs {
			if !p.Node.HasAddr(addr) {
				notes = append(notes, fmt.Sprintf("only %s has the node's address %s; --live reads the addresses of this node", d.name, addr))
			}
		}
	}
	for _, caps := range d.caps.All() {
		if d.mode == ir.ModeNFTables && caps != 0 && !caps.Has(ir.SourceRanges) {
			notes = []string{d.name + " contains rules of kube-proxy 1.29, whose mode nftables was alpha: source ranges have no effect, and node ports of policy Local drop packets from the node itself"}
		}
	}
	return notes
}

func (d *Side) set(f ir.Family, s prove.Side) { *d.sides.At(f) = &s }

// toward returns the rules that a packet meets on its way to one result.
type toward func(sim.Packet, sim.Chance) []sim.Met

// lazily creates a Follower for the first packet, because a Follower indexes all rules.
func lazily(make func() review.Follower) toward {
	made := sync.OnceValue(make)
	return func(pkt sim.Packet, to sim.Chance) []sim.Met { return made().Toward(pkt, to) }
}

// meant returns the Program of the side, for a dump that of the other side.
func (d *Side) meant(f ir.Family, of *ir.Program) prove.Meant {
	if caps := d.caps.Of(f); caps != 0 {
		return prove.Meant{Program: of, Caps: caps}
	}
	return prove.MeantBy(d.programs.Of(f))
}

// table adds an nf_tables table such as "ip proxyc".
func (d *Side) table(name string, r *nftables.Ruleset, own *sim.Own) {
	d.rules(ir.ModeNFTables, r.Family, nftparse.Capabilities(r), nfteval.NewEvaluator(r, own).Named(name),
		func() review.Follower { return nfteval.NewFollower(r, own).Named(name) })
}

// chains adds iptables rules.
func (d *Side) chains(r *iptables.Ruleset, own *sim.Own) {
	d.rules(ir.ModeIPTables, r.Family, ir.ModeIPTables.Capabilities(), ipteval.NewEvaluator(r, own), func() review.Follower { return xtables.NewFollower(r, own) })
}

// servers adds the rules and virtual servers of one family in mode ipvs.
func (d *Side) servers(r *ipvs.Ruleset, own *sim.Own) {
	d.rules(ir.ModeIPVS, r.Family, ir.ModeIPVS.Capabilities(), ipvseval.NewEvaluator(r, own), func() review.Follower { return ipvseval.NewFollower(r, own) })
}

// rules adds the rules of a family.
func (d *Side) rules(mode ir.Mode, f ir.Family, caps ir.Capability, of prove.Side, follower func() review.Follower) {
	d.mode = mode
	*d.caps.At(f) = caps
	d.set(f, of)
	*d.toward.At(f) = lazily(follower)
}

// program adds the rules of a Program.
func (d *Side) program(p *ir.Program) {
	d.mode = p.Node.Mode
	mode := review.Modes[d.mode]
	d.set(p.Family, mode.Evaluate(p))
	if mode.Follow != nil {
		*d.toward.At(p.Family) = lazily(func() review.Follower { return mode.Follow(p) })
	}
}

// sideForms lists the names of sides, for errors and help.
const sideForms = "mode:MODE, ir, ir:FILE, dump:FILE[,FILE], live[:PATH] or kernel"

// Kernel names the side of the rules in this node's kernel.
const Kernel = "kernel"

// Reader reads sides.
type Reader struct {
	Input    *review.Input
	Programs ir.Programs // of the configuration without a change of mode
	Files    review.Files
	Limit    int64 // maximum size of a side's files in bytes; 0 for no limit
	// Resolve returns the configuration with another mode.
	Resolve func(mode string) (*config.Resolved, diag.List)
	Variant string // iptables variant of side kernel; "" for the one that the node uses
}

// Read reads a side by its name on the command line.
func (r *Reader) Read(ctx context.Context, name string) (*Side, error) {
	kind, arg, _ := strings.Cut(name, ":")
	d := &Side{name: name}
	left := cmp.Or(r.Limit, files.Unlimited)
	read := func(file string) ([]byte, error) {
		text, err := r.Files.Read(file, &left)
		if errors.Is(err, files.ErrTooMuch) {
			err = files.TooMuch("with this file, the side", r.Limit)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return text, nil
	}
	switch {
	case kind == "mode":
		return d, r.ofMode(d, arg)
	case name == "ir":
		d.meaning(r.Programs)
		return d, nil
	case kind == "ir" && arg != "":
		text, err := read(arg)
		if err != nil {
			return nil, err
		}
		programs, err := review.ParseIR(arg, text)
		if err != nil {
			return nil, err
		}
		d.meaning(programs)
		return d, nil
	case kind == "dump" && arg != "":
		dumped := dumpFiles{Side: d, programs: r.Programs}
		for _, file := range strings.Split(arg, ",") {
			text, err := read(file)
			if err != nil {
				return nil, err
			}
			if err := dumped.add(file, string(text)); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
		return d, dumped.end()
	case kind == "live":
		read, err := review.FetchIR(ctx, cmp.Or(arg, host.DaemonSocket()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		d.meaning(read)
		return d, nil
	case name == Kernel:
		return d, d.kernel(ctx, r.Programs, r.Variant)
	}
	hint := ""
	if slices.Contains(provable(), name) {
		hint = " (did you mean mode:" + name + "?)"
	}
	return nil, fmt.Errorf("%q: must be %s%s", name, sideForms, hint)
}

// meaning adds the meaning of Programs.
func (d *Side) meaning(programs ir.Programs) {
	d.programs = programs
	for f, p := range ir.Present(programs) {
		d.set(f, sim.NewEvaluator(p))
	}
}

// ErrWrongMode is returned if the configuration is invalid in the mode of a side. The findings of
// the input have the details.
var ErrWrongMode = errors.New("the configuration has errors in this mode")

// ofMode compiles the input for a mode and adds the rules.
func (r *Reader) ofMode(d *Side, mode string) error {
	if _, known := review.Modes[ir.Mode(mode)]; !known {
		return fmt.Errorf("mode:MODE: %w", diag.NotOneOf(mode, provable()))
	}
	resolved, findings := r.Resolve(mode)
	if findings.HasErrors() {
		r.Input.Diags.Add(findings...)
		return ErrWrongMode
	}
	d.lower(resolved, r.Input)
	return nil
}

func (d *Side) lower(resolved *config.Resolved, j *review.Input) {
	var diags diag.List
	d.programs, diags = compiler.Compile(resolved.Config, j.Snapshot, j.Facts)
	for _, one := range diags {
		if one.Severity == diag.Error {
			j.Diags.Add(one)
		}
	}
	for _, p := range ir.Present(d.programs) {
		d.program(p)
	}
}

func provable() (modes []string) {
	for m := range review.Modes {
		modes = append(modes, string(m))
	}
	slices.Sort(modes)
	return modes
}
