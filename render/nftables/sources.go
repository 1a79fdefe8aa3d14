package nftables

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Each distinct list of admitted ranges has a chain, across Services. Frontends
// with that list go to a chain that jumps to it and then goes where they go
// without ranges; those without endpoints only jump to it (NFT-5). The number of rules is therefore the sum, not the product, of
// frontends and ranges.
//
// Short lists consist of rules. The kernel finds a set by traversing the names of
// all sets, so ten thousand sets take as long as hundreds of thousands of rules,
// and most lists are short. A long list is a set with one rule.

// maxRangeRules is the maximum number of ranges as rules. A packet traverses all
// of them.
const maxRangeRules = 8

const sourcesPrefix = "sources-"

// IsSources reports whether a name belongs to a set of source ranges.
func IsSources(set string) bool { return strings.HasPrefix(set, sourcesPrefix) }

// listOf identifies a list of ranges that frontends of a Service share.
type listOf struct {
	first *ir.SourceRange
	n     int
}

// guard returns the name of the chain that admits only the source ranges of a load
// balancer address (PKT-10), or "" if all are admitted.
func (l *lowering) guard(f *lowerable) string {
	if len(f.SourceRanges) == 0 {
		return ""
	}
	key := listOf{&f.SourceRanges[0], len(f.SourceRanges)}
	list, known := l.lists[key]
	if !known {
		list = l.sources(f)
		l.lists[key] = list
	}
	return list
}

// guarded returns the verdict for a frontend's packets that passes a list of source
// ranges, if there is one, before v applies.
func (l *lowering) guarded(list string, f *lowerable, v Verdict) Verdict {
	if list == "" {
		return v
	}
	switch v.Kind {
	case Continue:
		v = Verdict{Goto, rootName(usualMarks(l.node), false)}
	case Return:
		v = Verdict{Goto, rootName(markAll, false)}
	}
	c := Chain{Name: cut(list + "-" + v.Chain), Rules: []Rule{
		{[]Stmt{Verdict{Jump, list}}, f.SourceRanges[0].Origin},
		{[]Stmt{v}, fixed("admitted by loadBalancerSourceRanges")},
	}}
	if l.makes("chain " + c.Name) {
		l.frag.Chains = append(l.frag.Chains, c)
	}
	return Verdict{Goto, c.Name}
}

// sources returns the name of the chain of a frontend's list, and adds it if it
// is new. It returns "" for a list that admits all clients.
func (l *lowering) sources(f *lowerable) string {
	own, rest := ownAddresses(f.svc, outermost(f.SourceRanges))
	if admitsAll(rest) {
		return ""
	}
	if len(rest) <= maxRangeRules {
		own, rest = sorted(slices.Concat(own, rest)), nil
	}
	var c Chain
	returns := Verdict{Kind: Return}
	for _, r := range own {
		c.Rules = append(c.Rules, Rule{[]Stmt{MatchNet{SrcAddr, r.Prefix, false}, returns}, r.Origin})
	}
	set := l.set(rest)
	if set != "" {
		c.Rules = append(c.Rules, Rule{[]Stmt{MatchSet{Key: []Term{{Field: SrcAddr}}, Set: set}, returns},
			ir.Origin{Object: rest[0].Origin.Object, Field: "spec.loadBalancerSourceRanges", Reason: "one set for all with these ranges"}})
	}
	c.Rules = append(c.Rules,
		Rule{[]Stmt{MatchSet{Key: frontendTerms(false), Set: RestrictedIPs.String()}, Counter{}}, fixed("counts for each frontend, if it counts traffic")},
		Rule{[]Stmt{Verdict{Kind: Drop}}, fixed("what loadBalancerSourceRanges do not admit")})
	c.Name = sourcesName(own, set)
	if l.makes("chain " + c.Name) {
		l.frag.Chains = append(l.frag.Chains, c)
	}
	return c.Name
}

// admitsAll reports whether sorted ranges contain all clients.
func admitsAll(ranges []*ir.SourceRange) bool { return len(ranges) > 0 && ranges[0].Prefix.Bits() == 0 }

// set returns the name of the set of some ranges, and adds it if it is new. It
// returns "" for no ranges.
func (l *lowering) set(ranges []*ir.SourceRange) string {
	if len(ranges) == 0 {
		return ""
	}
	s := Set{Name: sourcesName(ranges, ""), Key: netKey, Interval: true, Elements: make([]Element, len(ranges))}
	if !l.makes("set " + s.Name) {
		return s.Name
	}
	for i, r := range ranges {
		s.Elements[i] = Element{Key: Key{Addr2: r.Prefix.Addr(), Bits: uint8(r.Prefix.Bits())}, Origin: &r.Origin}
	}
	l.frag.Lists = append(l.frag.Lists, s)
	return s.Name
}

// makes records that the Fragment contains a part with that name. It reports
// whether the name is new.
func (l *lowering) makes(what string) bool {
	if _, ok := l.made[what]; ok {
		return false
	}
	l.made[what] = struct{}{}
	return true
}

// sourcesName returns the name of a chain or set by its content. It contains 160
// bits of a hash, so that no author of a Service can construct a list with the
// name of another one.
func sourcesName(ranges []*ir.SourceRange, set string) string {
	var b []byte
	for _, r := range ranges {
		b = append(r.Prefix.AppendTo(b), '\n')
	}
	sum := sha256.Sum256(append(b, set...))
	return sourcesPrefix + base32.StdEncoding.EncodeToString(sum[:20])
}

// ownAddresses separates the Service's own addresses from a long list. The list
// contains them if the node may use them as its source. Without the separation,
// Services with the same list would each need a set.
func ownAddresses(svc *ir.Service, ranges []*ir.SourceRange) (own, rest []*ir.SourceRange) {
	if len(ranges) <= maxRangeRules {
		return nil, ranges
	}
	addrs := map[netip.Addr]bool{}
	for i := range svc.Frontends {
		if f := &svc.Frontends[i]; f.Kind == ir.LoadBalancer {
			addrs[f.Match.Addr] = true
		}
	}
	for _, r := range ranges {
		if r.Prefix.IsSingleIP() && addrs[r.Prefix.Addr()] {
			own = append(own, r)
		} else {
			rest = append(rest, r)
		}
	}
	if len(own) > maxRangeRules {
		return nil, ranges
	}
	return own, rest
}

// outermost returns the sorted ranges that no other range contains, without
// duplicates. The kernel rejects overlapping intervals.
func outermost(ranges []ir.SourceRange) (out []*ir.SourceRange) {
	all := make([]*ir.SourceRange, len(ranges))
	for i := range ranges {
		all[i] = &ranges[i]
	}
	for _, r := range sorted(all) { // a range precedes those that it contains
		if len(out) == 0 || !out[len(out)-1].Prefix.Overlaps(r.Prefix) {
			out = append(out, r)
		}
	}
	return out
}

// sorted sorts ranges by address; for equal addresses, the widest comes first.
func sorted(ranges []*ir.SourceRange) []*ir.SourceRange {
	slices.SortStableFunc(ranges, func(a, b *ir.SourceRange) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
	})
	return ranges
}
