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
	for _, list := range [...]struct {
		title string
		rules []string
	}{
		{"that may drop", i.Drops}, {"that may divert", i.Diverts}, {"that may change the client's address", i.Sources},
		{"for packets of a family without Services", i.Ignored},
	} {
		for _, rule := range list.rules {
			lines = append(lines, "foreign rules "+list.title+": "+rule)
		}
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

// Add adds the effects of a base chain, and of the chains that it jumps to. mark is the masquerade
// mark.
func (i *Interference) Add(c ForeignChain, mark uint32) error {
	own, err := c.Rules(c.Name)
	if err != nil {
		return err
	}
	all, err := c.reached(own)
	if err != nil {
		return err
	}
	if c.Policy != "" {
		i.Drops = append(i.Drops, c.Where+": "+c.Policy)
	} else {
		c.note(&i.Drops, all, "", reachedRule.drops)
	}
	c.note(&i.Diverts, all, "", func(r reachedRule) bool { return r.is(Rewrites, "ttl", "hl", "fwd") })
	for _, r := range all {
		if c.Routes && r.Clears|r.Sets != 0 {
			i.Marks = append(i.Marks, Marking{c.Where + ": " + r.Does + " in chain " + r.chain, r.RuleEffect})
		}
	}
	if !c.Translates && !c.Marks {
		return nil
	}
	// If the chain jumps to ours, only the rules before the last jump matter. Packets bypass ours that these
	// accept, or return from the chain.
	jump := lastJump(own)
	if jump >= 0 {
		if all, err = c.reached(own[:jump]); err != nil {
			return err
		}
	}
	if c.Translates {
		c.note(&i.Sources, all, "", func(r reachedRule) bool { return r.is("snat", "masquerade", "netmap") })
		c.note(&i.Diverts, all, "", func(r reachedRule) bool { return r.diverts() || jump >= 0 && r.ends(c.Name) })
	}
	if c.Marks {
		c.note(&i.Diverts, all, fmt.Sprintf("clears mark %#x", mark), func(r reachedRule) bool { return r.Clears&mark != 0 })
	}
	c.note(&i.Diverts, all, fmt.Sprintf("sets mark %#x", mark), func(r reachedRule) bool { return r.Sets&mark != 0 })
	return nil
}

// lastJump returns the position of the last jump to a chain of proxyc or kube-proxy; -1 if there is none.
func lastJump(list []RuleEffect) int {
	for i, e := range slices.Backward(list) {
		if strings.HasPrefix(e.To, "KUBE-") {
			return i
		}
	}
	return -1
}

// reachedRule is a rule that packets of a base chain may meet.
type reachedRule struct {
	RuleEffect
	chain string
}

// ends reports whether packets leave a base chain by the rule, without a verdict of later ones.
func (r reachedRule) ends(base string) bool {
	return r.is("accept") || r.is("return") && r.chain == base
}

// reached returns the given rules of the chain, and those of the chains that they lead to, the nearest
// first.
func (c *ForeignChain) reached(own []RuleEffect) (all []reachedRule, err error) {
	seen := map[string]bool{c.Name: true}
	for todo := []string{c.Name}; len(todo) > 0; todo = todo[1:] {
		list := own
		if todo[0] != c.Name {
			if list, err = c.Rules(todo[0]); err != nil {
				return nil, err
			}
		}
		for _, e := range list {
			all = append(all, reachedRule{e, todo[0]})
			if e.To != "" && !seen[e.To] {
				seen[e.To] = true
				todo = append(todo, e.To)
			}
		}
	}
	return all, nil
}

// note appends the first matching rule to a list, if any, with its effect, or with does if that is set.
func (c *ForeignChain) note(list *[]string, rules []reachedRule, does string, matches func(reachedRule) bool) {
	if i := slices.IndexFunc(rules, matches); i >= 0 {
		*list = append(*list, c.Where+": "+cmp.Or(does, rules[i].Does)+" in chain "+rules[i].chain)
	}
}
