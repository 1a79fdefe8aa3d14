package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Interference lists what affects packets to Services on a node besides our rules. Nothing changes it.
type Interference struct {
	Drops    []string  // foreign rules that may drop packets that our rules accept
	Diverts  []string  // that may translate or rewrite packets, bypass our rules, or change the masquerade mark
	Sources  []string  // that may translate the client's address first; most networks of pods have such rules
	Settings []string  // kernel settings, rules of routing and routes with which the kernel may discard packets
	Ignored  []string  // foreign rules of Drops and Diverts for a family without frontends
	Marks    []Marking // foreign rules that change the mark with which the kernel routes packets; most are harmless
}

// Marking is a foreign rule that changes the mark of packets.
type Marking struct {
	Where string
	RuleEffect
}

// Marking returns a foreign rule after which the mark of a packet may match a value and mask; "" for none.
func (i *Interference) Marking(value, mask uint32) string {
	for _, m := range i.Marks {
		if (m.Clears|m.Sets)&mask != 0 && m.Sets&mask&^value == 0 && m.Clears&^m.Any&mask&value == 0 {
			return m.Where
		}
	}
	return ""
}

// Ignore moves the rules for packets of one family alone to Ignored.
func (i *Interference) Ignore(f ir.Family) {
	for _, list := range [...]*[]string{&i.Drops, &i.Diverts} {
		*list = slices.DeleteFunc(*list, func(rule string) bool {
			alone := strings.HasPrefix(rule, f.NFT()+" ") || strings.HasPrefix(rule, f.NFT()+"tables-")
			if alone {
				i.Ignored = append(i.Ignored, rule)
			}
			return alone
		})
	}
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
	for _, rule := range i.Ignored {
		lines = append(lines, "foreign rules for packets of a family without Services: "+rule)
	}
	return append(lines, i.Settings...)
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
	// Routes is set if packets pass the chain before the kernel routes them.
	Routes bool
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
	Any    uint32 // those of Clears that it may set instead
}

func (e RuleEffect) is(words ...string) bool { return slices.Contains(words, strings.ToLower(e.Does)) }

// drops reports whether the rule ends the packets.
func (e RuleEffect) drops() bool { return e.is("drop", "reject", "queue", "nfqueue") }

// Rewrites is the effect of rules that write fields of the packet.
const Rewrites = "rewrites packets"

// diverts reports whether our rules no longer translate the packets. The first translation of a
// connection is final, and untracked packets are not translated, nor replies in another zone.
func (e RuleEffect) diverts() bool {
	return e.is("dnat", "redirect", "netmap", "tproxy", "notrack", "ct zone set", "ct --zone")
}

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
	if err := c.find(&i.Diverts, "", func(_ string, e RuleEffect) bool { return e.is(Rewrites, "ttl", "hl", "fwd") }); err != nil {
		return err
	}
	if c.Routes {
		_ = c.find(nil, "", func(chain string, e RuleEffect) bool { // cannot fail: the chains were read above
			if e.Clears|e.Sets != 0 {
				i.Marks = append(i.Marks, Marking{c.Where + ": " + e.Does + " in chain " + chain, e})
			}
			return false
		})
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
