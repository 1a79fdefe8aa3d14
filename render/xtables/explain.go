package xtables

import (
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Tool is the program that a family's rules are for.
func Tool(f ir.Family) string {
	if f == ir.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Explain says of every rule why it is there, until yield returns false; then
// it does too. Where is the tool, the table, the chain, and the rule's number
// in it, as iptables -L --line-numbers counts; Text is what iptables -S has behind the chain.
func Explain(f ir.Family, tables []Table, yield func(render.Entry) bool) bool {
	for _, t := range tables {
		for _, c := range t.Chains {
			for i, r := range c.Rules {
				e := render.Entry{
					Where:  Tool(f) + " " + t.Name + " " + c.Name + " " + strconv.Itoa(i+1),
					Text:   strings.TrimSpace(string(r.Append(nil))),
					Port:   r.Port,
					Origin: r.Origin,
				}
				if r.Frontend != (ir.Match{}) {
					e.Match = r.Frontend.String()
				}
				if !yield(e) {
					return false
				}
			}
		}
	}
	return true
}
