package nftables

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// The number of a frontend's backends is encoded in sets without verdicts. An
// element with a chain is expensive: for each insertion, the kernel follows all
// such elements. CountIPs+k and CountPorts+k contain the frontends whose number
// has bit k set. Shared chains test these sets until one of the numbers in use
// remains. The chain of that number, for example lb-3, selects the backend. If
// all frontends have the same number of backends, no set is tested.

// countBits is the number of encoded bits. Frontends with larger numbers of
// backends have an element with their own chain; a cluster has few of these.
const countBits = 6

// withCounts adds the declarations of the bit sets.
func withCounts(sets [setCount]Set) [setCount]Set {
	for k := range SetID(countBits) {
		name := "count-" + strconv.Itoa(1<<k)
		sets[CountIPs+k] = Set{Name: name + "-ips", Key: frontendKey}
		sets[CountPorts+k] = Set{Name: name + "-nodeports", Key: nodePortKey}
	}
	return sets
}

// countSets are the first bit sets, for addresses and for node ports.
var countSets = [2]SetID{CountIPs, CountPorts}

// verdict returns the verdict of a frontend in a map. In the maps that all
// packets pass, it jumps to a chain only if the shared chains are not sufficient.
func (l *lowering) verdict(f *lowerable, id SetID, t target, p *ir.Pool) Verdict {
	v := l.usualVerdict(id, t)
	if v.Kind == 0 {
		return Verdict{Goto, l.chain(t, p)}
	}
	l.chain(t.picks(), p)
	for k := range SetID(countBits) {
		if t.n>>k&1 != 0 {
			l.add(countSets[ir.Int(t.nodePort)]+k, Element{Key: frontendKeyOf(f.Match), Frontend: f.Frontend, Origin: &f.Origin})
		}
	}
	return v
}

// usualVerdict returns Continue for the shared chain after the lookup, or Return
// to the chain that masquerades everything. It returns zero if the frontend
// requires its own chain.
func (l *lowering) usualVerdict(id SetID, t target) (v Verdict) {
	switch {
	case t.affinity != "" || t.pool != "" || t.maglev || bits.Len(uint(t.n)) > countBits:
	case id == ServicePorts && t.marks == markAll, id == ServiceIPs && t.marks == usualMarks(l.node):
		v.Kind = Continue
	case id == ServiceIPs && t.marks == markAll:
		v.Kind = Return
	}
	return v
}

// usualMarks returns the marks of most addresses: ClusterIPs.
func usualMarks(node *ir.Node) marks {
	if node.Detector.Mode == ir.DetectNone {
		return markNone
	}
	return markNonLocal
}

// rootName returns the name of the chain with the first tests.
func rootName(m marks, nodePort bool) string {
	return strings.TrimSuffix(target{marks: m, nodePort: nodePort}.prefix(), "-")
}

// countingChains returns the chains that determine a frontend's number of
// backends, for the numbers in use of addresses and node ports. Three chains
// contain the first tests. The names of the others determine their rules.
func countingChains(node *ir.Node, inUse [2][]int) (all []Chain) {
	var more []Chain
	for nodePort, marks := range [2][]marks{{usualMarks(node), markAll}, {markAll}} {
		asking := countRules(nodePort == 1, inUse[nodePort], &more)
		for _, m := range marks {
			all = append(all, Chain{Name: rootName(m, nodePort == 1), Rules: slices.Concat(markRules(node, m), asking)})
		}
	}
	return append(all, more...)
}

// countRules returns rules that distinguish the numbers and jump to the chain of
// the remaining one. They do not select a backend themselves: for each new rule
// with a lookup, the kernel traverses all backends.
func countRules(nodePort bool, numbers []int, more *[]Chain) (rules []Rule) {
	origin := fixed("frontends are told apart by the number of their backends")
	for len(numbers) > 1 {
		k := bestBit(numbers)
		var with, without []int
		for _, n := range numbers {
			if n>>k&1 != 0 {
				with = append(with, n)
			} else {
				without = append(without, n)
			}
		}
		to := numbersName(nodePort, with)
		if len(with) > 1 {
			*more = append(*more, Chain{Name: to, Rules: countRules(nodePort, with, more)})
		}
		rules = append(rules, Rule{
			[]Stmt{MatchSet{Key: frontendTerms(nodePort), Set: (countSets[ir.Int(nodePort)] + SetID(k)).String()}, Verdict{Goto, to}},
			origin,
		})
		numbers = without
	}
	if len(numbers) > 0 {
		rules = append(rules, Rule{[]Stmt{Verdict{Goto, numbersName(nodePort, numbers)}}, origin})
	}
	return rules
}

// bestBit returns the bit that divides the frontends most evenly, assuming that
// half as many have twice as many backends. Frequent numbers then require fewer
// tests.
func bestBit(numbers []int) (best int) {
	least := math.MaxInt
	for k := range countBits {
		uneven := 0
		for _, n := range numbers {
			uneven += (1 - 2*(n>>k&1)) * (1 << 20 / n)
		}
		if uneven = max(uneven, -uneven); uneven < least {
			best, least = k, uneven
		}
	}
	return best
}

// numbersName returns the name of the chain for frontends with one of several
// numbers of backends, such as lb-2-3, or with a single number.
func numbersName(nodePort bool, numbers []int) string {
	b := []byte(rootName(markNone, nodePort))
	for _, n := range numbers {
		b = strconv.AppendInt(append(b, '-'), int64(n), 10)
	}
	return string(b)
}

// counted returns the number of backends of a chain at the end of the tests.
func counted(chain string) (nodePort bool, n int, ok bool) {
	for _, nodePort := range [2]bool{true, false} {
		if s, ok := strings.CutPrefix(chain, target{nodePort: nodePort}.prefix()); ok {
			n, err := strconv.Atoi(s)
			return nodePort, n, err == nil && bits.Len(uint(n)) <= countBits
		}
	}
	return false, 0, false
}
