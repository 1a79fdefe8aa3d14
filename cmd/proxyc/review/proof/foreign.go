package proof

import (
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
	nftparse "github.com/proxyc/proxyc/render/nftables/parse"
)

// foreignRules returns the rules of foreign tables in the output of nft list ruleset that may drop or
// divert first packets of connections, with their chains. It does not follow jumps, and like
// apply/nftables.Interference ignores chains named KUBE-.
func foreignRules(f ir.Family, text string) (all apply.Interference, err error) {
	r, _, err := nftparse.ParseWhole(f, text, func(_, table string) bool { return table == nftables.Table || table == "kube-proxy" })
	if err != nil {
		return all, err
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
			words := strings.Fields(text)
			for _, s := range r.Sets {
				if of := strings.TrimPrefix(s.Name, table+", set "); s.Data == nftables.VerdictData && strings.Contains(text, "@"+of) {
					for _, e := range s.Elements {
						words = append(words, strings.Fields(string(e.Verdict.AppendText(nil, f)))...)
					}
				}
			}
			does := func(of ...string) bool {
				return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(of, w) })
			}
			if does("drop", "reject") {
				all.Drops = append(all.Drops, where+text)
			}
			if does("dnat", "redirect", "tproxy", "notrack") || strings.Contains(text, "meta mark set") {
				all.Diverts = append(all.Diverts, where+text)
			}
		}
	}
	return all, nil
}
