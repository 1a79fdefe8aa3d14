package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// treeThreshold is the maximum number of entries of a dispatch chain without
// chains below it. The decision depends only on the present number of entries of
// this chain. Crossing the threshold rewrites only about 64 rules.
const treeThreshold = 64

// A tree is a path-compressed radix tree of chains over the entries' keys, with
// four bits per level. A chain exists for a prefix in two cases only: at least
// two keys share it and differ in the next four bits, or it is a smallest block
// (16 addresses or 16 ports) with at least two keys. The shape therefore depends
// only on the keys, not on their history. A new entry adds a rule to one chain,
// or splits one edge by one chain. No chain has more than 16 rules, except the
// smallest blocks, which have one for each entry.

// tree holds the entries of one dispatch chain.
type tree struct {
	space
	stem string
	root node
	size int // distinct keys
}

// node is one chain of a tree with its entries and children, sorted by key.
type node struct {
	at    key     // of one entry; all below share its prefix
	depth int     // minimum number of shared leading nibbles
	alone []entry // entries that share no further nibble with others, except equal keys; in a smallest block all entries
	below []*node
}

// entry is an entry of a Service in a dispatch chain: a rule, or a backend whose
// hairpin rule is built on demand to save memory.
type entry struct {
	key
	rule    *Rule
	pool    *ir.Pool
	backend *ir.Backend
}

func (e *entry) lowered() Rule {
	if e.backend != nil {
		return hairpin(e.pool, e.backend)
	}
	return *e.rule
}

func (e *entry) service() ir.Name {
	if e.backend != nil {
		return e.pool.Port.Service
	}
	return e.rule.Service()
}

// compare orders entries of equal keys by their Services.
func (e *entry) compare(o *entry) int {
	if c := e.key.compare(o.key); c != 0 {
		return c
	}
	return e.service().Compare(o.service())
}

// newTree returns a tree of entries. It takes ownership of the slice.
func newTree(s space, stem string, entries []entry) *tree {
	slices.SortStableFunc(entries, func(a, b entry) int { return a.compare(&b) })
	t := &tree{space: s, stem: stem}
	for i := range entries {
		if i == 0 || entries[i].key != entries[i-1].key {
			t.size++
		}
	}
	t.plant(&t.root, entries)
	return t
}

// plant builds the subtree of the empty node n from sorted entries.
func (t *tree) plant(n *node, entries []entry) {
	if n.depth >= t.leaf {
		n.alone = slices.Clip(entries)
		return
	}
	for len(entries) > 0 {
		first, end := entries[0].key, 1
		for end < len(entries) && entries[end].nibble(n.depth) == first.nibble(n.depth) {
			end++
		}
		if last := entries[end-1].key; last == first {
			n.alone = append(n.alone, entries[:end]...)
		} else {
			c := &node{at: first, depth: min(shared(first, last), t.leaf)}
			n.below = append(n.below, c)
			t.plant(c, entries[:end])
		}
		entries = entries[end:]
	}
}

func (t *tree) insert(e entry) {
	if t.insertBelow(&t.root, e) {
		t.size++
	}
}

// insertBelow inserts an entry below n. It reports whether the key is new.
func (t *tree) insertBelow(n *node, e entry) bool {
	if n.depth < t.leaf {
		i, found := n.find(e.key)
		if found {
			return t.insertBelow(n.divide(i, e.key), e)
		}
		if lo, hi := n.alike(e.key); lo < hi && n.alone[lo].key != e.key {
			c := &node{at: e.key, depth: min(shared(n.alone[lo].key, e.key), t.leaf), alone: slices.Clone(n.alone[lo:hi])}
			n.alone = slices.Delete(n.alone, lo, hi)
			n.below = slices.Insert(n.below, i, c)
			return t.insertBelow(c, e)
		}
	}
	i, _ := slices.BinarySearchFunc(n.alone, &e, func(o entry, e *entry) int {
		if o.compare(e) <= 0 {
			return -1 // after earlier entries of the same Service
		}
		return 1
	})
	fresh := (i == 0 || n.alone[i-1].key != e.key) && (i == len(n.alone) || n.alone[i].key != e.key)
	n.alone = slices.Insert(n.alone, i, e)
	return fresh
}

// find returns the index of the child of n to which k belongs.
func (n *node) find(k key) (int, bool) {
	return slices.BinarySearchFunc(n.below, k.nibble(n.depth), func(c *node, nibble uint64) int {
		return int(c.at.nibble(n.depth)) - int(nibble)
	})
}

// alike returns the range of n.alone whose entries share one more nibble with k.
func (n *node) alike(k key) (lo, hi int) {
	nibble := k.nibble(n.depth)
	for lo < len(n.alone) && n.alone[lo].nibble(n.depth) < nibble {
		lo++
	}
	for hi = lo; hi < len(n.alone) && n.alone[hi].nibble(n.depth) == nibble; {
		hi++
	}
	return lo, hi
}

// divide returns the i-th child of n for key k. If k does not share its whole
// prefix, divide inserts a new node between them.
func (n *node) divide(i int, k key) *node {
	c := n.below[i]
	if depth := shared(c.at, k); depth < c.depth {
		c = &node{at: c.at, depth: depth, below: []*node{c}}
		n.below[i] = c
	}
	return c
}

// remove removes the entry of a Service under k.
func (t *tree) remove(k key, of ir.Name) {
	if t.removeBelow(&t.root, k, of) {
		t.size--
	}
}

// removeBelow removes an entry below n. It reports whether the key no longer
// exists and existed before.
func (t *tree) removeBelow(n *node, k key, of ir.Name) bool {
	if n.depth < t.leaf {
		if i, found := n.find(k); found {
			gone := t.removeBelow(n.below[i], k, of)
			n.join(i)
			return gone
		}
	}
	with := len(n.alone)
	n.alone = slices.DeleteFunc(n.alone, func(e entry) bool { return e.key == k && e.service() == of })
	return len(n.alone) < with && !slices.ContainsFunc(n.alone, func(e entry) bool { return e.key == k })
}

// join replaces the i-th child of n by its only child or its entries with a
// single key, if possible.
func (n *node) join(i int) {
	c := n.below[i]
	switch {
	case len(c.below) == 1 && len(c.alone) == 0:
		n.below[i] = c.below[0]
	case len(c.below) == 0 && c.alone[0].key == c.alone[len(c.alone)-1].key:
		lo, _ := n.alike(c.at)
		n.alone = slices.Insert(n.alone, lo, c.alone...)
		n.below = slices.Delete(n.below, i, i+1)
	}
}

// flat reports whether the dispatch chain has no chains below it.
func (t *tree) flat() bool { return t.size <= treeThreshold }

// dispatched is the rules of a dispatch chain, and some of the chains below it.
type dispatched struct {
	rules []Rule
	below []Chain
}

// all returns the dispatch chain with all chains below it.
func (t *tree) all() dispatched {
	if t.flat() {
		return dispatched{rules: t.flattened(nil, &t.root)}
	}
	return dispatched{t.rules(&t.root), t.chains(nil, &t.root)}
}

// along returns the dispatch chain with the chains below it on the paths to the
// sorted keys.
func (t *tree) along(keys []key) dispatched {
	d := dispatched{rules: t.rules(&t.root)}
	seen := map[*node]bool{}
	for _, k := range keys {
		for n := &t.root; n.depth < t.leaf; {
			i, found := n.find(k)
			if !found || shared(n.below[i].at, k) < n.below[i].depth {
				break
			}
			if n = n.below[i]; !seen[n] {
				seen[n] = true
				d.below = append(d.below, Chain{t.name(n), t.rules(n)})
			}
		}
	}
	return d
}

func (t *tree) name(n *node) string { return t.stem + t.label(n.at, n.depth) }

// chains appends the chains below n.
func (t *tree) chains(chains []Chain, n *node) []Chain {
	for _, c := range n.below {
		chains = t.chains(append(chains, Chain{t.name(c), t.rules(c)}), c)
	}
	return chains
}

// rules returns the rules of n's chain.
func (t *tree) rules(n *node) []Rule {
	rules := make([]Rule, 0, len(n.alone)+len(n.below))
	n.each(func(entries []entry) { rules = t.lowered(rules, entries) }, func(c *node) {
		r := t.prefix(c.at, c.depth)
		r.Target, r.Chain = Jump, t.name(c)
		rules = append(rules, r)
	})
	return rules
}

// hidden returns the number of rules in the chains below n's.
func (t *tree) hidden(n *node) int {
	count := 0
	for _, c := range n.below {
		count += len(t.rules(c)) + t.hidden(c)
	}
	return count
}

// flattened appends the rules of all entries from n on.
func (t *tree) flattened(rules []Rule, n *node) []Rule {
	n.each(func(entries []entry) { rules = t.lowered(rules, entries) }, func(c *node) { rules = t.flattened(rules, c) })
	return rules
}

// each visits the entries and children of n in order of the keys.
func (n *node) each(alone func([]entry), below func(*node)) {
	done := 0
	for _, c := range n.below {
		lo, _ := n.alike(c.at)
		alone(n.alone[done:lo])
		below(c)
		done = lo
	}
	alone(n.alone[done:])
}

// lowered appends the rules of entries. Of several backends with one address only
// one rule is appended.
func (t *tree) lowered(rules []Rule, entries []entry) []Rule {
	for i := range entries {
		if i == 0 || entries[i].backend == nil || entries[i].key != entries[i-1].key {
			rules = append(rules, entries[i].lowered())
		}
	}
	return rules
}
