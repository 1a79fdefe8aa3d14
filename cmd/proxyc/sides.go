package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/hns"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/userspace"
)

// ruleSides lower a Program to the rules of its mode, to be compared.
var ruleSides = map[ir.Mode]func(*ir.Program) prove.Side{
	ir.ModeIPTables:    func(p *ir.Program) prove.Side { return iptables.NewEvaluator(iptables.Lower(p), ownOf(p)) },
	ir.ModeNFTables:    func(p *ir.Program) prove.Side { return nftables.NewEvaluator(nftables.Lower(p), ownOf(p)) },
	ir.ModeIPVS:        func(p *ir.Program) prove.Side { return ipvs.NewEvaluator(ipvs.Lower(p), ownOf(p)) },
	ir.ModeKernelspace: func(p *ir.Program) prove.Side { return hns.NewEvaluator(hns.Lower(p), ownOf(p)) },
	ir.ModeUserspace:   func(p *ir.Program) prove.Side { return userspace.NewEvaluator(userspace.Lower(p), ownOf(p)) },
}

// ownOf returns what a Program's node has for itself.
func ownOf(p *ir.Program) *sim.Own {
	own := sim.NewOwn(p.Family.Loopback(), p.Node.Addrs)
	own.Mark = p.Node.MasqueradeMark()
	return own
}

// described is one side of a proof.
type described struct {
	name     string
	sides    ir.PerFamily[*prove.Side] // nil: the side says nothing of the family
	programs ir.Programs               // what it was made of; nil for a dump
	leftOut  []string                  // what a dump holds besides, which is not compared
}

func (d *described) set(f ir.Family, s prove.Side) { *d.sides.At(f) = &s }

// forms of sides, for errors and help.
const sideForms = "mode:MODE, ir, ir:FILE, dump:FILE[,FILE], live:SOCKET or kernel"

// sideFiles returns the files that a side is read from.
func sideFiles(name string) []string {
	switch kind, arg, _ := strings.Cut(name, ":"); kind {
	case "ir":
		return []string{arg}
	case "dump":
		return strings.Split(arg, ",")
	}
	return nil
}

// describe reads a side as the command line names it. programs are those of the
// configuration as it is.
func (c *proveCmd) describe(ctx context.Context, e *env, j *job, programs ir.Programs, name string) (*described, error) {
	kind, arg, _ := strings.Cut(name, ":")
	d := &described{name: name}
	left := cmp.Or(int64(c.Limit), files.Unlimited)
	read := func(file string) ([]byte, error) {
		text, err := e.read(file, &left)
		if errors.Is(err, files.ErrTooMuch) {
			err = files.TooMuch("with it the side", int64(c.Limit))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return text, nil
	}
	switch {
	case kind == "mode":
		return d, c.ofMode(e, j, d, arg)
	case name == "ir":
		d.meaning(programs)
		return d, nil
	case kind == "ir" && arg != "":
		text, err := read(arg)
		if err != nil {
			return nil, err
		}
		programs, err := ir.ReadJSON(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arg, err)
		}
		d.meaning(programs)
		return d, nil
	case kind == "dump" && arg != "":
		for _, file := range sideFiles(name) {
			text, err := read(file)
			if err != nil {
				return nil, err
			}
			if err := d.dump(string(text), programs); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
		return d, nil
	case kind == "live" && arg != "":
		read, err := liveIR(ctx, arg)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		d.meaning(read)
		return d, nil
	case name == "kernel":
		if err := needRoot("prove"); err != nil {
			return nil, err
		}
		return d, d.kernel(ctx, programs, variantOf(c.Variant))
	}
	return nil, fmt.Errorf("%q: must be %s", name, sideForms)
}

// meaning takes Programs by what the IR means.
func (d *described) meaning(programs ir.Programs) {
	d.programs = programs
	for f, p := range ir.Present(programs) {
		d.set(f, sim.NewEvaluator(p))
	}
}

// ofMode compiles for a mode and takes its rules.
func (c *proveCmd) ofMode(e *env, j *job, d *described, mode string) error {
	if ruleSides[ir.Mode(mode)] == nil {
		return fmt.Errorf("%s: must be one of the modes %s", d.name, strings.Join(provable(), ", "))
	}
	flags := c.configFlags
	flags.Mode = &mode
	resolved, findings := flags.Resolve(e.readFile, c.Strict)
	if findings.HasErrors() {
		j.diags.Add(findings...)
		return errReported
	}
	d.lower(resolved, j)
	return nil
}

func (d *described) lower(resolved *config.Resolved, j *job) {
	var diags diag.List
	d.programs, diags = compiler.Compile(resolved.Config, j.snap, j.facts)
	for _, one := range diags {
		if one.Severity == diag.Error {
			j.diags.Add(one)
		}
	}
	for f, p := range ir.Present(d.programs) {
		d.set(f, ruleSides[p.Node.Mode](p))
	}
}

func provable() (modes []string) {
	for m := range ruleSides {
		modes = append(modes, string(m))
	}
	slices.Sort(modes)
	return modes
}

// dump takes what iptables-save, ip6tables-save or nft list printed.
func (d *described) dump(text string, programs ir.Programs) error {
	for _, line := range strings.SplitN(text, "\n", 50) {
		switch {
		case strings.HasPrefix(line, "*"):
			return d.iptablesDump(text, programs)
		case strings.HasPrefix(line, "table "):
			return d.nftDump(text, programs)
		}
	}
	return fmt.Errorf("is neither what iptables-save prints (*nat) nor what nft list ruleset prints (table ip …)")
}

// addressV6 is an IPv6 address in a rule, and the tool that IPv6 dumps name.
var addressV6 = regexp.MustCompile(`(?m)^# Generated by ip6tables|-[sd] [0-9a-f]*:[0-9a-f:]*/|--to-destination \[`)

// iptablesDump finds out which family's rules a dump has by the addresses in them.
func (d *described) iptablesDump(text string, programs ir.Programs) error {
	f := ir.IPv4
	if addressV6.MatchString(text) {
		f = ir.IPv6
	}
	p := programs.Of(f)
	if p == nil {
		return fmt.Errorf("holds %s rules, and the node has no %s address", f, f)
	}
	r, err := iptables.Parse(f, text)
	if err != nil {
		return err
	}
	if d.sides.Of(f) != nil {
		return fmt.Errorf("holds %s rules, as another file does", f)
	}
	if strings.Contains(text, "is incompatible, use 'nft' tool") {
		return fmt.Errorf("is not whole: of a table it says only that it is incompatible")
	}
	d.leftOut = append(d.leftOut, othersIn(text, r)...)
	d.set(f, iptables.NewEvaluator(r, ownOf(p)))
	return nil
}

// othersIn names what a dump holds besides the rules that were read of it, and what
// packets may meet before these: other tables, and rules and policies of built-in
// chains.
func othersIn(text string, r *iptables.Ruleset) (others []string) {
	builtIn := iptables.BuiltInChains()
	jumps := map[string]int{}
	for _, t := range r.Tables() {
		for _, j := range t.Jumps {
			jumps["table "+t.Name+" chain "+j.Chain]++
		}
	}
	table := ""
	rules := map[string]int{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
			continue
		}
		words := strings.Fields(line)
		if len(words) > 2 && strings.HasPrefix(words[0], "[") {
			words = words[1:]
		}
		switch {
		case len(words) < 2:
		case words[1] == "DROP" && strings.HasPrefix(words[0], ":"):
			others = append(others, fmt.Sprintf("table %s chain %s: policy DROP", table, words[0][1:]))
		case words[0] != "-A" && words[0] != "-I":
		case table != r.Filter.Name && table != r.Nat.Name:
			rules["table "+table]++
		case slices.Contains(builtIn[:], words[1]):
			rules["table "+table+" chain "+words[1]]++
		}
	}
	for where, n := range rules {
		if n -= jumps[where]; n > 0 {
			others = append(others, fmt.Sprintf("%s: %d rules of others", where, n))
		}
	}
	slices.Sort(others)
	return others
}

func (d *described) nftDump(text string, programs ir.Programs) error {
	tables, err := nftables.ParseList(text)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if t.Ruleset == nil {
			d.leftOut = append(d.leftOut, "table "+t.Family+" "+t.Name)
			continue
		}
		p := programs.Of(t.Ruleset.Family)
		switch {
		case p == nil:
			return fmt.Errorf("holds a table of %s, and the node has no %s address", t.Ruleset.Family, t.Ruleset.Family)
		case d.sides.Of(t.Ruleset.Family) != nil:
			return fmt.Errorf("holds a table of proxyc and one of kube-proxy: list one of them, with nft list table %s %s", t.Family, t.Name)
		default:
			d.set(t.Ruleset.Family, t.Evaluator(ownOf(p)))
		}
	}
	if d.sides == (ir.PerFamily[*prove.Side]{}) {
		return fmt.Errorf("holds no table of proxyc or kube-proxy")
	}
	return nil
}
