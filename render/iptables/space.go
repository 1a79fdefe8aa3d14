package iptables

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// key orders the entries of a tree. The tree decides by groups of bits from the
// highest bit of hi on; tail distinguishes entries in one block.
type key struct {
	hi, lo uint64
	tail   uint32
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.hi, o.hi), cmp.Compare(k.lo, o.lo), cmp.Compare(k.tail, o.tail))
}

// nibble returns the i-th group of four bits.
func (k key) nibble(i int) uint64 {
	if i < 16 {
		return k.hi >> (60 - 4*i) & 15
	}
	return k.lo >> (124 - 4*i) & 15
}

// shared returns the number of leading nibbles that a and b share.
func shared(a, b key) int {
	if x := a.hi ^ b.hi; x != 0 {
		return bits.LeadingZeros64(x) / 4
	}
	return 16 + bits.LeadingZeros64(a.lo^b.lo)/4
}

// first returns k's first n nibbles, followed by zeros.
func (k key) first(n int) key {
	if n <= 16 {
		return key{hi: k.hi &^ (^uint64(0) >> (4 * n))}
	}
	return key{hi: k.hi, lo: k.lo &^ (^uint64(0) >> (4*n - 64))}
}

// space defines the keys of a tree.
type space struct {
	leaf   int                     // length of the smallest blocks, in nibbles
	key    func(*Rule) key         // the key of a rule
	prefix func(k key, n int) Rule // the match for keys with k's first n nibbles
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

// addrLabel returns the name of an address prefix: its hexadecimal digits, or a
// hash of them if they exceed the length of chain names.
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

// bySrc returns the space of hairpin rules, whose source and destination are
// equal.
func bySrc(f ir.Family) space {
	s := byDst(f)
	s.key = func(r *Rule) key { return addrKey(r.Src.Addr(), 0) }
	s.prefix = func(k key, n int) Rule { return Rule{Src: k.prefixOf(f, n)} }
	return s
}

// byPort returns the space of protocols and destination ports.
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
