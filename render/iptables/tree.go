package iptables

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// treeThreshold is the number of entries up to which a hub is one chain. Each
// hub decides for itself, by its present number of entries alone: crossing the
// threshold rewrites some 64 rules, nothing more.
const treeThreshold = 64

// A tree is a radix tree of chains over the entries' keys, four bits a level
// and path-compressed: a chain exists for a prefix if and only if at least two
// entries share it and differ in the next four bits, or it is one of the
// smallest blocks, 16 addresses or 16 ports, with at least two entries. So the
// shape is a function of the keys alone, whatever came first; a new entry adds
// a rule to one chain, or splits one edge by one chain; and no chain has more
// than 16 rules but the blocks, which have one for each entry.

// key orders entries as the tree has them: by what the tree decides on, from
// the highest bit of hi on; tail tells apart what lies in one block.
type key struct {
	hi, lo uint64
	tail   uint32
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.hi, o.hi), cmp.Compare(k.lo, o.lo), cmp.Compare(k.tail, o.tail))
}

// nibble is the i-th group of four bits.
func (k key) nibble(i int) uint64 {
	if i < 16 {
		return k.hi >> (60 - 4*i) & 15
	}
	return k.lo >> (124 - 4*i) & 15
}

// shared is the number of nibbles at which a and b begin alike.
func shared(a, b key) int {
	if x := a.hi ^ b.hi; x != 0 {
		return bits.LeadingZeros64(x) / 4
	}
	return 16 + bits.LeadingZeros64(a.lo^b.lo)/4
}

// first gives k's first n nibbles, the rest being zero.
func (k key) first(n int) key {
	if n <= 16 {
		return key{hi: k.hi &^ (^uint64(0) >> (4 * n))}
	}
	return key{hi: k.hi, lo: k.lo &^ (^uint64(0) >> (4*n - 64))}
}

// space is what a tree's keys are made of.
type space struct {
	leaf   int                     // length of the smallest blocks, in nibbles
	key    func(*Rule) key         // the key of a rule
	prefix func(k key, n int) Rule // the match on keys that begin like k's first n nibbles
	label  func(k key, n int) string
}

func addrKey(addr netip.Addr, tail uint32) key {
	k := key{tail: tail}
	if addr.Is4() {
		b := addr.As4()
		k.hi = uint64(binary.BigEndian.Uint32(b[:])) << 32
		return k
	}
	b := addr.As16()
	k.hi, k.lo = binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	return k
}

func (k key) prefixOf(f ir.Family, n int) netip.Prefix {
	if f == ir.IPv4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(k.hi>>32))
		return netip.PrefixFrom(netip.AddrFrom4(b), 4*n).Masked()
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], k.hi)
	binary.BigEndian.PutUint64(b[8:], k.lo)
	return netip.PrefixFrom(netip.AddrFrom16(b), 4*n).Masked()
}

// addrLabel names an address prefix: its hexadecimal digits, or, as chain names
// are short, a hash of them.
func addrLabel(k key, n int) string {
	const most = 16
	k = k.first(n)
	var b [17]byte
	binary.BigEndian.PutUint64(b[:8], k.hi)
	binary.BigEndian.PutUint64(b[8:16], k.lo)
	if n > most {
		b[16] = byte(n)
		return hashed("", b[:])
	}
	return hex.EncodeToString(b[:8])[:n]
}

func byDst(f ir.Family) space {
	return space{
		leaf: f.Bits()/4 - 1,
		key: func(r *Rule) key {
			return addrKey(r.Dst.Addr(), uint32(r.Protocol)<<16|uint32(r.Ports.First))
		},
		prefix: func(k key, n int) Rule { return Rule{Dst: k.prefixOf(f, n)} },
		label:  addrLabel,
	}
}

// bySrc is the space of hairpin rules, whose source and destination are one.
func bySrc(f ir.Family) space {
	s := byDst(f)
	s.key = func(r *Rule) key { return addrKey(r.Src.Addr(), 0) }
	s.prefix = func(k key, n int) Rule { return Rule{Src: k.prefixOf(f, n)} }
	return s
}

// byPort is the space of protocols and destination ports.
func byPort() space {
	return space{
		leaf: 5, // two nibbles of protocol, three of the port
		key: func(r *Rule) key {
			return key{hi: uint64(r.Protocol)<<56 | uint64(r.Ports.First)<<40}
		},
		prefix: func(k key, n int) Rule {
			r := Rule{Protocol: ir.Protocol(k.hi >> 56)}
			if n > 2 {
				low := uint16(k.first(n).hi >> 40)
				r.Ports = PortRange{low, low | 0xffff>>(4*(n-2))}
			}
			return r
		},
		label: func(k key, n int) string {
			digits := strconv.FormatUint(k.hi>>40&0xffff|0x10000, 16)[1:]
			return ir.Protocol(k.hi>>56).String() + "-" + digits[:max(n-2, 0)]
		},
	}
}

// tree grows the chains of one hub.
type tree struct {
	space
	stem   string
	keys   []key
	rules  []Rule  // the entries, in order of their keys
	chains []Chain // all but the root
}

// entry is what a hub holds of a Service: a rule, or a backend whose hairpin
// rule, being one of very many, is made where it is needed.
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

// dispatch gives the rules of the hub's own chain that lead to the entries, and
// the chains below it. It sorts entries. Of the backends with one address, one
// is kept.
func dispatch(s space, stem string, entries []entry) ([]Rule, []Chain) {
	slices.SortStableFunc(entries, func(a, b entry) int { return a.compare(b.key) })
	entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.key == b.key && a.backend != nil })

	t := tree{space: s, stem: stem, keys: make([]key, len(entries)), rules: make([]Rule, len(entries))}
	for i := range entries {
		t.keys[i], t.rules[i] = entries[i].key, entries[i].lowered()
	}
	if len(entries) <= treeThreshold {
		return t.rules, nil
	}
	return t.grow(0, len(entries), 0), t.chains
}

// grow gives the rules of the chain that holds the entries from lo to hi, whose
// keys are known to share their first n nibbles.
func (t *tree) grow(lo, hi, n int) []Rule {
	if n >= t.leaf {
		return t.rules[lo:hi:hi]
	}
	var rules []Rule
	for lo < hi {
		first, end := t.keys[lo], lo+1
		for end < hi && t.keys[end].nibble(n) == first.nibble(n) {
			end++
		}
		if end == lo+1 {
			rules = append(rules, t.rules[lo])
		} else {
			depth := min(shared(first, t.keys[end-1]), t.leaf)
			rules = append(rules, t.branch(lo, end, depth))
		}
		lo = end
	}
	return rules
}

// branch grows a chain of its own for the entries from lo to hi, and gives the
// rule that leads there.
func (t *tree) branch(lo, hi, n int) Rule {
	name := t.stem + t.label(t.keys[lo], n)
	at := len(t.chains)
	t.chains = append(t.chains, Chain{Name: name})
	rules := t.grow(lo, hi, n)
	t.chains[at].Rules = rules
	r := t.prefix(t.keys[lo], n)
	r.Target, r.Chain = Jump, name
	return r
}
