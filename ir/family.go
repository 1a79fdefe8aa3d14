package ir

import (
	"iter"
	"net/netip"
)

// Family is an IP family. The two families of a dual-stack cluster are
// independent: each has its own Program.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families returns both families in output order.
func Families() [2]Family { return [...]Family{IPv4, IPv6} }

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address is IPv6.
// Callers that treat it as IPv4 must Unmap it first.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// Pick returns the value for a family.
func Pick[T any](f Family, v4, v6 T) T {
	if f == IPv6 {
		return v6
	}
	return v4
}

// FamilyNamed returns the family with a name; IPv4 for other texts.
func FamilyNamed(name string) Family {
	if name == IPv6.String() {
		return IPv6
	}
	return IPv4
}

// Other returns the other family.
func (f Family) Other() Family { return Pick(f, IPv6, IPv4) }

// String returns the name that the EndpointSlice field addressType uses.
func (f Family) String() string { return Pick(f, "IPv4", "IPv6") }

// NFT returns the family's name in nft: ip or ip6.
func (f Family) NFT() string { return Pick(f, "ip", "ip6") }

// Has reports whether addr is of the family. IPv4-mapped IPv6 addresses are of
// neither family.
func (f Family) Has(addr netip.Addr) bool {
	if f == IPv6 {
		return addr.Is6() && !addr.Is4In6()
	}
	return addr.Is4()
}

// Bits returns the length of an address of the family in bits.
func (f Family) Bits() int { return Pick(f, 32, 128) }

// Any returns all addresses of the family: 0.0.0.0/0 or ::/0.
func (f Family) Any() netip.Prefix {
	return Pick(f, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
}

// Localhost returns the address of localhost: 127.0.0.1 or ::1.
func (f Family) Localhost() netip.Addr {
	return Pick(f, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
}

// Loopback returns the family's loopback network: 127.0.0.0/8 or ::1/128.
func (f Family) Loopback() netip.Prefix {
	return Pick(f, netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8), netip.PrefixFrom(netip.IPv6Loopback(), 128))
}

// PerFamily is a pair of values, one for each IP family.
type PerFamily[T any] struct{ IPv4, IPv6 T }

// Of returns the value of a family.
func (p PerFamily[T]) Of(f Family) T { return *p.At(f) }

// At returns a pointer to the value of a family.
func (p *PerFamily[T]) At(f Family) *T { return Pick(f, &p.IPv4, &p.IPv6) }

// All yields both values with their families, in the order of Families.
func (p PerFamily[T]) All() iter.Seq2[Family, T] {
	return func(yield func(Family, T) bool) {
		_ = yield(IPv4, p.IPv4) && yield(IPv6, p.IPv6)
	}
}

// Present yields the non-nil pointers of a pair, in the order of Families.
func Present[T any](p PerFamily[*T]) iter.Seq2[Family, *T] {
	return func(yield func(Family, *T) bool) {
		for f, v := range p.All() {
			if v != nil && !yield(f, v) {
				return
			}
		}
	}
}

// Programs are the two Programs of a node. A nil Program leaves its family
// unchanged.
type Programs = PerFamily[*Program]

// NewPrograms returns the given Programs by family.
func NewPrograms(of ...*Program) (programs Programs) {
	for _, p := range of {
		*programs.At(p.Family) = p
	}
	return programs
}

// Changes are the Services that differ between two Programs of a node, by name.
type Changes = PerFamily[[]Change]

// PrefixesOf returns the smallest list of prefixes that covers the addresses
// first to last, in order. Both are of one family.
func PrefixesOf(first, last netip.Addr) (prefixes []netip.Prefix) {
	for first.IsValid() && first.Compare(last) <= 0 {
		best := netip.PrefixFrom(first, first.BitLen())
		for bits := first.BitLen() - 1; bits >= 0; bits-- {
			wider := netip.PrefixFrom(first, bits)
			if wider.Masked().Addr() != first || LastOf(wider).Compare(last) > 0 {
				break
			}
			best = wider
		}
		prefixes = append(prefixes, best)
		first = LastOf(best).Next()
	}
	return prefixes
}

// LastOf returns the last address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
