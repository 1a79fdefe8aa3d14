package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/hns"
	hnseval "github.com/proxyc/proxyc/render/hns/eval"
	"github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/ipvs"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
	"github.com/proxyc/proxyc/render/userspace"
	userspaceeval "github.com/proxyc/proxyc/render/userspace/eval"
)

// ruleSides lower a Program to the rules of its mode, to be compared.
var ruleSides = map[ir.Mode]func(*ir.Program) prove.Side{
	ir.ModeIPTables:    func(p *ir.Program) prove.Side { return ipteval.NewEvaluator(iptables.Lower(p), ownOf(p)) },
	ir.ModeNFTables:    func(p *ir.Program) prove.Side { return nfteval.NewEvaluator(nftables.Lower(p), ownOf(p)) },
	ir.ModeIPVS:        func(p *ir.Program) prove.Side { return ipvseval.NewEvaluator(ipvs.Lower(p), ownOf(p)) },
	ir.ModeKernelspace: func(p *ir.Program) prove.Side { return hnseval.NewEvaluator(hns.Lower(p), ownOf(p)) },
	ir.ModeUserspace:   func(p *ir.Program) prove.Side { return userspaceeval.NewEvaluator(userspace.Lower(p), ownOf(p)) },
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
	follow   ir.PerFamily[follow]      // nil: rules of this kind cannot be followed, or there are none
	programs ir.Programs               // what it was made of; nil for a dump
	leftOut  []string                  // what a dump holds besides, which is not compared
	dump     printed                   // how the rules of a dump were printed; "": the side is no dump
}

// missing returns what to add to a dump that has no rules of a family.
func (d *described) missing(f ir.Family) string {
	tool := "nft list ruleset"
	switch {
	case d.dump == "":
		return ""
	case d.dump == savedRules && f == ir.IPv6:
		tool = "ip6tables-save"
	case d.dump == savedRules:
		tool = "iptables-save"
	}
	return "; add to " + d.name + " what " + tool + " prints on the node"
}

func (d *described) set(f ir.Family, s prove.Side) { *d.sides.At(f) = &s }

// follow tells which rules a packet meets.
type follow func(sim.Packet) []met

// lazily makes what follows packets when there is one to follow, which costs an index of
// all rules.
func lazily(make func() follow) follow {
	made := sync.OnceValue(make)
	return func(pkt sim.Packet) []met { return made()(pkt) }
}

// inNFT follows packets through one table of nf_tables: "ip proxyc".
func inNFT(name string, r *nftables.Ruleset, own *sim.Own) follow {
	return lazily(func() follow {
		follower := nfteval.NewFollower(r, own)
		return func(pkt sim.Packet) (all []met) {
			_, rules, _ := follower.Follow(pkt)
			for _, m := range rules {
				all = append(all, met{Table: name, Chain: m.Chain, Rule: m.Rule, Text: m.Text, Drops: m.Drops, Lacks: m.Lacks})
			}
			return all
		}
	})
}

func inIPTables(r *iptables.Ruleset, own *sim.Own) follow {
	return lazily(func() follow {
		follower := ipteval.NewFollower(r, own)
		return func(pkt sim.Packet) []met { return courseOf(follower.Follow(pkt, 0)).met }
	})
}

func inIPVS(r *ipvs.Ruleset, own *sim.Own) follow {
	return lazily(func() follow {
		follower := ipvseval.NewFollower(r, own)
		return func(pkt sim.Packet) []met { return courseOf(follower.Follow(pkt, 0)).met }
	})
}

// inRules follows packets through the rules of a Program; nil in modes in which they cannot be followed.
func inRules(p *ir.Program) follow {
	switch p.Node.Mode {
	case ir.ModeNFTables:
		return lazily(func() follow { return inNFT(tableOf(p.Family), nftables.Lower(p), ownOf(p)) })
	case ir.ModeIPTables:
		return lazily(func() follow { return inIPTables(iptables.Lower(p), ownOf(p)) })
	case ir.ModeIPVS:
		return lazily(func() follow { return inIPVS(ipvs.Lower(p), ownOf(p)) })
	}
	return nil
}

// ipvsRules takes what a node in mode ipvs holds of a family.
func (d *described) ipvsRules(f ir.Family, r *ipvs.Ruleset, own *sim.Own) {
	d.set(f, ipvseval.NewEvaluator(r, own))
	*d.follow.At(f) = inIPVS(r, own)
}

// tableOf is the name of proxyc's table of a family.
func tableOf(f ir.Family) string { return f.NFT() + " " + nftables.Table }

// forms of sides, for errors and help.
const sideForms = "mode:MODE, ir, ir:FILE, dump:FILE[,FILE], live:SOCKET or kernel"

// sideKernel is the side that is what this node holds.
const sideKernel = "kernel"

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
		dumped := dumpFiles{described: d, programs: programs}
		for _, file := range sideFiles(name) {
			text, err := read(file)
			if err != nil {
				return nil, err
			}
			if err := dumped.add(file, string(text)); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
		return d, dumped.end()
	case kind == "live" && arg != "":
		read, err := liveIR(ctx, arg)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		d.meaning(read)
		return d, nil
	case name == sideKernel:
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
		*d.follow.At(f) = inRules(p)
	}
}

func provable() (modes []string) {
	for m := range ruleSides {
		modes = append(modes, string(m))
	}
	slices.Sort(modes)
	return modes
}
