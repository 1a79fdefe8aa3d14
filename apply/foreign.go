package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Interference lists foreign rules that affect packets to Services. Nothing changes them.
type Interference struct {
	Drops   []string // may drop packets that our rules accept
	Diverts []string // may translate packets first, bypass our rules, or change the masquerade mark
	Sources []string // may translate the client's address first; most networks of pods have such rules
}

// Lines returns a line for each rule, as verbs print them.
func (i Interference) Lines() (lines []string) {
	for _, rule := range i.Drops {
		lines = append(lines, "foreign rules that may drop: "+rule)
	}
	for _, rule := range i.Diverts {
		lines = append(lines, "foreign rules that may divert: "+rule)
	}
	for _, rule := range i.Sources {
		lines = append(lines, "foreign rules that may change the client's address: "+rule)
	}
	return lines
}

// ForeignChain is a base chain of another program.
type ForeignChain struct {
	Name   string
	Where  string // "ip filter chain FORWARD, hook forward, priority 0"
	Policy string // "policy drop", if that is the policy; or empty
	// Translates is set if packets pass the chain before our translation of destinations or sources.
	Translates bool
	// Marks is set if packets pass the chain after our rules set the masquerade mark, and before
	// they match it.
	Marks bool
	// Rules returns the effects of the rules of a chain in the same table; none if there is no such
	// chain.
	Rules func(chain string) ([]RuleEffect, error)
}

// RuleEffect is the effect of a netfilter rule on the packets that it matches.
type RuleEffect struct {
	Does   string // relevant verdict or target, in the tool's words: "drop", "DNAT"; or empty
	To     string // chain that it jumps or goes to; or empty
	Clears uint32 // bits of the packet's mark that it may clear
	Sets   uint32 // those that it sets
}

func (e RuleEffect) is(words ...string) bool { return slices.Contains(words, strings.ToLower(e.Does)) }

// drops reports whether the rule ends the packets.
func (e RuleEffect) drops() bool { return e.is("drop", "reject") }

// diverts reports whether our rules no longer translate the packets. The first translation of a
// connection is final, and untracked packets are not translated.
func (e RuleEffect) diverts() bool { return e.is("dnat", "redirect", "tproxy", "notrack") }

// toOurs reports whether the rule jumps to a chain of proxyc or kube-proxy.
func (e RuleEffect) toOurs() bool { return strings.HasPrefix(e.To, "KUBE-") }

// Add adds the effects of a base chain, and of the chains that it jumps to. mark is the masquerade
// mark.
func (i *Interference) Add(c ForeignChain, mark uint32) error {
	if c.Policy != "" {
		i.Drops = append(i.Drops, c.Where+": "+c.Policy)
	} else if err := c.find(&i.Drops, "", func(_ string, e RuleEffect) bool { return e.drops() }); err != nil {
		return err
	}
	if !c.Translates && !c.Marks {
		return nil
	}
	// If the chain jumps to ours, only the rules before the last jump matter. Packets bypass ours that these
	// accept, or return from the chain.
	before, err := c.Rules(c.Name)
	if err != nil {
		return err
	}
	jump := lastJump(before)
	if jump >= 0 {
		all := c.Rules
		c.Rules = func(chain string) ([]RuleEffect, error) {
			if chain == c.Name {
				return before[:jump], nil
			}
			return all(chain)
		}
	}
	if c.Translates {
		err = c.find(&i.Sources, "", func(_ string, e RuleEffect) bool { return e.is("snat", "masquerade", "netmap") })
	}
	if c.Translates && err == nil {
		err = c.find(&i.Diverts, "", func(chain string, e RuleEffect) bool {
			return e.diverts() || jump >= 0 && (e.is("accept") || e.is("return") && chain == c.Name)
		})
	}
	if c.Marks && err == nil {
		err = c.find(&i.Diverts, fmt.Sprintf("clears mark %#x", mark), func(_ string, e RuleEffect) bool { return e.Clears&mark != 0 })
	}
	if err == nil {
		err = c.find(&i.Diverts, fmt.Sprintf("sets mark %#x", mark), func(_ string, e RuleEffect) bool { return e.Sets&mark != 0 })
	}
	return err
}

// lastJump returns the position of the last jump to ours; -1 if there is none.
func lastJump(list []RuleEffect) int {
	for i, e := range slices.Backward(list) {
		if e.toOurs() {
			return i
		}
	}
	return -1
}

// find appends the nearest chain with a matching rule to found, if any, with the effect of the
// rule, or with does if that is set.
func (c *ForeignChain) find(found *[]string, does string, matches func(chain string, e RuleEffect) bool) error {
	seen := map[string]bool{}
	for todo := []string{c.Name}; len(todo) > 0; todo = todo[1:] {
		chain := todo[0]
		if seen[chain] {
			continue
		}
		seen[chain] = true
		list, err := c.Rules(chain)
		if err != nil {
			return err
		}
		for _, e := range list {
			if matches(chain, e) {
				*found = append(*found, c.Where+": "+cmp.Or(does, e.Does)+" in chain "+chain)
				return nil
			}
			if e.To != "" {
				todo = append(todo, e.To)
			}
		}
	}
	return nil
}
