package parse

import (
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
)

// ParseWhole parses the output of nft list ruleset as one Ruleset of all tables
// that packets of a family traverse. The names of chains contain those of their
// tables: "inet fw, chain forward". For packets of a connection in a state, new or
// established, it supports more statements of foreign tables than ParseList does of
// ours. left describes unsupported tables. Tables for which skip returns true are omitted.
// Our table is the first.
func ParseWhole(f ir.Family, text, state string, skip func(family, table string) bool) (r *nftables.Ruleset, left []string, err error) {
	p := &listParser{toks: listTokens(text), whole: true, state: state, other: f.Other().NFT()}
	whole := &nftables.Ruleset{Exists: true, Family: f}
	for p.skipLines(); !p.end(); p.skipLines() {
		family, name, err := p.header()
		if err != nil {
			return nil, nil, err
		}
		begin := p.at
		before := slices.Contains([]string{"netdev", "bridge"}, family)
		if !before && family != f.NFT() && family != "inet" || skip != nil && skip(family, name) {
			p.block()
			continue
		}
		p.next()
		p.r, p.there, p.lists, p.named = &nftables.Ruleset{Family: f}, map[string]bool{}, map[string][]int{}, family+" "+name
		err = p.table()
		switch {
		case err != nil:
			left = append(left, fmt.Sprintf("table %s %s: %v", family, name, err))
			p.at = begin
			p.block()
		case strings.Contains(p.r.Flags, "dormant"): // the table is inactive
		case before:
			if what := decides(p.r); what != "" {
				left = append(left, fmt.Sprintf("table %s %s has %s, and packets pass it before the other tables", family, name, what))
			}
		default:
			p.r.Chains = slices.DeleteFunc(p.r.Chains, func(c nftables.Chain) bool { return c.Base != nil && c.Base.Unsupported != "" && idle(&c) })
			if name == nftables.Table {
				whole.Chains = slices.Concat(p.r.Chains, whole.Chains)
			} else {
				whole.Chains = append(whole.Chains, p.r.Chains...)
			}
			whole.Sets = append(whole.Sets, p.r.Sets...)
		}
	}
	return whole, left, nil
}

// decides describes the parts of a table that may decide about packets; "" if
// none.
func decides(r *nftables.Ruleset) (what string) {
	rules := 0
	for i := range r.Chains {
		c := &r.Chains[i]
		for _, rule := range c.Rules {
			if slices.ContainsFunc(rule.Stmts, effective) {
				rules++
			}
		}
		if c.Base != nil && !idle(&nftables.Chain{Base: c.Base}) {
			what = "a chain with the policy drop"
		}
	}
	switch {
	case rules == 1:
		return "1 rule"
	case rules > 0:
		return fmt.Sprintf("%d rules", rules)
	}
	return what
}

// effective reports whether a statement may do more than count a packet or accept it.
func effective(s nftables.Stmt) bool {
	switch s := s.(type) {
	case nftables.Counter, nftables.MatchProto, nftables.MatchInterface:
		return false
	case nftables.Verdict:
		return s.Kind != nftables.Accept && s.Kind != nftables.Continue && s.Kind != nftables.Return
	}
	return true
}

// idle reports whether a chain accepts all packets.
func idle(c *nftables.Chain) bool {
	return len(c.Rules) == 0 && (c.Base == nil || !c.Base.Drop && !strings.Contains(c.Base.Unsupported, "policy drop"))
}

// chainName returns the name of a chain in the Ruleset: with whole "inet fw, chain forward".
func (p *listParser) chainName(name string) string { return p.nameOf(", chain ", name) }

// setName is chainName for a set.
func (p *listParser) setName(name string) string { return p.nameOf(", set ", name) }

func (p *listParser) nameOf(kind, name string) string {
	if p.named == "" {
		return name
	}
	return p.named + kind + name
}
