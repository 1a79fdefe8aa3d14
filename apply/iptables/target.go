package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Variant is which of the kernel's interfaces the tools speak to. The rules of
// one are not seen by the other, but both apply to packets.
type Variant string

const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// Options say how the tools are used. The zero value is the default.
type Options struct {
	// Variant is the one to use; empty: the one that the node uses.
	Variant Variant
	// Wait is how long to wait for a lock that another program holds; 0 means 5 s.
	Wait time.Duration
	// MostRules is the greatest number of rules in one run of iptables-restore
	// of the nft variant, whose time grows faster than their number; 0 means 4000.
	MostRules int
}

// Target is the iptables of the network namespace that the process is in.
type Target struct {
	Variant  Variant
	version  version
	families []ir.Family // those that the kernel has
	options  Options
	run      func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error // [run.To]
}

var _ apply.Target[rules.Rulesets] = (*Target)(nil)

// Open finds out which variant the node uses, what the tools can do and which
// families the kernel has.
func Open(ctx context.Context, o Options) (*Target, error) {
	t := &Target{Variant: o.Variant, options: o, run: run.To}
	if t.options.Wait == 0 {
		t.options.Wait = 5 * time.Second
	}
	if t.options.MostRules == 0 {
		t.options.MostRules = 4000
	}
	if err := t.detect(ctx); err != nil {
		return nil, err
	}
	var missing []error
	for _, f := range ir.Families() {
		if _, err := t.exists(ctx, f, "nat", "POSTROUTING"); err != nil {
			missing = append(missing, err)
			continue
		}
		t.families = append(t.families, f)
	}
	if len(t.families) == 0 {
		return nil, missing[0] // the others say the same
	}
	return t, nil
}

// Families are the families whose tables the kernel has. The others are left out of every Plan.
func (t *Target) Families() []ir.Family { return slices.Clone(t.families) }

// detect settles variant and version.
func (t *Target) detect(ctx context.Context) error {
	if t.Variant == "" {
		v, err := t.inUse(ctx)
		if err != nil {
			return err
		}
		t.Variant = v
	}
	out, err := t.output(ctx, tool(ir.IPv4, t.Variant, "restore"), "--version")
	if err != nil {
		return err
	}
	t.version = parseVersion(out)
	return nil
}

// tool is the name of a tool: iptables-nft-restore.
func tool(f ir.Family, v Variant, verb string) string {
	return rules.Tool(f) + "-" + string(v) + "-" + verb
}

// inUse is the variant that the node uses: the one in which the kubelet left
// its hint (KEP-3178), else the one that has kube-proxy's or our rules, else the
// one that has more rules, else nft.
func (t *Target) inUse(ctx context.Context) (Variant, error) {
	type sign struct{ table, chain string }
	var signs []sign
	for _, chain := range rules.KubeletChains() {
		signs = append(signs, sign{"mangle", chain})
	}
	signs = append(signs, sign{"nat", rules.ChainServices})
	for _, sign := range signs {
		for _, v := range [...]Variant{NFT, Legacy} {
			for _, f := range ir.Families() {
				of := Target{Variant: v, options: t.options, run: t.run}
				if found, err := of.exists(ctx, f, sign.table, sign.chain); err == nil && found {
					return v, nil
				}
			}
		}
	}
	return t.fuller(ctx)
}

// fuller is the variant that has more rules, nft if none has any.
func (t *Target) fuller(ctx context.Context) (best Variant, err error) {
	most := -1
	var missing []error
	for _, v := range [...]Variant{NFT, Legacy} {
		for _, f := range ir.Families() {
			out, err := t.output(ctx, tool(f, v, "save"))
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

// version is a release of the tools, 1.8.9 as {1, 8, 9}.
type version [3]int

// parseVersion reads "iptables-restore v1.8.9 (nf_tables)"; where it cannot, it
// gives the oldest version that matters.
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

// since1_6_2 tells whether iptables-restore can wait for the lock, and
// MASQUERADE pick random ports.
func (v version) since1_6_2() bool { return v.atLeast(version{1, 6, 2}) }

// waitFlags make iptables-restore wait for the lock. The nft variant has none.
func (t *Target) waitFlags() []string {
	if t.Variant != Legacy || !t.version.since1_6_2() {
		return nil
	}
	return []string{"--wait=" + strconv.Itoa(t.waitSeconds()), "--wait-interval=100000"}
}

// waitSeconds is the waiting time in the unit of the tools, 1 at least: they
// take 0 for ever.
func (t *Target) waitSeconds() int {
	return max(1, int(t.options.Wait.Round(time.Second)/time.Second))
}

// save writes a table to out.
func (t *Target) save(ctx context.Context, f ir.Family, table string, out io.Writer) error {
	return t.run(ctx, nil, out, tool(f, t.Variant, "save"), "-t", table)
}

// output gives what a tool prints.
func (t *Target) output(ctx context.Context, name string, args ...string) (string, error) {
	var out strings.Builder
	err := t.run(ctx, nil, &out, name, args...)
	return out.String(), err
}

// Read reads our chains of tables filter and nat.
func (t *Target) Read(ctx context.Context) (sets rules.Rulesets, err error) {
	for _, f := range t.families {
		if *sets.At(f), err = t.readFamily(ctx, f); err != nil {
			return sets, err
		}
	}
	return sets, nil
}

func (t *Target) readFamily(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	saved := rules.NewParser(f)
	for _, table := range [...]string{"filter", "nat"} {
		if err := t.save(ctx, f, table, saved); err != nil {
			return nil, err
		}
	}
	r, err := saved.Ruleset()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool(f, t.Variant, "save"), err)
	}
	return r, nil
}

// tool is the name of the tool for single rules: iptables-nft.
func (t *Target) tool(f ir.Family) string { return rules.Tool(f) + "-" + string(t.Variant) }

// Plan compares two states. Families that the kernel does not have are left
// out, and options that the tools do not know. It keeps what differs alone: a
// plan lasts as long as the tools run, which need memory, too.
func (t *Target) Plan(have, want rules.Rulesets) apply.Plan {
	var old, now rules.Rulesets
	var sizes ir.PerFamily[[2]int]
	for f, w := range ir.Present(want.PerFamily) {
		if slices.Contains(t.families, f) {
			w = t.possible(w)
			*sizes.At(f) = w.Size()
			*old.At(f), *now.At(f) = differing(family(have, f), w)
		}
	}
	return newPlan(old, now).sized(sizes)
}

// possible is r as the tools can load it.
func (t *Target) possible(r *rules.Ruleset) *rules.Ruleset {
	if t.version.since1_6_2() {
		return r
	}
	return r.WithoutRandomFully()
}
