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
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// canary is the chain with which kube-proxy detects flushes of three tables (IPT-33).
const canary = "KUBE-PROXY-CANARY"

// Leftovers returns what proxyc or kube-proxy left in each variant and family, in any mode that
// uses iptables. It excludes the chains that inUse manages; inUse may be nil. It always includes
// chains that only kube-proxy creates. It excludes chains of the kubelet, and KUBE-FIREWALL if the
// kubelet uses it. Missing tools and families have no leftovers. With readOnly nothing changes; otherwise
// rules in proxyc's chains that prevent the tools from listing them are removed.
func Leftovers(ctx context.Context, inUse *Dataplane, readOnly bool) ([]apply.Leftover, error) {
	return eachFamily(ctx, inUse, readOnly, func(c *cleaner) ([]apply.Leftover, error) {
		return c.leftovers(ctx, inUse != nil && c.tables == inUse.tables)
	})
}

// eachFamily collects the leftovers of each variant and family. It continues after errors: a rule in one
// that the tools cannot read is no reason to keep those in the others.
func eachFamily(ctx context.Context, inUse *Dataplane, readOnly bool, find func(*cleaner) ([]apply.Leftover, error)) ([]apply.Leftover, error) {
	var left []apply.Leftover
	var errs []error
	for _, v := range [...]Variant{NFT, Legacy} {
		t := inUse
		if t == nil || t.Variant != v {
			if v == Legacy {
				has, err := readableLegacyTables()
				if errs = append(errs, err); !has {
					continue
				}
			}
			var err error
			if t, err = Open(ctx, apply.Options{IPTables: string(v), ReadOnly: readOnly}); err != nil {
				if !unsupported(err) {
					errs = append(errs, err)
				}
				continue
			}
		}
		for _, f := range t.families {
			l, err := find(&cleaner{t.tables, f})
			left, errs = append(left, l...), append(errs, err)
		}
	}
	return left, errors.Join(errs...)
}

// hasLegacyTables reports whether the kernel has a table of the legacy variant, as far as they can
// be read. An error means that there may be others.
func hasLegacyTables() (has bool, err error) {
	for _, f := range ir.Families() {
		tables, unread := LegacyTables(f)
		has, err = has || len(tables) > 0, errors.Join(err, unread)
	}
	return has, err
}

// readableLegacyTables is hasLegacyTables without the error of a process that may not read them.
func readableLegacyTables() (has bool, err error) {
	has, err = hasLegacyTables()
	if errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return has, err
}

// LegacyTables returns the existing tables of the legacy variant in a family, sorted; none if the
// kernel lacks the variant. Running the tools would create them. It fails without root, even with
// CAP_NET_ADMIN.
func LegacyTables(f ir.Family) ([]string, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + map[ir.Family]string{ir.IPv4: "ip", ir.IPv6: "ip6"}[f] + "_tables_names")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return slices.Sorted(strings.FieldsSeq(string(names))), nil
}

// SaveLegacy returns the content of the tables of the legacy variant in a family, as saved by its
// tool; "" if there are none.
func SaveLegacy(ctx context.Context, f ir.Family) (string, error) {
	tables, err := LegacyTables(f)
	var saved strings.Builder
	for _, table := range tables {
		if err := run.To(ctx, nil, &saved, tool(f, Legacy, "save"), "-t", table); err != nil {
			return "", err
		}
	}
	return saved.String(), err
}

// Kept returns the chains that the removal of leftovers keeps in each variant and family, and for
// whom: "iptables-nft filter KUBE-FIREWALL: the kubelet uses it".
func Kept(ctx context.Context) (kept []string, err error) {
	_, err = eachFamily(ctx, nil, true, func(c *cleaner) ([]apply.Leftover, error) {
		of, err := c.kept(ctx)
		kept = append(kept, of...)
		return nil, err
	})
	return kept, err
}

// cleaner finds and removes the leftovers of a family.
type cleaner struct {
	*tables
	family ir.Family
}

// leftovers returns the leftovers in two parts: chains that proxyc creates, too, unless
// they are in use, and chains that only kube-proxy creates.
func (c *cleaner) leftovers(ctx context.Context, using bool) ([]apply.Leftover, error) {
	var left []apply.Leftover
	add := func(chains []string, peer bool, remove func(context.Context) error) {
		if len(chains) == 0 {
			return
		}
		left = append(left, apply.Leftover{
			Object: c.describe(chains), KubeProxy: peer, GuardsLocalhost: c.family == ir.IPv4 && slices.Contains(chains, "filter KUBE-FIREWALL"),
			Remove: remove,
		})
	}
	var err error
	if !using {
		var chains []string
		remove := c.clean
		if chains, err = c.removableChains(ctx); errors.Is(err, errIncompatible) {
			var found []chainKey
			found, err = ownedChains(c.family)
			for _, k := range found {
				chains = append(chains, k.table+" "+k.chain)
			}
			remove = func(context.Context) error { return removeOwned(c.family) }
		}
		add(chains, false, remove)
	}
	canaries, canaryErr := c.tablesWith(ctx, c.family, canary)
	for i := range canaries {
		canaries[i] += " " + canary
	}
	add(canaries, true, c.cleanCanaries)
	return left, errors.Join(err, canaryErr)
}

// Present returns the families whose nat table contains a chain: "iptables-nft nat KUBE-NODEPORTS".
func (d *Dataplane) Present(ctx context.Context, chain string) (objects []string, err error) {
	if d.Variant == Legacy {
		if has, err := readableLegacyTables(); !has || err != nil {
			return nil, err
		}
	}
	for _, f := range d.families {
		exists, err := d.exists(ctx, f, "nat", chain)
		if err != nil {
			return nil, err
		}
		if exists {
			objects = append(objects, (&cleaner{d.tables, f}).describe([]string{"nat " + chain}))
		}
	}
	return objects, nil
}

// describe returns the first of some chains, and the number of others.
func (c *cleaner) describe(chains []string) string {
	object := c.tool(c.family) + " " + chains[0]
	if more := len(chains) - 1; more > 0 {
		object += fmt.Sprintf(" and %d more chains", more)
	}
	return object
}

// removableChains returns the chains that clean would remove, as "TABLE CHAIN".
func (c *cleaner) removableChains(ctx context.Context) (chains []string, err error) {
	plan, err := c.planRemoval(ctx)
	if err != nil {
		return nil, err
	}
	chains = plan.staleChains(c.family)
	shared, err := c.shared(ctx, plan)
	for _, ch := range shared.drop {
		chains = append(chains, shared.table+" "+ch.Name)
	}
	return chains, err
}

// clean removes all of our chains, and the jumps to them.
func (c *cleaner) clean(ctx context.Context) error {
	plan, err := c.planRemoval(ctx)
	if err != nil {
		return err
	}
	shared, err := c.shared(ctx, plan)
	if err != nil {
		return err
	}
	if err := c.allOrNothing(ctx, plan); err != nil || len(shared.drop) == 0 {
		return err
	}
	return c.restore(ctx, c.family, step{shared}.input(c.family))
}

// planRemoval plans the removal of all chains that only proxyc or kube-proxy uses.
func (c *cleaner) planRemoval(ctx context.Context) (*Plan, error) {
	have, err := c.readFamily(ctx, c.family)
	if err != nil {
		return nil, err
	}
	return newPlan(rules.NewRulesets(have), rules.NewRulesets(family(rules.Rulesets{}, c.family))), nil
}

// shared returns the removal of the chains that the kubelet shares. It is empty if the kubelet is
// present, or if other chains jump to them.
func (c *cleaner) shared(ctx context.Context, p *Plan) (edit, error) {
	filter := &p.families.Of(c.family).have.Filter
	e := edit{table: filter.Name}
	for i := range filter.Chains {
		if ch := &filter.Chains[i]; rules.Shared(ch.Name) && !slices.Contains(filter.Pinned, ch.Name) {
			e.drop = append(e.drop, ch)
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
		if with, err := c.tablesWith(ctx, c.family, chain); err != nil || len(with) > 0 {
			return edit{}, err
		}
	}
	return e, nil
}

// kept returns the chains that clean keeps, and for whom.
func (c *cleaner) kept(ctx context.Context) (kept []string, err error) {
	plan, err := c.planRemoval(ctx)
	if errors.Is(err, errIncompatible) {
		const name = "KUBE-FIREWALL"
		has, err := hasChain(ctx, c.family, "filter", name)
		if has {
			kept = append(kept, c.describe([]string{"filter " + name})+": its table has rules that only nft supports")
		}
		return kept, err
	}
	if err != nil {
		return nil, err
	}
	have := plan.families.Of(c.family).have
	saved := ""
	if len(have.Filter.Pinned)+len(have.Nat.Pinned) > 0 {
		if saved, err = c.Saved(ctx, c.family); err != nil {
			return nil, err
		}
	}
	err = iptparse.EachSaved(saved, func(table, line string) {
		words := iptparse.SavedWords(line)
		chain := iptparse.SavedTarget(words)
		if len(words) > 1 && words[0] == "-A" && rules.Owned(chain) && !rules.Owned(words[1]) && !rules.BuiltIn(words[1]) {
			kept = append(kept, fmt.Sprintf("%s: foreign chain %s jumps to it", c.describe([]string{table + " " + chain}), words[1]))
		}
	})
	if err != nil {
		return nil, err
	}
	removal, err := c.shared(ctx, plan)
	if err == nil && len(removal.drop) == 0 {
		for i := range have.Filter.Chains {
			if name := have.Filter.Chains[i].Name; rules.Shared(name) {
				kept = append(kept, c.describe([]string{have.Filter.Name + " " + name})+": the kubelet uses it")
			}
		}
	}
	return apply.Lines(slices.Compact(kept)), err
}

// cleanCanaries removes the chains that only kube-proxy creates.
func (c *cleaner) cleanCanaries(ctx context.Context) error {
	with, err := c.tablesWith(ctx, c.family, canary)
	if err != nil {
		return err
	}
	var errs []error
	for _, table := range with {
		removal := step{{table: table, drop: []*rules.Chain{{Name: canary}}}}
		errs = append(errs, c.restore(ctx, c.family, removal.input(c.family)))
	}
	return errors.Join(errs...)
}

// sharedTables are the tables with chains of kube-proxy and the kubelet.
var sharedTables = [...]string{"mangle", "nat", "filter"}

// finder searches for a short text in written data. It keeps only the end of the data, in which the
// text may start.
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
