package proof

import (
	"regexp"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
	nftparse "github.com/proxyc/proxyc/render/nftables/parse"
)

// foreignRules returns the rules of foreign tables in the output of nft list ruleset that may drop or
// divert first packets of connections, with their chains, and the tables that it does not understand. It
// does not follow jumps, and like apply/nftables.Interference ignores chains named KUBE-.
func foreignRules(f ir.Family, text string) (all apply.Interference, left []string, err error) {
	r, left, err := nftparse.ParseWhole(f, text, "new", func(_, table string) bool { return table == nftables.Table || table == "kube-proxy" })
	if err != nil {
		return all, nil, err
	}
	for _, c := range r.Chains {
		table, name, _ := strings.Cut(c.Name, ", chain ")
		where := table + " chain " + name + ": "
		if c.Base != nil && c.Base.Drop {
			all.Drops = append(all.Drops, where+"policy drop")
		}
		for _, rule := range c.Rules {
			if strings.HasPrefix(name, "KUBE-") || slices.Contains(rule.Stmts, nftables.Stmt(nftables.MatchProto{})) { // for no such packet
				continue
			}
			text := strings.NewReplacer(table+", chain ", "", table+", set ", "").Replace(rule.Text(f))
			whole := " " + text + verdictsOf(r, rule) + " "
			if dropping.MatchString(whole) {
				all.Drops = append(all.Drops, where+text)
			}
			if diverting.MatchString(whole) {
				all.Diverts = append(all.Diverts, where+text)
			}
			if hiding.MatchString(whole) {
				all.Sources = append(all.Sources, where+text)
			}
		}
	}
	return all, left, nil
}

var (
	dropping  = regexp.MustCompile(` (drop|reject|queue)\b`)
	hiding    = regexp.MustCompile(` (snat|masquerade)\b`)
	diverting = regexp.MustCompile(` (dnat|redirect|tproxy|notrack|fwd|meta mark set|ct zone set|([sd]addr|[sd]port|ttl|hoplimit|@[a-z]+,\d+,\d+) set)\b`)
)

// verdictsOf returns the verdicts of the maps that a rule looks up.
func verdictsOf(r *nftables.Ruleset, rule nftables.Rule) (text string) {
	for _, stmt := range rule.Stmts {
		lookup, _ := stmt.(nftables.LookupVerdict)
		for _, s := range r.Sets {
			for _, e := range s.Elements {
				if verdict := " " + string(e.Verdict.AppendText(nil, r.Family)); s.Name == lookup.Map && !strings.Contains(text, verdict) {
					text += verdict
				}
			}
		}
	}
	return text
}
