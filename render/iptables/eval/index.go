package eval

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
)

// chain is a chain of a Walker: the ordered rules for a packet.
//
// Chains that only dispatch by address or port, such as those of dispatch trees,
// are merged into the chain that jumps to them. Each of their rules also requires
// the matches of the jump. A packet is then compared only with the constants that
// decide, not with the structure of the tree.
type chain struct {
	table, name string
	missing     bool // a rule jumps to it, but it does not exist

	rules []step
	index *lookup // nil if all rules are evaluated
}

// step is a rule and the chain to which it jumps.
type step struct {
	*iptables.Rule
	to *chain // empty if the chain does not exist
}

// lookup finds the rules of a chain that a packet may match, as sorted lists of
// their numbers.
type lookup struct {
	at      map[place][]int32
	ports   map[place][]uint16 // ports of the keys of at, under the same key without a port
	sources *sourceRules       // nil if none
	rest    []int32            // the rules that are evaluated for every packet
}

// sourceRules are the ordered rules of a chain that match only a source. A chain
// has one for each source range of a Service.
type sourceRules struct {
	prefixes []netip.Prefix
	numbers  []int32
	at       map[netip.Prefix][]int32
	lengths  map[int]bool // of the prefixes
}

func (s *sourceRules) add(p netip.Prefix, number int32) {
	s.prefixes, s.numbers = append(s.prefixes, p), append(s.numbers, number)
	s.at[p] = append(s.at[p], number)
	s.lengths[p.Bits()] = true
}

// of returns the sorted numbers of the rules that match a source.
func (s *sourceRules) of(src netip.Addr) (numbers []int32) {
	for length := range s.lengths {
		if p, err := src.Prefix(length); err == nil {
			numbers = append(numbers, s.at[p]...)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// place is the destination that a rule requires. Fields that the rule ignores are
// zero.
type place struct {
	addr     netip.Addr
	local    bool // an address of the node; not together with addr
	protocol ir.Protocol
	port     uint16
}

// longChain is the minimum number of rules of a chain with a lookup.
const longChain = 8

// index returns the reachable chains of a table.
func index(t *iptables.Table) map[string]*chain { return indexed(t, longChain) }

// indexed is index with another value of longChain. With 0, chains are not merged
// and all rules are evaluated.
func indexed(t *iptables.Table, long int) map[string]*chain {
	x := indexer{table: t.Name, long: long, rules: make(map[string][]iptables.Rule, len(t.Chains)), refs: map[string]int{}, made: map[string]*chain{}}
	for _, c := range t.Chains {
		x.rules[c.Name] = c.Rules
	}
	for _, j := range t.Jumps {
		if t.Dormant {
			break // the table is inactive
		}
		x.rules[j.Chain] = append(slices.Clip(x.rules[j.Chain]), j.Rule)
	}
	for _, rules := range x.rules {
		for i := range rules {
			if rules[i].Target == iptables.Jump {
				x.refs[rules[i].Chain]++
			}
		}
	}
	for _, name := range iptables.BuiltInChains() { // the entry points of packets
		x.chain(name)
	}
	return x.made
}

// indexer builds chains.
type indexer struct {
	table string
	long  int
	rules map[string][]iptables.Rule
	refs  map[string]int // number of jumps to each chain
	made  map[string]*chain
	open  []string // chains that are being merged
}

func (x *indexer) chain(name string) *chain {
	if c := x.made[name]; c != nil {
		return c
	}
	c := &chain{table: x.table, name: name}
	x.made[name] = c
	rules, there := x.rules[name]
	c.missing = !there && !iptables.BuiltIn(name)
	x.add(c, rules, nil)
	if x.long > 0 && len(c.rules) >= x.long {
		c.index = newLookup(c.rules)
	}
	return c
}

// add adds the rules of a chain, narrowed by the matches of a jump to it.
func (x *indexer) add(c *chain, rules []iptables.Rule, jump *iptables.Rule) {
	for i := range rules {
		r := &rules[i]
		if jump != nil {
			if r = narrowed(r, jump); r == nil {
				continue
			}
		}
		switch {
		case r.Target == iptables.Jump && r.Raw == "" && x.forwards(r):
			x.open = append(x.open, r.Chain)
			x.add(c, x.rules[r.Chain], r)
			x.open = x.open[:len(x.open)-1]
		case r.Target == iptables.Jump && r.Raw == "":
			c.rules = append(c.rules, step{r, x.chain(r.Chain)})
		default:
			c.rules = append(c.rules, step{Rule: r})
		}
	}
}

// forwards reports whether the rules of a chain can replace a jump to it: the jump
// matches only addresses and ports, is the only one to the chain, and all rules
// of the chain match some of these.
func (x *indexer) forwards(jump *iptables.Rule) bool {
	if x.long == 0 || x.refs[jump.Chain] != 1 || slices.Contains(x.open, jump.Chain) || !narrows(jump) {
		return false
	}
	if !plain(jump) {
		return false
	}
	rules, there := x.rules[jump.Chain]
	if !there {
		return false
	}
	for i := range rules {
		if !narrows(&rules[i]) || rules[i].Target == iptables.Return {
			return false
		}
	}
	return true
}

// plain reports whether a rule matches only addresses, protocol and ports,
// without negation.
func plain(r *iptables.Rule) bool {
	return r.Equal(&iptables.Rule{
		Src: r.Src, Dst: r.Dst, Protocol: r.Protocol, Ports: r.Ports,
		Target: r.Target, Chain: r.Chain, To: r.To, XMark: r.XMark, RandomFully: r.RandomFully, Comment: r.Comment,
	})
}

// narrows reports whether a rule matches an address or a port in a form that
// narrowed supports.
func narrows(r *iptables.Rule) bool {
	return r.Raw == "" && r.Not&(iptables.Src|iptables.Dst) == 0 && (r.Src.IsValid() || r.Dst.IsValid() || r.Ports != (iptables.PortRange{}))
}

// narrowed returns the rule with the matches of both r and jump, or nil if no
// packet matches both.
func narrowed(r, jump *iptables.Rule) *iptables.Rule {
	src, ok := inner(r.Src, jump.Src)
	dst, ok2 := inner(r.Dst, jump.Dst)
	protocol, ports := cmp.Or(r.Protocol, jump.Protocol), r.Ports
	if jump.Ports != (iptables.PortRange{}) {
		if ports == (iptables.PortRange{}) {
			ports = jump.Ports
		}
		ports = iptables.PortRange{First: max(ports.First, jump.Ports.First), Last: min(ports.Last, jump.Ports.Last)}
		if ports.First > ports.Last {
			return nil
		}
	}
	if !ok || !ok2 || jump.Protocol != 0 && protocol != jump.Protocol {
		return nil
	}
	if src == r.Src && dst == r.Dst && protocol == r.Protocol && ports == r.Ports {
		return r
	}
	narrow := *r
	narrow.Src, narrow.Dst, narrow.Protocol, narrow.Ports = src, dst, protocol, ports
	return &narrow
}

// inner returns the intersection of two prefixes; the zero Prefix matches all
// addresses. ok is false if it is empty.
func inner(a, b netip.Prefix) (_ netip.Prefix, ok bool) {
	switch {
	case !b.IsValid():
		return a, true
	case !a.IsValid():
		return b, true
	case !a.Overlaps(b):
		return netip.Prefix{}, false
	case a.Bits() >= b.Bits():
		return a, true
	}
	return b, true
}

func newLookup(rules []step) *lookup {
	l := &lookup{at: map[place][]int32{}, ports: map[place][]uint16{}}
	for i := range rules {
		r := rules[i].Rule
		key, ok := placeOf(r)
		switch {
		case ok:
		case r.Src.IsValid() && !r.Dst.IsValid() && r.Protocol == 0 && plain(r):
			if l.sources == nil {
				l.sources = &sourceRules{at: map[netip.Prefix][]int32{}, lengths: map[int]bool{}}
			}
			l.sources.add(r.Src, int32(i))
			continue
		default:
			l.rest = append(l.rest, int32(i))
			continue
		}
		if key.port != 0 && l.at[key] == nil {
			list := key
			list.port = 0
			l.ports[list] = append(l.ports[list], key.port)
		}
		l.at[key] = append(l.at[key], int32(i))
	}
	return l
}

// placeOf returns the destination that a rule requires, if it is an address, or a
// port at any or the node's own address.
func placeOf(r *iptables.Rule) (p place, ok bool) {
	if r.Protocol != 0 && r.Ports.First != 0 && r.Ports.First == r.Ports.Last {
		p.protocol, p.port = r.Protocol, r.Ports.First
	}
	switch {
	case r.Raw != "":
		return place{}, false
	case r.Dst.IsValid():
		p.addr = r.Dst.Addr()
		return p, r.Dst.IsSingleIP() && r.Not&iptables.Dst == 0
	}
	p.local = r.DstLocal
	return p, p.port != 0
}

// cursor iterates over the rules of a chain that a packet may match, in order.
type cursor struct {
	lists   [6][]int32
	i, n    int // without lists: the next rule and their end
	sources *sourceRules
	passed  int // number of sources that were compared with the packet
	cuts    *sim.Cuts
}

// begin returns a cursor to the rules from index from on. It records the ports
// with which the skipped rules would have compared the packet; next records the
// sources.
func (e *Walker) begin(c *chain, t *Packet, from int) (at cursor) {
	if c == nil {
		return cursor{}
	}
	l := c.index
	if l == nil {
		return cursor{i: from, n: len(c.rules)}
	}
	at.lists[0], at.lists[1] = l.rest, l.at[place{addr: t.Dst}]
	for i, key := range [...]place{{addr: t.Dst}, {}, {local: true}} {
		key.protocol = t.Protocol
		ports := l.ports[key]
		if ports == nil || key.local && !e.own.Has(t.Dst) {
			continue
		}
		if !t.DNAT && !t.Translated {
			t.Cuts.PortsOf(ports)
		}
		key.port = t.Port
		at.lists[2+i] = l.at[key]
	}
	if l.sources != nil {
		at.sources, at.cuts = l.sources, t.Cuts
		at.lists[5] = l.sources.of(t.Src)
	}
	if from > 0 {
		for i, list := range at.lists {
			first, _ := slices.BinarySearch(list, int32(from))
			at.lists[i] = list[first:]
		}
	}
	return at
}

// next returns the number of the next rule, or -1 at the end.
func (c *cursor) next() int {
	if c.i < c.n {
		c.i++
		return c.i - 1
	}
	least := -1
	for i, list := range c.lists {
		if len(list) > 0 && (least < 0 || list[0] < c.lists[least][0]) {
			least = i
		}
	}
	if least < 0 {
		c.pass(math.MaxInt32)
		return -1
	}
	n := c.lists[least][0]
	c.lists[least] = c.lists[least][1:]
	c.pass(n)
	return int(n)
}

// pass records the sources with which the rules before one compared the packet.
func (c *cursor) pass(number int32) {
	if c.sources == nil {
		return
	}
	if n, _ := slices.BinarySearch(c.sources.numbers, number); n > c.passed {
		c.passed = n
		c.cuts.SourcesOf(c.sources.prefixes[:n])
	}
}
