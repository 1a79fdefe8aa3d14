package nftables

import "net/netip"

func sameAddr(a, b netip.Addr) bool         { return a == b }
func sameAddrPort(a, b netip.AddrPort) bool { return a == b }
func samePrefix(a, b netip.Prefix) bool     { return a == b }

// planOf is a Plan of one family.
func planOf(c *change) *Plan {
	p := &Plan{}
	*p.families.At(c.family) = c
	return p
}
