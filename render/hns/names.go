package hns

import (
	"net/netip"
	"strconv"
)

// macPrefix is the prefix of MAC addresses of endpoints on other nodes.
const macPrefix = "02-11"

// MAC returns the MAC address for the IP address of an endpoint: 02-11, followed
// by the four bytes of IPv4, or the last four bytes of IPv6 in reverse order.
func MAC(a netip.Addr) string {
	b := a.As16()
	last := [4]byte{b[12], b[13], b[14], b[15]}
	if a.Is6() {
		last = [4]byte{b[15], b[14], b[13], b[12]}
	}
	const digits = "0123456789abcdef"
	mac := []byte(macPrefix)
	for _, x := range last {
		mac = append(mac, '-', digits[x>>4], digits[x&15])
	}
	return string(mac)
}

// ref returns the reference of load balancers to the endpoint of an address,
// before it has an id.
func ref(a netip.Addr) string { return a.String() }

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
