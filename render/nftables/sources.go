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

// Each list of admitted ranges has a chain, to which all frontends lead that have this very
// list, of whatever Service: what a Service has is its frontends and its ranges, not as
// many elements as one times the other.
//
// Short lists are rules. The kernel finds a set by going through the names of all, so
// that ten thousand sets take it as long as hundreds of thousands of rules, and most lists are
// short. Long ones are a set, which a rule asks.

// mostRangeRules is how many ranges are rules at most; a packet meets each.
const mostRangeRules = 8

const sourcesPrefix = "sources-"

// IsSources reports whether a set has the name of those of source ranges.
func IsSources(set string) bool { return strings.HasPrefix(set, sourcesPrefix) }

// listOf is a list of ranges that frontends of a Service share.
type listOf struct {
	first *ir.SourceRange
	n     int
}

// guard admits the source ranges only (PKT-10, NFT-5).
func (l *lowering) guard(f *lowerable) {
	if len(f.SourceRanges) == 0 {
		return
	}
	key := listOf{&f.SourceRanges[0], len(f.SourceRanges)}
	chain, known := l.lists[key]
	if !known {
		chain = l.sources(f)
		l.lists[key] = chain
	}
	if chain == "" {
		return
	}
	if !l.guards {
		l.guards = true
		l.frag.Chains = append(l.frag.Chains, guardChain())
	}
	l.addShared(FirewallAddrs, Element{Key: Key{Addr: f.Match.Addr}, Origin: &f.Origin})
	e := f.element(Verdict{Goto, chain})
	e.Origin = &f.SourceRanges[0].Origin
	l.add(FirewallLists, e)
}

// sources returns the name of the chain of a frontend's list, and makes it if it is new;
// empty for a list that admits everybody.
func (l *lowering) sources(f *lowerable) string {
	own, rest := ownAddresses(f.svc, outermost(f.SourceRanges))
	if len(rest) > 0 && rest[0].Prefix.Bits() == 0 {
		return ""
	}
	if len(rest) <= mostRangeRules {
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
	c.Rules = append(c.Rules, Rule{[]Stmt{Verdict{Kind: Drop}}, fixed("what loadBalancerSourceRanges do not admit")})
	c.Name = sourcesName(own, set)
	if l.makes("chain " + c.Name) {
		l.frag.Chains = append(l.frag.Chains, c)
	}
	return c.Name
}

// set returns the name of the set of some ranges, and makes it if it is new; empty for none.
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

// makes notes that the Fragment has something of that name, and reports whether it is new.
func (l *lowering) makes(what string) bool {
	if _, ok := l.made[what]; ok {
		return false
	}
	l.made[what] = struct{}{}
	return true
}

// sourcesName names a chain or set by what it admits: 160 bits of a hash, so that nobody can
// find a list that takes the place of another's.
func sourcesName(ranges []*ir.SourceRange, set string) string {
	var b []byte
	for _, r := range ranges {
		b = append(r.Prefix.AppendTo(b), '\n')
	}
	sum := sha256.Sum256(append(b, set...))
	return sourcesPrefix + base32.StdEncoding.EncodeToString(sum[:20])
}

// ownAddresses parts from a list the Service's own addresses, if they are few. They are in it where the node may use
// them as its source; with them Services of one list would have a set each.
func ownAddresses(svc *ir.Service, ranges []*ir.SourceRange) (own, rest []*ir.SourceRange) {
	if len(ranges) <= mostRangeRules {
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
	if len(own) > mostRangeRules {
		return nil, ranges
	}
	return own, rest
}

// outermost returns the ranges that no other one holds, each once, sorted: the kernel
// refuses overlapping intervals.
func outermost(ranges []ir.SourceRange) (out []*ir.SourceRange) {
	all := make([]*ir.SourceRange, len(ranges))
	for i := range ranges {
		all[i] = &ranges[i]
	}
	for _, r := range sorted(all) { // what holds others stands before them
		if len(out) == 0 || !out[len(out)-1].Prefix.Overlaps(r.Prefix) {
			out = append(out, r)
		}
	}
	return out
}

// sorted sorts ranges by their addresses, the widest of one address first.
func sorted(ranges []*ir.SourceRange) []*ir.SourceRange {
	slices.SortStableFunc(ranges, func(a, b *ir.SourceRange) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
	})
	return ranges
}
