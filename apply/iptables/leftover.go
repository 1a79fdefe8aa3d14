package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// canary is the chain by which kube-proxy, in three tables, notices that
// somebody flushes them (IPT-33).
const canary = "KUBE-PROXY-CANARY"

// Leftovers lists what proxyc or kube-proxy, in any mode that uses iptables,
// left in each variant and family: all but what inUse, if it is not nil,
// keeps. Chains that only kube-proxy makes are listed of inUse, too. Chains of
// the kubelet are not listed, nor is KUBE-FIREWALL where the kubelet is.
// Tools and families that are not there can have left nothing.
func Leftovers(ctx context.Context, inUse *Dataplane) ([]apply.Leftover, error) {
	return eachFamily(ctx, inUse, func(t *Dataplane, f ir.Family) ([]apply.Leftover, error) {
		return t.leftovers(ctx, f, t == inUse)
	})
}

// eachFamily collects what there is in each variant and family.
func eachFamily(ctx context.Context, inUse *Dataplane, find func(*Dataplane, ir.Family) ([]apply.Leftover, error)) ([]apply.Leftover, error) {
	var left []apply.Leftover
	for _, v := range [...]Variant{NFT, Legacy} {
		t := inUse
		if t == nil || t.Variant != v {
			if v == Legacy {
				if has, _ := hasLegacyTables(); !has {
					continue
				}
			}
			var err error
			if t, err = Open(ctx, apply.Options{IPTables: string(v)}); err != nil {
				if !lacks(err) {
					return nil, err
				}
				continue
			}
		}
		for _, f := range t.families {
			l, err := find(t, f)
			if err != nil {
				return nil, err
			}
			left = append(left, l...)
		}
	}
	return left, nil
}

// hasLegacyTables reports whether the kernel has a table of the legacy variant, of those that
// can be read. An error means that there may be others.
func hasLegacyTables() (has bool, err error) {
	for _, f := range ir.Families() {
		tables, unread := LegacyTables(f)
		has, err = has || len(tables) > 0, errors.Join(err, unread)
	}
	return has, err
}

// LegacyTables returns the tables of the legacy variant that the kernel has in a family, in
// order: none where it lacks the variant. To ask the tools for one would make it. It is an
// error for who is not root, even with CAP_NET_ADMIN.
func LegacyTables(f ir.Family) ([]string, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + map[ir.Family]string{ir.IPv4: "ip", ir.IPv6: "ip6"}[f] + "_tables_names")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return slices.Sorted(strings.FieldsSeq(string(names))), nil
}

// LegacySaved returns what the tables of the legacy variant hold in a family, as its tool
// saves them; nothing where the kernel has none.
func LegacySaved(ctx context.Context, f ir.Family) (string, error) {
	tables, err := LegacyTables(f)
	var saved strings.Builder
	for _, table := range tables {
		if err := run.To(ctx, nil, &saved, tool(f, Legacy, "save"), "-t", table); err != nil {
			return "", err
		}
	}
	return saved.String(), err
}

// leftovers returns what a family has, in two pieces: what proxyc makes as well,
// if it is not in use, goes at once, and then what only kube-proxy makes.
func (d *Dataplane) leftovers(ctx context.Context, f ir.Family, using bool) ([]apply.Leftover, error) {
	var left []apply.Leftover
	add := func(chains []string, peer bool, remove func(context.Context, ir.Family) error) {
		if len(chains) == 0 {
			return
		}
		left = append(left, apply.Leftover{
			Object: d.describe(f, chains), KubeProxy: peer, GuardsLocalhost: f == ir.IPv4 && slices.Contains(chains, "filter KUBE-FIREWALL"),
			Remove: func(ctx context.Context) error { return remove(ctx, f) },
		})
	}
	if !using {
		chains, err := d.remains(ctx, f)
		if err != nil {
			return nil, err
		}
		add(chains, false, d.clean)
	}
	canaries, err := d.tablesWith(ctx, f, canary)
	if err != nil {
		return nil, err
	}
	for i := range canaries {
		canaries[i] += " " + canary
	}
	add(canaries, true, d.cleanCanaries)
	return left, nil
}

// Present returns where the nat table has a chain: "iptables-nft nat KUBE-NODEPORTS".
func (d *Dataplane) Present(ctx context.Context, chain string) (objects []string, err error) {
	if d.Variant == Legacy {
		if has, _ := hasLegacyTables(); !has {
			return nil, nil
		}
	}
	for _, f := range d.families {
		exists, err := d.exists(ctx, f, "nat", chain)
		if err != nil {
			return nil, err
		}
		if exists {
			objects = append(objects, d.describe(f, []string{"nat " + chain}))
		}
	}
	return objects, nil
}

// describe names the first of some chains, and counts the others.
func (d *Dataplane) describe(f ir.Family, chains []string) string {
	object := d.tool(f) + " " + chains[0]
	if more := len(chains) - 1; more > 0 {
		object += fmt.Sprintf(" and %d more chains", more)
	}
	return object
}

// remains returns the chains that clean would remove, as "TABLE CHAIN".
func (d *Dataplane) remains(ctx context.Context, f ir.Family) (chains []string, err error) {
	plan, err := d.removal(ctx, f)
	if err != nil {
		return nil, err
	}
	for _, d := range plan.families.Of(f).tables {
		for _, c := range d.stale {
			chains = append(chains, d.name+" "+c.Name)
		}
	}
	shared, err := d.shared(ctx, f, plan)
	for _, c := range shared.drop {
		chains = append(chains, shared.table+" "+c.Name)
	}
	return chains, err
}

// clean removes all of our chains, and what jumps to them.
func (d *Dataplane) clean(ctx context.Context, f ir.Family) error {
	plan, err := d.removal(ctx, f)
	if err != nil {
		return err
	}
	shared, err := d.shared(ctx, f, plan)
	if err != nil {
		return err
	}
	if err := d.allOrNothing(ctx, plan); err != nil || len(shared.drop) == 0 {
		return err
	}
	return d.restore(ctx, f, step{shared}.input(f))
}

// removal plans to remove all chains that are ours alone.
func (d *Dataplane) removal(ctx context.Context, f ir.Family) (*Plan, error) {
	have, err := d.readFamily(ctx, f)
	if err != nil {
		return nil, err
	}
	return newPlan(rules.NewRulesets(have), rules.NewRulesets(family(rules.Rulesets{}, f))), nil
}

// shared is what removes the chains that we share with the kubelet: nothing if
// the kubelet is there, or others jump to them.
func (d *Dataplane) shared(ctx context.Context, f ir.Family, p *Plan) (edit, error) {
	filter := &p.families.Of(f).have.Filter
	e := edit{table: filter.Name}
	for i := range filter.Chains {
		if c := &filter.Chains[i]; rules.Shared(c.Name) && !slices.Contains(filter.Pinned, c.Name) {
			e.drop = append(e.drop, c)
		}
	}
	for _, h := range filter.Jumps {
		if rules.Shared(h.Rule.Chain) {
			e.removedJumps = append(e.removedJumps, h)
		}
	}
	if len(e.drop) == 0 {
		return e, nil
	}
	for _, chain := range rules.KubeletChains() {
		if with, err := d.tablesWith(ctx, f, chain); err != nil || len(with) > 0 {
			return edit{}, err
		}
	}
	return e, nil
}

// cleanCanaries removes the chains that only kube-proxy makes.
func (d *Dataplane) cleanCanaries(_ context.Context, f ir.Family) error {
	one, err := d.single(f)
	if err != nil {
		return err
	}
	var errs []error
	for _, table := range tables {
		errs = append(errs, one.ClearAndDeleteChain(table, canary))
	}
	return errors.Join(errs...)
}

// tables are those in which kube-proxy and the kubelet have chains.
var tables = [...]string{"mangle", "nat", "filter"}

// tablesWith returns the tables that have a chain.
func (d *Dataplane) tablesWith(ctx context.Context, f ir.Family, chain string) (with []string, err error) {
	for _, table := range tables {
		exists, err := d.exists(ctx, f, table, chain)
		if err != nil {
			return nil, err
		}
		if exists {
			with = append(with, table)
		}
	}
	return with, nil
}

// exists reports whether a table has a chain; an error where the kernel lacks
// the family, or the machine the tool. The nft variant is slow to save a large
// table. The legacy one is not, and saving needs no lock, as asking does.
func (d *Dataplane) exists(ctx context.Context, f ir.Family, table, chain string) (bool, error) {
	if d.Variant == Legacy {
		declared := finder{text: "\n:" + chain + " "}
		err := d.save(ctx, f, table, &declared)
		return declared.found, err
	}
	one, err := d.single(f)
	if err != nil {
		return false, err
	}
	return one.ChainExists(table, chain)
}

// finder looks for a short text in what is written to it, and keeps nothing of
// that but its end, where the text may have begun.
type finder struct {
	text  string
	found bool
	seen  []byte
}

func (f *finder) Write(p []byte) (int, error) {
	f.seen = append(f.seen, p...)
	f.found = f.found || bytes.Contains(f.seen, []byte(f.text))
	f.seen = append(f.seen[:0], f.seen[max(0, len(f.seen)-len(f.text)):]...)
	return len(p), nil
}

// singleChains asks about single chains and removes them, for which there is
// no need to read whole tables.
type singleChains interface {
	ChainExists(table, chain string) (bool, error)
	ClearAndDeleteChain(table, chain string) error
}
