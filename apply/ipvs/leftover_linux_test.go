package ipvs

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

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
	applytest.InNamespace(t, func() {
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
		// An ifb device, since not all kernels have dummy devices.
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
		for range 2 { // the second time everything is already removed
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
	applytest.InNamespace(t, func() {
		sh(t, `
			ipset create KUBE-CLUSTER-IP hash:ip,port
			ipset create KUBE-IPVS-IPS hash:ip
			iptables-nft -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j DROP`)
		left := leftovers(t)
		if len(left) != 1 {
			t.Fatalf("leftovers: got %v, want one", objects(left))
		}
		err := left[0].Remove(t.Context())
		if err == nil || !strings.Contains(err.Error(), "KUBE-CLUSTER-IP: iptables rules use it") {
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
	applytest.InNamespace(t, func() {
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
		n, _, err := dialNode(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer n.close()
		four, err := n.read(t.Context(), ir.IPv4)
		if err != nil {
			t.Fatal(err)
		}
		six, err := n.read(t.Context(), ir.IPv6)
		if err != nil {
			t.Fatal(err)
		}
		local4, local6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		four.local, six.local = map[netip.Addr]bool{local4: true}, map[netip.Addr]bool{local6: true}
		got := map[ir.Match]bool{}
		for _, port := range []uint16{30080, 30081, 30053, 30090, 30100} {
			for _, proto := range []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
				if four.owned(ir.Match{Addr: local4, Protocol: proto, Port: port}) || six.owned(ir.Match{Addr: local6, Protocol: proto, Port: port}) {
					got[ir.Match{Protocol: proto, Port: port}] = true
				}
			}
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
	key := func(text string, proto ir.Protocol) ir.Match {
		ap := netip.MustParseAddrPort(text)
		return ir.Match{Addr: ap.Addr(), Protocol: proto, Port: ap.Port()}
	}
	o := newState()
	o.bound = map[netip.Addr]bool{netip.MustParseAddr("10.96.0.1"): true, netip.MustParseAddr("fd00::1"): true}
	o.local = map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true}
	has := func(k rules.ElementKey) {
		if o.sets[k.Set] == nil {
			o.sets[k.Set] = &set{elements: map[rules.ElementKey]*rules.Element{}}
		}
		o.sets[k.Set].elements[k] = nil
	}
	has(rules.ElementKey{Set: rules.NodePortTCP, Number: 30080})
	has(rules.ElementKey{Set: rules.ClusterIP, Addr: netip.MustParseAddr("10.96.0.7"), Protocol: ir.TCP, Number: 80})
	has(rules.ElementKey{Set: rules.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Protocol: ir.TCP, Number: 81})
	has(rules.ElementKey{Set: rules.HealthCheckNodePort, Number: 30100})
	tests := []struct {
		name string
		key  ir.Match
		own  bool
	}{
		{"address of kube-ipvs0", key("10.96.0.1:443", ir.TCP), true},
		{"IPv6", key("[fd00::1]:443", ir.UDP), true},
		{"in a set, not bound yet", key("10.96.0.7:80", ir.TCP), true},
		{"another port than in the set", key("10.96.0.7:81", ir.TCP), false},
		{"external address on another device", key("192.0.2.1:81", ir.TCP), true},
		{"node port", key("192.0.2.1:30080", ir.TCP), true},
		{"node port of another protocol", key("192.0.2.1:30080", ir.UDP), false},
		{"another port of the node", key("192.0.2.1:80", ir.TCP), false},
		{"health check", key("192.0.2.1:30100", ir.TCP), false},
		{"node port, address of another device", key("198.51.100.1:30080", ir.TCP), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := o.owned(tt.key); got != tt.own {
				t.Errorf("own: got %v, want %v", got, tt.own)
			}
		})
	}
}
