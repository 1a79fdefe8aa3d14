package trace

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/ir"
)

// The kernel is asked about one or two of the destinations that no rule or route distinguishes, and so in time for status,
// however many there are. Each that it discards is found.
func TestDiscardsOfManyEndpoints(t *testing.T) {
	t.Parallel()
	ns := applytest.RequireNamespace(t)
	setup := `set -e; ip link set lo up; ip link add eth0 type veth peer peer0; ip link set peer0 up; ip addr add 192.0.2.11/24 dev eth0; ip link set eth0 up
		sysctl -qw net.ipv4.ip_forward=1; ip route add default via 192.0.2.1; ip route add blackhole 10.0.0.0/8; ip route add 10.244.0.0/16 dev eth0
		ip route add unreachable 10.244.9.7/32; ip rule add to 10.244.10.0/24 lookup 99; ip route add prohibit default table 99`
	if out, err := ns.Run(ns.Command(t.Context(), "sh", "-c", setup)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := &ir.Program{Family: ir.IPv4}
	p.Node.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.11")}
	for i := range 50_000 { // without 10.244.9.0 to 10.244.10.255
		if b := i >> 8; b != 9 && b != 10 {
			p.Services = append(p.Services, ir.Service{Pools: []ir.Pool{{Backends: []ir.Backend{{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(b), byte(i)}), 80)}}}}})
		}
	}
	common := p.Services
	for addr, want := range map[string]string{"10.244.1.1": "", "10.244.9.7": "an unreachable route", "10.244.10.1": "prohibits it", "10.1.0.1": "a blackhole route"} {
		p.Services = append(common[:len(common):len(common)], ir.Service{Pools: []ir.Pool{{Backends: []ir.Backend{{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(addr), 80)}}}}})
		limited, cancel := context.WithTimeout(t.Context(), applytest.ScaledTimeout(5*time.Second)) // half of the daemon's
		defer cancel()
		var found []string
		err := ns.Do(func() (err error) {
			found, err = node.Discards(limited, p, nil)
			return err
		})
		if all := strings.Join(found, "\n"); err != nil || want == "" && all != "" || want != "" && (len(found) != 1 || !strings.Contains(all, "route to "+addr+", endpoint") || !strings.Contains(all, want)) {
			t.Errorf("%s: %v, %q, want %q", addr, err, found, want)
		}
	}
}
