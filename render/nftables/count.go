package nftables

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// How many backends a frontend has is told by elements that lead nowhere, since the
// kernel pays for every one that leads to a chain, each time that one more comes: it
// follows them all. CountIPs+k and CountPorts+k have the frontends in whose number bit k
// is set, and chains of all frontends together ask them, until one number is left of
// those in use: its chain, as lb-3, picks the backend. Among frontends that all have
// equally many nothing is asked.

// countBits is how many bits are told. Frontends with more backends than they hold have
// an element that leads to their chain: a cluster has endpoints for few such.
const countBits = 6

// withCounts adds the declarations of the sets of bits.
func withCounts(sets [setCount]Set) [setCount]Set {
	for k := range SetID(countBits) {
		name := "count-" + strconv.Itoa(1<<k)
		sets[CountIPs+k] = Set{Name: name + "-ips", Key: frontendKey}
		sets[CountPorts+k] = Set{Name: name + "-nodeports", Key: nodePortKey}
	}
	return sets
}

// countSets are the first sets of bits, for addresses and for node ports.
var countSets = [2]SetID{CountIPs, CountPorts}

// verdict is what a map of frontends says of one. In those that all packets are looked up
// in, it leads to a chain only where the common ones do not do.
func (l *lowering) verdict(f *lowerable, id SetID, t target, p *ir.Pool) Verdict {
	v := l.usualVerdict(id, t)
	if v.Kind == 0 {
		return Verdict{Goto, l.chain(t, p)}
	}
	l.chain(t.picks(), p)
	for k := range SetID(countBits) {
		if t.n>>k&1 != 0 {
			l.add(countSets[btoi(t.nodePort)]+k, Element{Key: frontendKeyOf(f.Match), Frontend: f.Frontend, Origin: &f.Origin})
		}
	}
	return v
}

// usualVerdict has the rule that looks a frontend up go on, or return to the one that
// masquerades everything; zero: it needs a chain of its own.
func (l *lowering) usualVerdict(id SetID, t target) (v Verdict) {
	switch {
	case t.affinity != "" || t.maglev || bits.Len(uint(t.n)) > countBits:
	case id == ServicePorts && t.marks == markAll, id == ServiceIPs && t.marks == usualMarks(l.node):
		v.Kind = Continue
	case id == ServiceIPs && t.marks == markAll:
		v.Kind = Return
	}
	return v
}

// usualMarks are what most addresses have: ClusterIPs.
func usualMarks(node *ir.Node) marks {
	if node.Detector.Mode == ir.DetectNone {
		return markNone
	}
	return markNonLocal
}

// rootName names the chain where asking begins.
func rootName(m marks, nodePort bool) string {
	return strings.TrimSuffix(target{marks: m, nodePort: nodePort}.prefix(), "-")
}

// countingChains returns the chains that ask for a number of backends, of those that are
// in use for addresses and for node ports: three where asking begins, then others, whose
// names tell all about them.
func countingChains(node *ir.Node, inUse [2][]int) (all []Chain) {
	var more []Chain
	for nodePort, marks := range [2][]marks{{usualMarks(node), markAll}, {markAll}} {
		asking := questions(nodePort == 1, inUse[nodePort], &more)
		for _, m := range marks {
			all = append(all, Chain{Name: rootName(m, nodePort == 1), Rules: slices.Concat(markRules(node, m), asking)})
		}
	}
	return append(all, more...)
}

// questions tell the numbers apart, and lead to the chain of the one that is left. None
// of them picks a backend itself: the kernel looks through all backends for each rule
// that comes and looks one up.
func questions(nodePort bool, numbers []int, more *[]Chain) (rules []Rule) {
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
			*more = append(*more, Chain{Name: to, Rules: questions(nodePort, with, more)})
		}
		rules = append(rules, Rule{
			[]Stmt{MatchSet{Key: frontendTerms(nodePort), Set: (countSets[btoi(nodePort)] + SetID(k)).String()}, Verdict{Goto, to}},
			origin,
		})
		numbers = without
	}
	if len(numbers) > 0 {
		rules = append(rules, Rule{[]Stmt{Verdict{Goto, numbersName(nodePort, numbers)}}, origin})
	}
	return rules
}

// bestBit returns the bit that divides the frontends most evenly, if half as many have
// twice as many backends: what is frequent is so asked less.
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

// numbersName names the chain for frontends with one of several numbers of backends, as
// lb-2-3, or with one.
func numbersName(nodePort bool, numbers []int) string {
	b := []byte(rootName(markNone, nodePort))
	for _, n := range numbers {
		b = strconv.AppendInt(append(b, '-'), int64(n), 10)
	}
	return string(b)
}

// counted returns the number of backends that a chain is for, if it is one that
// questions lead to.
func counted(chain string) (nodePort bool, n int, ok bool) {
	for _, nodePort := range [2]bool{true, false} {
		if s, ok := strings.CutPrefix(chain, target{nodePort: nodePort}.prefix()); ok {
			n, err := strconv.Atoi(s)
			return nodePort, n, err == nil && bits.Len(uint(n)) <= countBits
		}
	}
	return false, 0, false
}
