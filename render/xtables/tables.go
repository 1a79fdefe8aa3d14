package xtables

import (
	"strings"

	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// priorities are the priorities of the chains of each table, by hook.
var priorities = map[string]map[string]int{
	"raw":      {"PREROUTING": -300, "OUTPUT": -300},
	"mangle":   {"PREROUTING": -150, "INPUT": -150, "FORWARD": -150, "OUTPUT": -150, "POSTROUTING": -150},
	"nat":      {"PREROUTING": nftables.PriorityDNAT, "OUTPUT": nftables.PriorityDNAT, "INPUT": nftables.PrioritySNAT, "POSTROUTING": nftables.PrioritySNAT},
	"filter":   {"INPUT": nftables.PriorityFilter, "FORWARD": nftables.PriorityFilter, "OUTPUT": nftables.PriorityFilter},
	"security": {"INPUT": 50, "FORWARD": 50, "OUTPUT": 50},
}

var hooks = map[string]nftables.Hook{
	"PREROUTING": nftables.Prerouting, "INPUT": nftables.Input, "FORWARD": nftables.Forward,
	"OUTPUT": nftables.Output, "POSTROUTING": nftables.Postrouting,
}

// Add adds all tables in the output of iptables-save or ip6tables-save to a
// Ruleset of their family, for a Follower. Chains are named "PREFIXnat, chain
// KUBE-SERVICES".
func Add(r *nftables.Ruleset, prefix, saved string, sets *Sets) error {
	at := map[string]int{} // index in r.Chains
	chain := func(table, name string) *nftables.Chain {
		full := prefix + table + ", chain " + name
		i, known := at[full]
		if !known {
			i = len(r.Chains)
			at[full] = i
			c := nftables.Chain{Name: full}
			if priority, hooked := priorities[table][name]; hooked {
				c.Base = &nftables.Base{Hook: hooks[name], NAT: table == "nat", Priority: priority}
			}
			r.Chains = append(r.Chains, c)
		}
		return &r.Chains[i]
	}
	return iptparse.EachSaved(saved, func(table, line string) {
		if line[0] == ':' {
			name, rest, _ := strings.Cut(line[1:], " ")
			if c := chain(table, name); c.Base != nil {
				c.Base.Drop = strings.HasPrefix(rest, "DROP")
			}
			return
		}
		option, name, text := iptparse.SavedRule(r.Family, line)
		c := chain(table, name)
		rule := nftables.Rule{Stmts: []nftables.Stmt{parse(r.Family, prefix+table+", chain ", text, sets)}}
		if option == "-I" { // as in iptables-restore
			c.Rules = append([]nftables.Rule{rule}, c.Rules...)
		} else {
			c.Rules = append(c.Rules, rule)
		}
	})
}

// NewFollower returns a Follower for iptables tables that proxyc writes, or that
// were parsed.
func NewFollower(r *iptables.Ruleset, own *sim.Own) *nfteval.Evaluator {
	var text strings.Builder
	r.Write(&text) // never fails
	tables := &nftables.Ruleset{Family: r.Family}
	if err := Add(tables, "", text.String(), nil); err != nil {
		panic("rules that iptables.Ruleset writes: " + err.Error())
	}
	return nfteval.NewFollower(tables, own)
}
