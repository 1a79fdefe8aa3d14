package inet

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	netutils "k8s.io/utils/net"
)

// texts are valid and invalid addresses and lengths.
var texts = []string{
	"10.0.0.1", "010.000.00.001", "10.0.0.256", "10.0.0", "10.0.0.1.2", "10.0.0.0x1", "0a.0.0.1", " 10.0.0.1", "10..0.1", "", "0", ":", "::", ":::",
	"fd00::1", "fd00::0001", "fd00::00001", "0fd00::1", "FD00::A", "fe80::1%eth0", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:8::", "::1:2:3:4:5:6:7:8",
	"1:2:3:4:5:6:7", "1::2::3", "12345::", "::g", "::ffff:10.0.0.1", "::ffff:010.0.0.01", "::ffff:10.0.0", "1:2:3:4:5:6:10.0.0.1", "1:2:3:4:5:6:7:10.0.0.1", "64:ff9b::192.0.2.33", "::ffff:ffff:ffff",
}

var lengths = []string{"", "/", "/0", "/00", "/24", "/024", "/0000000024", "/32", "/33", "/95", "/96", "/104", "/128", "/0128", "/129", "/+8", "/-1", "/8 ", "/ 8", "/8/8", "/0x8", "/1_0", "/18446744073709551616"}

// TestLikeKubeProxy compares both parsers with kube-proxy's own, for all texts
// and lengths and for random edits of them.
func TestLikeKubeProxy(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, text := range texts {
		for _, length := range lengths {
			s := text + length
			check(t, s)
			for range 200 {
				check(t, edited(r, s))
			}
		}
	}
}

func edited(r *rand.Rand, s string) string {
	const alphabet = "0123456789afAFxg.:/%+- "
	b := []byte(s)
	for range 1 + r.IntN(3) {
		at, c := r.IntN(len(b)+1), alphabet[r.IntN(len(alphabet))]
		switch r.IntN(3) {
		case 0:
			b = append(b[:at], append([]byte{c}, b[at:]...)...)
		case 1:
			if at < len(b) {
				b = append(b[:at], b[at+1:]...)
			}
		default:
			if at < len(b) {
				b[at] = c
			}
		}
	}
	return string(b)
}

func check(t *testing.T, s string) {
	t.Helper()
	ip := netutils.ParseIPSloppy(s)
	if a, ok := ParseAddr(s); ok != (ip != nil) || ok && a.Unmap().String() != ip.String() {
		t.Errorf("address %q: %v %v, kube-proxy reads %v", s, a, ok, ip)
	}
	_, want, err := netutils.ParseCIDRSloppy(s)
	if p, ok := ParsePrefix(s); ok != (err == nil) || ok && p != prefixOf(want) {
		t.Errorf("CIDR %q: %v %v, kube-proxy reads %v, %v", s, p, ok, want, err)
	}
}

// prefixOf converts a range to the form in kube-proxy's rules.
func prefixOf(n *net.IPNet) netip.Prefix {
	p, err := netip.ParsePrefix(n.String())
	if err != nil { // the mask does not fit the address
		ones, bits := n.Mask.Size()
		a, _ := netip.AddrFromSlice(n.IP)
		return netip.PrefixFrom(a.Unmap(), ones-bits+a.Unmap().BitLen())
	}
	return p
}
