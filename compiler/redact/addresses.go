package redact

import "net/netip"

// ranges are those whose meaning is known to everybody: an address in one stays in it, and
// what lies in one that means the node, the link or many hosts is itself.
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

// addresses map those of a family one to one, such that two share as many first bits as
// their stand-ins do, and those that were added stand in the same order.
type addresses struct{ root branch }

// branch is where addresses may differ in their next bit.
type branch struct {
	to     [2]*branch // those that there are
	stay   bool       // the next bit is itself: it leads to one of the ranges
	itself bool       // and so are all that follow
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

// add adds a range that there is, or an address.
func (a *addresses) add(p netip.Prefix) { a.walk(p, func(*branch) {}) }

// walk follows the bits of a prefix, making what is not there, and calls pass for each
// branch on the way. It returns where it ends.
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

// of returns the stand-in of an address, whether or not it was added.
func (a *addresses) of(addr netip.Addr) netip.Addr {
	bytes := addr.AsSlice()
	b := &a.root
	for i := range addr.BitLen() {
		if b == nil || b.itself {
			break
		}
		is := bit(bytes, i)
		// Where all go the same way that is 0: which one it was tells something.
		if !b.stay && b.to[0] == nil && b.to[1] != nil {
			bytes[i/8] ^= 0x80 >> (i % 8)
		}
		b = b.to[is]
	}
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

func bit(bytes []byte, i int) byte { return bytes[i/8] >> (7 - i%8) & 1 }
