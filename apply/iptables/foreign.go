package iptables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/apply"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// SavedInterference returns the effects of foreign rules in the output of iptables-save on packets to
// Services. It ignores chains named KUBE-. It includes rules that accept
// packets before they reach our rules of table filter, as many firewalls do.
func SavedInterference(saved string, mark uint32) (all apply.Interference) {
	for text := range strings.SplitSeq("\n"+saved, "\n*") {
		t := foreignTable{rules: map[string][]apply.RuleEffect{}}
		for line := range strings.Lines(text) {
			t.line([]byte(strings.TrimSuffix(line, "\n")))
		}
		table, _, _ := strings.Cut(text, "\n")
		t.addTo(&all, "", strings.TrimSpace(table), mark)
	}
	return all
}

// foreignTable parses the output of iptables-save for a table.
type foreignTable struct {
	builtIn []apply.ForeignChain
	rules   map[string][]apply.RuleEffect // by chain
}

// addTo adds the effects of the table's chains. Their names begin with the tool.
func (d *foreignTable) addTo(all *apply.Interference, tool, table string, mark uint32) {
	for _, c := range d.builtIn {
		c.Where = fmt.Sprintf("%stable %s chain %s", tool, table, c.Name)
		c.Translates = tool == "" || c.Name == "PREROUTING" || c.Name == "OUTPUT" || c.Name == "POSTROUTING" && table == "nat"
		c.Routes = c.Name == "PREROUTING" || c.Name == "OUTPUT"
		// Tables filter and security come after nat, which sets the mark.
		c.Marks = c.Name == "FORWARD" || c.Name == "POSTROUTING" || c.Name == "OUTPUT" && (table == "filter" || table == "security")
		_ = all.Add(c, mark) // fails only if Rules do
	}
}

func (d *foreignTable) line(line []byte) {
	words := iptparse.SavedWords(string(line))
	if len(words) < 2 {
		return
	}
	if name, declared := strings.CutPrefix(words[0], ":"); declared && words[1] != "-" { // only built-in chains have a policy
		c := apply.ForeignChain{Name: name, Rules: func(chain string) ([]apply.RuleEffect, error) { return d.rules[chain], nil }}
		if words[1] == "DROP" {
			c.Policy = "policy DROP"
		}
		d.builtIn = append(d.builtIn, c)
	}
	if words[0] != "-A" || strings.HasPrefix(words[1], "KUBE-") {
		return
	}
	if e := effectOf(words); e != (apply.RuleEffect{}) {
		d.rules[words[1]] = append(d.rules[words[1]], e)
	}
}

// effectOf returns the effect of a rule; zero for none.
func effectOf(words []string) apply.RuleEffect {
	switch target := iptparse.SavedTarget(words); {
	case target == "CT" && slices.Contains(words, "--notrack"):
		return apply.RuleEffect{Does: "NOTRACK"}
	case target == "CT" && slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--zone") }):
		return apply.RuleEffect{Does: "CT --zone"}
	case target == "MARK":
		set, mask := maskedOf(words, "--set-xmark")
		return apply.RuleEffect{Does: target, Clears: mask ^ set, Sets: mask & set, Any: set &^ mask} // the result is (mark and not mask) xor set
	case target == "CONNMARK" && slices.Contains(words, "--restore-mark"):
		of, _ := maskedOf(words, "--nfmask")
		from, _ := maskedOf(words, "--ctmask")
		return apply.RuleEffect{Does: target, Clears: of | from, Any: of | from}
	case slices.Contains(verdicts[:], target):
		return apply.RuleEffect{Does: target}
	default:
		return apply.RuleEffect{To: target}
	}
}

// maskedOf returns the value and mask of an option; the default mask is all bits.
func maskedOf(words []string, option string) (number, mask uint32) {
	number, mask = ^uint32(0), ^uint32(0)
	if at := slices.Index(words, option) + 1; at > 0 && at < len(words) {
		first, second, masked := strings.Cut(words[at], "/")
		if n, err := strconv.ParseUint(first, 0, 32); err == nil {
			number = uint32(n)
		}
		if n, err := strconv.ParseUint(second, 0, 32); masked && err == nil {
			mask = uint32(n)
		}
	}
	return number, mask
}

// verdicts are the relevant targets. Others are chains, or continue.
var verdicts = [...]string{"ACCEPT", "DROP", "REJECT", "DNAT", "REDIRECT", "TPROXY", "NOTRACK", "RETURN", "SNAT", "MASQUERADE", "NETMAP", "TTL", "HL", "NFQUEUE"}
