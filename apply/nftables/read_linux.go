package nftables

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Read reads both tables as they were at one moment. A family without our table
// has an empty Ruleset. What affinity maps remember is not read.
func (t *Target) Read(ctx context.Context) (rules.Tables, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read(ctx)
}

func (t *Target) read(ctx context.Context) (rules.Tables, error) {
	for {
		tables, err := t.readOnce(ctx)
		if !errors.Is(err, errChanged) {
			return tables, err
		}
	}
}

func (t *Target) readOnce(ctx context.Context) (tables rules.Tables, err error) {
	before, err := t.c.generation(ctx)
	if err != nil {
		return tables, err
	}
	for _, f := range ir.Families() {
		if *tables.At(f), err = t.readTable(ctx, f); err != nil {
			return tables, err
		}
	}
	after, err := t.c.generation(ctx)
	if err == nil && after != before {
		err = errChanged
	}
	return tables, err
}

// flagOwner marks a table that belongs to one process and to nobody else.
const flagOwner = 2

func (t *Target) readTable(ctx context.Context, f ir.Family) (*rules.Ruleset, error) {
	r := &rules.Ruleset{Family: f}
	ours := false
	err := t.c.dump(ctx, getTable, nfFamily(f), nil, func(b []byte) error {
		a, err := parse(b)
		switch a.text(1) {
		case kubeProxyTable:
			r.KubeProxy = true
		case rules.Table:
			ours = true
			if a.u32(2)&flagOwner != 0 {
				return &apply.Foreign{Object: "table " + word(f) + " " + rules.Table, Why: "a process that still runs has made it its own"}
			}
		}
		return err
	})
	if err != nil || !ours {
		return r, err
	}
	if err := t.readSets(ctx, r); err != nil {
		return nil, err
	}
	if err := t.readChains(ctx, r); err != nil {
		return nil, err
	}
	if strange(r) {
		return nil, &apply.Foreign{Object: "table " + word(f) + " " + rules.Table, Why: "it has chains or sets, and none of them is proxyc's"}
	}
	return r, nil
}

// strange tells whether a table has something, but nothing that ours always has.
func strange(r *rules.Ruleset) bool {
	fixed := rules.Fixed(&ir.Node{}, r.Family)
	for _, c := range r.Chains {
		if slices.ContainsFunc(fixed.Chains, func(o rules.Chain) bool { return o.Name == c.Name }) {
			return false
		}
	}
	for _, s := range r.Sets {
		if slices.ContainsFunc(fixed.Sets, func(o rules.Set) bool { return o.Name == s.Name }) {
			return false
		}
	}
	return len(r.Chains)+len(r.Sets) > 0
}

func word(f ir.Family) string {
	if f == ir.IPv6 {
		return "ip6"
	}
	return "ip"
}

func (t *Target) readSets(ctx context.Context, r *rules.Ruleset) error {
	family := nfFamily(r.Family)
	err := t.c.dump(ctx, getSet, family, encodeTable(rules.Table), func(b []byte) error {
		s, err := decodeSet(b, r.Family)
		s.Port, _ = rules.PortOf(s.Name)
		r.Sets = append(r.Sets, s)
		return err
	})
	if err != nil {
		return err
	}
	sortSets(r.Sets)
	for i := range r.Sets {
		s := &r.Sets[i]
		if s.Timeout > 0 || s.Key == nil {
			continue
		}
		if err := t.readElements(ctx, r.Family, s); err != nil {
			return err
		}
	}
	return nil
}

// readElements fills a set. Some time after a commit the kernel moves a set
// that has grown to a larger hash table. A dump goes on, message by message,
// after as many elements as it has given, so that meanwhile it gives some twice
// and as many others not at all: then it is made again.
func (t *Target) readElements(ctx context.Context, f ir.Family, s *rules.Set) error {
	for {
		s.Elements = s.Elements[:0]
		var n notes
		err := t.c.dump(ctx, getElem, nfFamily(f), encodeNamed(2, s.Name), func(b []byte) error {
			return decodeElements(b, s, f, n.frontend)
		})
		if err != nil || !twice(s.Elements) {
			return err
		}
	}
}

// twice tells whether a key is there more than once.
func twice(elements []rules.Element) bool {
	seen := make(map[rules.Key]struct{}, len(elements))
	for i := range elements {
		seen[elements[i].Key] = struct{}{}
	}
	return len(seen) < len(elements)
}

// sortSets brings sets into the order of a Ruleset.
func sortSets(sets []rules.Set) {
	fixed := rules.Fixed(&ir.Node{}, ir.IPv4).Sets
	rank := map[string]int{}
	for i := range fixed {
		rank[fixed[i].Name] = i - len(fixed)
	}
	slices.SortFunc(sets, func(a, b rules.Set) int {
		if d := rank[a.Name] - rank[b.Name]; d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}

func (t *Target) readChains(ctx context.Context, r *rules.Ruleset) error {
	err := t.c.dump(ctx, getChain, nfFamily(r.Family), encodeTable(rules.Table), func(b []byte) error {
		a, err := parse(b)
		if err != nil || a.text(1) != rules.Table {
			return err
		}
		c, err := decodeChain(b)
		c.Port, _ = rules.PortOf(c.Name)
		r.Chains = append(r.Chains, c)
		return err
	})
	if err != nil {
		return err
	}
	chains := chainsByName(r)
	return t.c.dump(ctx, getRule, nfFamily(r.Family), encodeTable(rules.Table), func(b []byte) error {
		a, err := parse(b)
		if err != nil || a.text(1) != rules.Table {
			return err
		}
		name, rule, err := decodeRule(b, r.Family)
		if c := chains[name]; c != nil {
			c.Rules = append(c.Rules, rule)
		}
		return err
	})
}
