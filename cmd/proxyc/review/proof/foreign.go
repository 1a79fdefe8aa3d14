package proof

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
	nftparse "github.com/proxyc/proxyc/render/nftables/parse"
)

// addForeign adds the effects of foreign tables in the output of nft list ruleset, as
// apply/nftables.Interference does for a kernel.
func addForeign(all *apply.Interference, f ir.Family, text string, mark uint32) error {
	r, _, err := nftparse.ParseWhole(f, text, func(_, table string) bool { return table == nftables.Table || table == "kube-proxy" })
	if err != nil {
		return err
	}
	for i := range r.Chains {
		of := &r.Chains[i]
		table, name, _ := strings.Cut(of.Name, ", chain ")
		if of.Base == nil {
			continue
		}
		c := apply.ForeignChain{Name: name, Where: fmt.Sprintf("%s chain %s, hook %s, priority %d", table, name, of.Base.Hook, of.Base.Priority)}
		c.Translates, c.Marks = of.Base.Passes()
		if of.Base.Drop {
			c.Policy = "policy drop"
		}
		c.Rules = func(chain string) (effects []apply.RuleEffect, _ error) {
			at := slices.IndexFunc(r.Chains, func(o nftables.Chain) bool { return o.Name == table+", chain "+chain })
			if at < 0 || strings.HasPrefix(chain, "KUBE-") {
				return nil, nil
			}
			for _, rule := range r.Chains[at].Rules {
				effects = append(effects, effectsOf(r, rule)...)
			}
			return effects, nil
		}
		if err := all.Add(c, mark); err != nil {
			return err
		}
	}
	return nil
}

// effectsOf returns the effects of a rule on the first packet of a connection.
func effectsOf(r *nftables.Ruleset, rule nftables.Rule) (out []apply.RuleEffect) {
	for _, s := range rule.Stmts {
		switch s := s.(type) {
		case nftables.MatchProto:
			if s == (nftables.MatchProto{}) { // no such packet
				return nil
			}
		case nftables.Verdict:
			out = append(out, verdictEffect(s))
		case nftables.LookupVerdict:
			if at := slices.IndexFunc(r.Sets, func(o nftables.Set) bool { return o.Name == s.Map }); at >= 0 {
				for _, e := range r.Sets[at].Elements {
					out = append(out, verdictEffect(e.Verdict))
				}
			}
		default:
			out = append(out, textEffects(strings.Fields(string(s.AppendText(nil, r.Family))))...)
		}
	}
	return out
}

func verdictEffect(v nftables.Verdict) apply.RuleEffect {
	switch _, chain, _ := strings.Cut(v.Chain, ", chain "); v.Kind {
	case nftables.Jump, nftables.Goto:
		return apply.RuleEffect{To: chain}
	case nftables.RejectWith:
		return apply.RuleEffect{Does: "reject"}
	default:
		return apply.RuleEffect{Does: string(v.AppendText(nil, ir.IPv4))}
	}
}

// textEffects returns the effects that the words of a statement name.
func textEffects(words []string) (out []apply.RuleEffect) {
	for i, word := range words {
		switch word {
		case "drop", "reject", "accept", "return", "dnat", "redirect", "tproxy", "notrack":
			out = append(out, apply.RuleEffect{Does: word})
		case "jump", "goto":
			if i+1 < len(words) {
				out = append(out, apply.RuleEffect{To: words[i+1]})
			}
		case "set":
			if i > 1 && words[i-2] == "meta" && words[i-1] == "mark" {
				out = append(out, apply.RuleEffect{Does: "meta mark set", Clears: ^marked(words[i+1:])})
			}
		}
	}
	return out
}

// marked returns what "meta mark & 0xff00 | 0x10" makes of a mark with all bits set.
func marked(words []string) uint32 {
	mark, op := ^uint32(0), ""
	for _, word := range words {
		number, err := strconv.ParseUint(word, 0, 32)
		switch n := uint32(number); {
		case word == "ct": // the mark of the connection is not known
			return 0
		case err != nil:
			op = word
		case op == "|" || op == "or":
			mark |= n
		case op == "^" || op == "xor":
			mark ^= n
		case op == "&" || op == "and":
			mark &= n
		default:
			mark = n
		}
	}
	return mark
}
