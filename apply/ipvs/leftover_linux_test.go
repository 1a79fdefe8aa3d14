package ipvs

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kernel "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

// inNamespace runs f in a network namespace of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	applytest.RequireRoot(t)
	ns, err := applytest.NewNamespace("ipvs")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func leftovers(t *testing.T) []apply.Leftover {
	t.Helper()
	left, err := Leftovers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func objects(left []apply.Leftover) []string {
	var out []string
	for _, l := range left {
		out = append(out, l.Object)
	}
	return out
}

func TestLeftovers(t *testing.T) {
	inNamespace(t, func() {
		if left := leftovers(t); len(left) > 0 {
			t.Fatalf("leftovers of a new namespace: got %v", objects(left))
		}
		sh(t, `
			ipset create KUBE-CLUSTER-IP hash:ip,port
			ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:443
			ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
			ipset create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
			ipset create KUBE-SRC-XYZ hash:ip
			ipset create mine hash:ip`)
		// Of any type, as not all kernels have dummy devices.
		link := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: ir.IPVSDevice}}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
		sh(t, "ip addr add 10.96.0.1/32 dev kube-ipvs0; ip addr add 10.96.0.10/32 dev kube-ipvs0")

		left := leftovers(t)
		want := []string{"device kube-ipvs0 with 2 addresses", "ipset KUBE-CLUSTER-IP and 2 more"}
		if d := cmp.Diff(want, objects(left)); d != "" {
			t.Errorf("leftovers (-want +got):\n%s", d)
		}
		for range 2 { // the second time everything is gone already
			for _, l := range left {
				if err := l.Remove(t.Context()); err != nil {
					t.Errorf("remove %s: %v", l.Object, err)
				}
			}
		}
		if left := leftovers(t); len(left) > 0 {
			t.Errorf("leftovers after all were removed: got %v", objects(left))
		}
		if d := cmp.Diff("KUBE-SRC-XYZ\nmine", sh(t, "ipset list -n | sort")); d != "" {
			t.Errorf("ipsets of others (-want +got):\n%s", d)
		}
	})
}

func TestRemoveSetInUse(t *testing.T) {
	inNamespace(t, func() {
		sh(t, `
			ipset create KUBE-CLUSTER-IP hash:ip,port
			ipset create KUBE-IPVS-IPS hash:ip
			iptables-nft -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j DROP`)
		left := leftovers(t)
		if len(left) != 1 {
			t.Fatalf("leftovers: got %v, want one", objects(left))
		}
		err := left[0].Remove(t.Context())
		if err == nil || !strings.Contains(err.Error(), "KUBE-CLUSTER-IP: iptables rules refer to it") {
			t.Errorf("remove a set in use: got error %v", err)
		}
		if d := cmp.Diff("KUBE-CLUSTER-IP", sh(t, "ipset list -n")); d != "" {
			t.Errorf("sets that stay (-want +got):\n%s", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sh(t, "iptables-nft -F INPUT")
		if err := left[0].Remove(ctx); err == nil {
			t.Error("remove with an ended context: got no error")
		}
		if err := left[0].Remove(t.Context()); err != nil {
			t.Errorf("remove when the rule is gone: %v", err)
		}
	})
}

func TestNodePorts(t *testing.T) {
	inNamespace(t, func() {
		sh(t, `
			ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
			ipset add KUBE-NODE-PORT-TCP 30080
			ipset add KUBE-NODE-PORT-TCP 30081
			ipset create KUBE-6-NODE-PORT-UDP bitmap:port range 0-65535
			ipset add KUBE-6-NODE-PORT-UDP 30053
			ipset create KUBE-NODE-PORT-SCTP-HASH hash:ip,port
			ipset add KUBE-NODE-PORT-SCTP-HASH 192.0.2.1,sctp:30090
			ipset create KUBE-HEALTH-CHECK-NODE-PORT bitmap:port range 0-65535
			ipset add KUBE-HEALTH-CHECK-NODE-PORT 30100`)
		sets, err := knownSets()
		if err != nil {
			t.Fatal(err)
		}
		got, err := nodePorts(sets)
		if err != nil {
			t.Fatal(err)
		}
		want := map[ir.Match]bool{
			{Protocol: ir.TCP, Port: 30080}:  true,
			{Protocol: ir.TCP, Port: 30081}:  true,
			{Protocol: ir.UDP, Port: 30053}:  true,
			{Protocol: ir.SCTP, Port: 30090}: true,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("node ports (-want +got):\n%s", d)
		}
	})
}

func TestOwned(t *testing.T) {
	o := owned{
		bound:     map[netip.Addr]bool{netip.MustParseAddr("10.96.0.1"): true, netip.MustParseAddr("fd00::1"): true},
		local:     map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true},
		nodePorts: map[ir.Match]bool{{Protocol: ir.TCP, Port: 30080}: true},
	}
	tests := []struct {
		name    string
		service kernel.Service
		own     bool
	}{
		{"address of kube-ipvs0", kernel.Service{Address: net.IPv4(10, 96, 0, 1), Protocol: 6, Port: 443}, true},
		{"address of 4 bytes", kernel.Service{Address: net.IP{10, 96, 0, 1}, Protocol: 17, Port: 53}, true},
		{"IPv6", kernel.Service{Address: net.ParseIP("fd00::1"), Protocol: 6, Port: 443}, true},
		{"node port", kernel.Service{Address: net.IPv4(192, 0, 2, 1), Protocol: 6, Port: 30080}, true},
		{"node port of another protocol", kernel.Service{Address: net.IPv4(192, 0, 2, 1), Protocol: 17, Port: 30080}, false},
		{"another port of the node", kernel.Service{Address: net.IPv4(192, 0, 2, 1), Protocol: 6, Port: 80}, false},
		{"node port, address of another device", kernel.Service{Address: net.IPv4(198, 51, 100, 1), Protocol: 6, Port: 30080}, false},
		{"packet mark", kernel.Service{FWMark: 7}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := len(o.of([]*kernel.Service{&tt.service})) == 1; got != tt.own {
				t.Errorf("own: got %v, want %v", got, tt.own)
			}
		})
	}
}
