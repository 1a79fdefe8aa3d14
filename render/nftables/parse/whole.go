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
// tables: "inet fw, chain forward". For the first packet of a connection, it
// supports more statements of foreign tables than ParseList does of ours. left
// describes unsupported tables. Tables for which skip returns true are omitted.
// Our table is the first.
func ParseWhole(f ir.Family, text string, skip func(family, table string) bool) (r *nftables.Ruleset, left []string, err error) {
	p := &listParser{toks: listTokens(text), whole: true, other: otherFamily(f).NFT()}
	whole := &nftables.Ruleset{Exists: true, Family: f}
	for p.skipLines(); !p.end(); p.skipLines() {
		if !p.take("table") {
			return nil, nil, p.errorf("must begin with table, got %q", p.peek())
		}
		family, name := p.next(), p.next()
		if p.peek() != "{" {
			return nil, nil, p.errorf("table %s %s: must be followed by {, got %q", family, name, p.peek())
		}
		begin := p.at
		before := family == "netdev" || family == "bridge"
		if !before && family != f.NFT() && family != "inet" || skip != nil && skip(family, name) {
			p.block()
			continue
		}
		p.next()
		p.r, p.there, p.lists, p.named = &nftables.Ruleset{Family: f}, map[string]bool{}, map[string][]int{}, family+" "+name
		err := p.table()
		switch {
		case err != nil:
			left = append(left, fmt.Sprintf("table %s %s: %v", family, name, err))
			p.at = begin
			p.block()
		case strings.Contains(p.r.Flags, "dormant"): // the table is inactive
		case before:
			if what := decides(p.r); what != "" {
				left = append(left, fmt.Sprintf("table %s %s has %s, and sees packets before", family, name, what))
			}
		default:
			p.r.Chains = slices.DeleteFunc(p.r.Chains, func(c nftables.Chain) bool { return c.Base != nil && c.Base.Unsupported != "" && idle(&c) })
			p.r = Qualify(p.r, family+" "+name)
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
		if c := &r.Chains[i]; len(c.Rules) > 0 {
			rules += len(c.Rules)
		} else if !idle(c) {
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

// idle reports whether a chain accepts all packets.
func idle(c *nftables.Chain) bool {
	return len(c.Rules) == 0 && (c.Base == nil || !c.Base.Drop && !strings.Contains(c.Base.Unsupported, "policy drop"))
}

func otherFamily(f ir.Family) ir.Family {
	if f == ir.IPv4 {
		return ir.IPv6
	}
	return ir.IPv4
}

// Qualify adds the name of the table to the names of its chains and sets, as
// ParseWhole does: "ip proxyc".
func Qualify(r *nftables.Ruleset, table string) *nftables.Ruleset {
	chain := func(name string) string { return table + ", chain " + name }
	set := func(name string) string { return table + ", set " + name }
	verdict := func(v nftables.Verdict) nftables.Verdict {
		if v.Chain != "" && v.Kind != nftables.RejectWith {
			v.Chain = chain(v.Chain)
		}
		return v
	}
	own := *r
	r = &own
	r.Sets, r.Chains = slices.Clone(r.Sets), slices.Clone(r.Chains)
	for i := range r.Sets {
		s := &r.Sets[i]
		s.Name = set(s.Name)
		if s.Data == nftables.VerdictData {
			s.Elements = slices.Clone(s.Elements)
			for j := range s.Elements {
				s.Elements[j].Verdict = verdict(s.Elements[j].Verdict)
			}
		}
	}
	for i := range r.Chains {
		c := &r.Chains[i]
		c.Name = chain(c.Name)
		c.Rules = slices.Clone(c.Rules)
		for j := range c.Rules {
			stmts := slices.Clone(c.Rules[j].Stmts)
			for k, s := range stmts {
				switch s := s.(type) {
				case nftables.Verdict:
					stmts[k] = verdict(s)
				case nftables.MatchSet:
					s.Set = set(s.Set)
					stmts[k] = s
				case nftables.LookupVerdict:
					s.Map = set(s.Map)
					stmts[k] = s
				case nftables.LookupDNAT:
					s.Map = set(s.Map)
					stmts[k] = s
				case nftables.Update:
					s.Map = set(s.Map)
					stmts[k] = s
				}
			}
			c.Rules[j].Stmts = stmts
		}
	}
	return r
}
