package redact

import "net/netip"

// ranges are prefixes with a well-known meaning. The stand-in of an address in a
// range is in the same range. In ranges that denote the node, the link or several
// hosts (itself), addresses are not replaced.
var ranges = []struct {
	netip.Prefix
	itself bool
}{
	{netip.MustParsePrefix("0.0.0.0/8"), true},
	{netip.MustParsePrefix("10.0.0.0/8"), false},
	{netip.MustParsePrefix("100.64.0.0/10"), false},
	{netip.MustParsePrefix("127.0.0.0/8"), true},
	{netip.MustParsePrefix("169.254.0.0/16"), true},
	{netip.MustParsePrefix("172.16.0.0/12"), false},
	{netip.MustParsePrefix("192.168.0.0/16"), false},
	{netip.MustParsePrefix("224.0.0.0/3"), true},
	{netip.MustParsePrefix("::/128"), true},
	{netip.MustParsePrefix("::1/128"), true},
	{netip.MustParsePrefix("2000::/3"), false},
	{netip.MustParsePrefix("fc00::/8"), false},
	{netip.MustParsePrefix("fd00::/8"), false},
	{netip.MustParsePrefix("fe80::/10"), true},
	{netip.MustParsePrefix("ff00::/8"), true},
}

// addresses is a one-to-one mapping of the addresses of a family. The stand-ins
// of two addresses share as many leading bits as the originals, and the stand-ins
// of added addresses have the same order.
type addresses struct{ root branch }

// branch is a node of the tree of address bits.
type branch struct {
	to     [2]*branch // the added continuations
	stay   bool       // the next bit is kept, because it leads to one of the ranges
	itself bool       // all following bits are kept
}

func newAddresses(is6 bool) *addresses {
	a := new(addresses)
	for _, r := range ranges {
		if r.Addr().Is6() == is6 {
			a.walk(r.Prefix, func(b *branch) { b.stay = true }).itself = r.itself
		}
	}
	return a
}

// add adds a range or an address of the input.
func (a *addresses) add(p netip.Prefix) { a.walk(p, func(*branch) {}) }

// walk follows the bits of a prefix, creates missing branches, and calls pass for
// each branch on the way. It returns the last one.
func (a *addresses) walk(p netip.Prefix, pass func(*branch)) *branch {
	b := &a.root
	bytes := p.Addr().AsSlice()
	for i := range p.Bits() {
		pass(b)
		next := &b.to[bit(bytes, i)]
		if *next == nil {
			*next = new(branch)
		}
		b = *next
	}
	return b
}

// of returns the stand-in of an address, even if it was not added.
func (a *addresses) of(addr netip.Addr) netip.Addr {
	bytes := addr.AsSlice()
	b := &a.root
	for i := range addr.BitLen() {
		if b == nil || b.itself {
			break
		}
		is := bit(bytes, i)
		// A bit that is equal in all added addresses becomes 0, because its value
		// would reveal something.
		if !b.stay && b.to[0] == nil && b.to[1] != nil {
			bytes[i/8] ^= 0x80 >> (i % 8)
		}
		b = b.to[is]
	}
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

func bit(bytes []byte, i int) byte { return bytes[i/8] >> (7 - i%8) & 1 }
