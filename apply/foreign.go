package apply

import (
	"fmt"
	"slices"
	"strings"
)

// Interference are rules of others that packets to Services meet. They are their owners'
// business: nobody removes them.
type Interference struct {
	Drops   []string // that may drop what ours would let pass
	Diverts []string // that may keep packets from ours: by a translation of their own, around them, or without the mark that they look for
}

// Lines returns a line for each, as verbs print them.
func (i Interference) Lines() (lines []string) {
	for _, rule := range i.Drops {
		lines = append(lines, "foreign rules that may drop: "+rule)
	}
	for _, rule := range i.Diverts {
		lines = append(lines, "foreign rules that may divert: "+rule)
	}
	return lines
}

// RuleEffect is what a netfilter rule does to the packets that it matches.
type RuleEffect struct {
	Does string // its verdict or target, as its tool has it: "drop", "DNAT"; empty: none that matters
	To   string // the chain that it jumps or goes to, or empty
	// Clears are the bits of a packet's mark that are not set behind it, or may not be,
	// where they were before.
	Clears uint32
}

// Drops reports whether packets end at the rule.
func (e RuleEffect) Drops() bool { return e.is("drop", "reject") }

// Diverts reports whether packets leave the rule that ours do not translate any more:
// the first translation of a connection stands, and one that is not tracked has none.
func (e RuleEffect) Diverts() bool { return e.is("dnat", "redirect", "tproxy", "notrack") }

// Accepts reports whether packets leave the table at the rule.
func (e RuleEffect) Accepts() bool { return e.is("accept") }

func (e RuleEffect) is(words ...string) bool { return slices.Contains(words, strings.ToLower(e.Does)) }

// ToOurs reports whether the rule leads to the chains of a Service proxy.
func (e RuleEffect) ToOurs() bool { return strings.HasPrefix(e.To, "KUBE-") }

// FindRule returns the first chain, of a base chain and those that it leads to,
// nearest first, with a rule that counts, and what that does; empty: none. rules is
// asked once for each chain; none: there is no such chain.
func FindRule(base string, rules func(chain string) ([]RuleEffect, error), counts func(RuleEffect) bool) (in, does string, err error) {
	seen := map[string]bool{}
	for todo := []string{base}; len(todo) > 0; todo = todo[1:] {
		chain := todo[0]
		if seen[chain] {
			continue
		}
		seen[chain] = true
		list, err := rules(chain)
		if err != nil {
			return "", "", err
		}
		for _, e := range list {
			if counts(e) {
				return chain, e.Does, nil
			}
			if e.To != "" {
				todo = append(todo, e.To)
			}
		}
	}
	return "", "", nil
}

// FindDiversion is FindRule for the rules of a base chain that packets meet before
// ours. Where the chain leads to ours, what is accepted before does not reach them.
func FindDiversion(base string, rules func(chain string) ([]RuleEffect, error)) (in, does string, err error) {
	rules, leads, err := beforeOurs(base, rules)
	if err != nil {
		return "", "", err
	}
	return FindRule(base, rules, func(e RuleEffect) bool { return e.Diverts() || leads && e.Accepts() })
}

// FindUnmark returns the first chain, of a base chain and those that it leads to, with a
// rule before ours that clears a bit of the mark; empty: none.
func FindUnmark(base string, mark uint32, rules func(chain string) ([]RuleEffect, error)) (in string, err error) {
	rules, _, err = beforeOurs(base, rules)
	if err != nil {
		return "", err
	}
	in, _, err = FindRule(base, rules, func(e RuleEffect) bool { return e.Clears&mark != 0 })
	return in, err
}

// Unmark is how an Interference tells of a rule that FindUnmark found.
func Unmark(mark uint32, in string) string {
	return fmt.Sprintf("clears mark %#x in chain %s", mark, in)
}

// beforeOurs returns rules without those of a base chain behind the first one that leads to
// ours, and reports whether there is one.
func beforeOurs(base string, rules func(chain string) ([]RuleEffect, error)) (_ func(chain string) ([]RuleEffect, error), leads bool, err error) {
	list, err := rules(base)
	if err != nil {
		return nil, false, err
	}
	if ours := slices.IndexFunc(list, RuleEffect.ToOurs); ours >= 0 {
		list, leads = list[:ours], true
	}
	return func(chain string) ([]RuleEffect, error) {
		if chain == base {
			return list, nil
		}
		return rules(chain)
	}, leads, nil
}
