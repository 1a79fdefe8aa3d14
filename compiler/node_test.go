package compiler

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// netipValues makes cmp compare addresses and prefixes by value.
var netipValues = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})}

var noOrigins = cmp.Options{netipValues, cmpopts.IgnoreTypes(ir.Origin{})}

// nodesOf compiles an empty snapshot with additional objects for node1.
func nodesOf(t *testing.T, cfg *config.Config, facts Facts, objects ...object) (v4, v6 ir.Node, diags []string) {
	t.Helper()
	programs, d := Compile(cfg, snapshotOf(objects...), facts)
	for _, p := range ir.Present(programs) {
		for _, err := range p.Validate() {
			t.Errorf("%s: %v", p.Family, err)
		}
	}
	return programs.IPv4.Node, programs.IPv6.Node, texts(d)
}

func prefix(s string, assigned bool) ir.NodePortPrefix {
	return ir.NodePortPrefix{Prefix: netip.MustParsePrefix(s), Assigned: assigned}
}

func gateLocalhost(c *config.Config) {
	c.FeatureGates = map[string]bool{config.GateLocalhost: true}
}

func TestNodePortAddresses(t *testing.T) { // nodePortAddresses (SNAP-73), node ports at localhost (PKT-16)
	all := ir.NodePortAddrs{All: true}
	for _, c := range []struct {
		name     string
		mode     ir.Mode
		entries  []string
		edit     func(*config.Config)
		want4    ir.NodePortAddrs
		want6    ir.NodePortAddrs
		reason   string // IPv4
		diagText []string
	}{
		{name: "not set", mode: ir.ModeIPVS, want4: all, want6: all, reason: "not set: every address"},
		{name: "not set, iptables: IPv4 loopback too", mode: ir.ModeIPTables,
			want4: ir.NodePortAddrs{All: true, Loopback: true}, want6: all, reason: "not set: every address"},
		{name: "iptables without localhostNodePorts", mode: ir.ModeIPTables,
			edit: func(c *config.Config) { c.IPTables.LocalhostNodePorts = new(false) }, want4: all, want6: all, reason: "not set: every address"},
		{name: "not set, userspace: loopback too", mode: ir.ModeUserspace, edit: func(c *config.Config) { c.IPTables.LocalhostNodePorts = new(bool) },
			want4: ir.NodePortAddrs{All: true, Loopback: true}, want6: ir.NodePortAddrs{All: true, Loopback: true}, reason: "not set: every address"},
		{name: "ranges without loopback, userspace", mode: ir.ModeUserspace, entries: []string{"192.0.2.0/24"},
			want4: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("192.0.2.0/24", true)}},
			want6: ir.NodePortAddrs{All: true, Loopback: true}},
		{name: "primary", mode: ir.ModeNFTables, entries: []string{"primary"},
			want4: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("192.0.2.11/32", false)}},
			want6: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("2001:db8::11/128", false)}}},
		{name: "ranges of one family leave the other open", mode: ir.ModeIPTables, entries: []string{"198.51.100.0/24", "192.0.2.0/24", "192.0.2.0/24"},
			want4: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("192.0.2.0/24", true), prefix("198.51.100.0/24", true)}}, want6: all},
		{name: "ranges of the other family leave this one open", mode: ir.ModeNFTables, entries: []string{"2001:db8::/64"},
			want4: all, want6: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("2001:db8::/64", true)}},
			reason: "names no IPv4 range: every address"},
		{name: "a zero range is all", mode: ir.ModeNFTables, entries: []string{"192.0.2.0/24", "0.0.0.0/0"}, want4: all, want6: all},
		{name: "all alone", mode: ir.ModeNFTables, entries: []string{"all"}, want4: all, want6: all},
		{name: "all is all", mode: ir.ModeNFTables, entries: []string{"192.0.2.0/24", "all"}, want4: all, want6: all},
		{name: "ranges that hold loopback, iptables", mode: ir.ModeIPTables, entries: []string{"127.0.0.0/8", "192.0.2.0/24"},
			want4: ir.NodePortAddrs{Loopback: true, Prefixes: []ir.NodePortPrefix{prefix("127.0.0.0/8", true), prefix("192.0.2.0/24", true)}}, want6: all},
		{name: "ranges that hold loopback, nftables", mode: ir.ModeNFTables, entries: []string{"127.0.0.1/32"},
			want4: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("127.0.0.1/32", true)}}, want6: all,
			diagText: []string{"warning: config: nodePortAddresses[0]: node ports do not answer at 127.0.0.1 in mode nftables while feature gate KubeProxyNFTablesLocalhostNodePorts is off"}},
		{name: "KEP-6032 localhost, nftables", mode: ir.ModeNFTables, entries: []string{"primary", "localhost"}, edit: gateLocalhost,
			want4: ir.NodePortAddrs{Proxied: true, Rejected: true, Prefixes: []ir.NodePortPrefix{prefix("127.0.0.0/8", true), prefix("192.0.2.11/32", false)}},
			want6: ir.NodePortAddrs{Proxied: true, Rejected: true, Prefixes: []ir.NodePortPrefix{prefix("::1/128", true), prefix("2001:db8::11/128", false)}}},
		{name: "KEP-6032 all, and localhost of one family", mode: ir.ModeNFTables, entries: []string{"0.0.0.0/0", "127.0.0.1/32", "::/0"}, edit: gateLocalhost,
			want4: ir.NodePortAddrs{All: true, Proxied: true, Rejected: true}, want6: ir.NodePortAddrs{All: true, Rejected: true}},
		{name: "KEP-6032 other loopback addresses name localhost too", mode: ir.ModeNFTables, entries: []string{"127.5.0.0/16", "::1/127"}, edit: gateLocalhost,
			want4: ir.NodePortAddrs{Proxied: true, Rejected: true, Prefixes: []ir.NodePortPrefix{prefix("127.5.0.0/16", true)}},
			want6: ir.NodePortAddrs{Rejected: true, Prefixes: []ir.NodePortPrefix{prefix("::/127", true)}}},
		{name: "KEP-6032 all is not localhost", mode: ir.ModeNFTables, entries: []string{"all", "64.0.0.0/2"}, edit: gateLocalhost,
			want4: ir.NodePortAddrs{All: true, Rejected: true}, want6: ir.NodePortAddrs{All: true, Rejected: true}},
		{name: "KEP-6032 the gate is nftables' alone", mode: ir.ModeIPVS, entries: []string{"localhost", "::1/128"}, edit: gateLocalhost,
			want4: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("127.0.0.0/8", true)}},
			want6: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("::1/128", true)}},
			diagText: []string{"warning: config: nodePortAddresses[0]: node ports do not answer at 127.0.0.1 in mode ipvs",
				"warning: config: nodePortAddresses[1]: node ports do not answer at ::1 in mode ipvs"}},
		{name: "localhost turned off, iptables", mode: ir.ModeIPTables, entries: []string{"localhost"},
			edit:     func(c *config.Config) { c.IPTables.LocalhostNodePorts = new(false) },
			want4:    ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("127.0.0.0/8", true)}},
			want6:    ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("::1/128", true)}},
			diagText: []string{"warning: config: nodePortAddresses[0]: node ports do not answer at 127.0.0.1 while iptables.localhostNodePorts is false"}},
		{name: "localhost with primary", mode: ir.ModeIPTables, entries: []string{"primary", "localhost"},
			want4: ir.NodePortAddrs{Loopback: true, Prefixes: []ir.NodePortPrefix{prefix("127.0.0.0/8", true), prefix("192.0.2.11/32", false)}},
			want6: ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{prefix("::1/128", true), prefix("2001:db8::11/128", false)}}},
		{name: "WIN-7 kernelspace does not read it", mode: ir.ModeKernelspace, entries: []string{"192.0.2.0/24"}, want4: all, want6: all,
			reason:   "mode kernelspace serves every address",
			diagText: []string{"warning: config: nodePortAddresses: has no effect in mode kernelspace"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newConfig(c.mode)
			cfg.NodePortAddresses = c.entries
			if c.edit != nil {
				c.edit(cfg)
			}
			v4, v6, diags := nodesOf(t, cfg, Facts{NodeName: "node1"})
			if d := cmp.Diff([]ir.NodePortAddrs{c.want4, c.want6}, []ir.NodePortAddrs{v4.NodePorts, v6.NodePorts}, noOrigins); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if v4.NodePorts.Origin.Reason != c.reason {
				t.Errorf("reason: got %q, want %q", v4.NodePorts.Origin.Reason, c.reason)
			}
			if d := cmp.Diff(c.diagText, diags); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

func TestDetector(t *testing.T) { // detection of pods (DET-1 to DET-5)
	pods := object(func(s *snapshot.Snapshot) {
		n := *s.Node("node1")
		n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:10:1::/48")}
		s.SetNode(&n)
	})
	cidr := func(s, object, field string) ir.Detector {
		return ir.Detector{Mode: ir.DetectCIDR, Prefix: netip.MustParsePrefix(s), Origin: ir.Origin{Object: object, Field: field}}
	}
	for _, c := range []struct {
		name         string
		edit         func(*config.Config)
		objects      []object
		want4, want6 ir.Detector
		diags        []string
	}{
		{"ClusterCIDR", func(*config.Config) {}, nil,
			cidr("10.0.0.0/12", "config", "clusterCIDR"), cidr("fd00:10::/32", "config", "clusterCIDR"), nil},
		{"ClusterCIDR of one family", func(c *config.Config) { c.ClusterCIDR = "10.0.0.0/12" }, nil,
			cidr("10.0.0.0/12", "config", "clusterCIDR"),
			ir.Detector{Origin: ir.Origin{Object: "config", Field: "clusterCIDR", Reason: "no IPv6 range"}},
			[]string{"warning: config: clusterCIDR: names no IPv6 range: local pods are not detected in IPv6"}},
		{"NodeCIDR", func(c *config.Config) { c.DetectLocalMode = config.DetectNodeCIDR }, []object{pods},
			cidr("10.1.0.0/16", "Node node1", "spec.podCIDRs"), cidr("fd00:10:1::/48", "Node node1", "spec.podCIDRs"), nil},
		{"NodeCIDR without one", func(c *config.Config) { c.DetectLocalMode = config.DetectNodeCIDR }, nil,
			ir.Detector{Origin: ir.Origin{Object: "Node node1", Field: "spec.podCIDRs", Reason: "no IPv4 range"}},
			ir.Detector{Origin: ir.Origin{Object: "Node node1", Field: "spec.podCIDRs", Reason: "no IPv6 range"}},
			[]string{"warning: Node node1: spec.podCIDRs: names no IPv4 range: local pods are not detected in IPv4",
				"warning: Node node1: spec.podCIDRs: names no IPv6 range: local pods are not detected in IPv6"}},
		{"BridgeInterface", func(c *config.Config) {
			c.DetectLocalMode, c.DetectLocal.BridgeInterface = config.DetectBridgeInterface, "cni0"
		}, nil,
			ir.Detector{Mode: ir.DetectInterface, Interface: "cni0", Origin: ir.Origin{Object: "config", Field: "detectLocal.bridgeInterface"}},
			ir.Detector{Mode: ir.DetectInterface, Interface: "cni0", Origin: ir.Origin{Object: "config", Field: "detectLocal.bridgeInterface"}}, nil},
		{"InterfaceNamePrefix", func(c *config.Config) {
			c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = config.DetectInterfaceNamePrefix, "veth"
		}, nil,
			ir.Detector{Mode: ir.DetectPrefix, Interface: "veth", Origin: ir.Origin{Object: "config", Field: "detectLocal.interfaceNamePrefix"}},
			ir.Detector{Mode: ir.DetectPrefix, Interface: "veth", Origin: ir.Origin{Object: "config", Field: "detectLocal.interfaceNamePrefix"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newConfig(ir.ModeNFTables)
			c.edit(cfg)
			v4, v6, diags := nodesOf(t, cfg, Facts{NodeName: "node1"}, c.objects...)
			if d := cmp.Diff([]ir.Detector{c.want4, c.want6}, []ir.Detector{v4.Detector, v6.Detector}, netipValues); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.diags, diags); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

func TestNodeAddresses(t *testing.T) { // the node's name (SNAP-70) and address (SNAP-71)
	mixed := object(func(s *snapshot.Snapshot) {
		s.SetNode(&snapshot.Node{Name: "node1", Addresses: []snapshot.NodeAddress{
			{Type: "Hostname", Address: "node1"}, {Type: "ExternalIP", Address: "203.0.113.9"},
			{Type: "InternalIP", Address: "192.0.2.12"}, {Type: "InternalIP", Address: "192.0.2.11"}, {Type: "ExternalIP", Address: "2001:db8::9"}}})
	})
	eth0 := Interface{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24"), netip.MustParsePrefix("fe80::1/64")}}
	lo := Interface{Name: "lo", Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")}}
	dummy := Interface{Name: "kube-ipvs0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.96.0.10/32")}}
	for _, c := range []struct {
		name   string
		bind   string
		facts  Facts
		ip     [2]string
		addrs4 []string
		addrs6 []string
	}{
		{"InternalIP before ExternalIP, in order", "0.0.0.0", Facts{NodeName: "node1"}, [2]string{"192.0.2.12", "2001:db8::9"},
			[]string{"192.0.2.11", "192.0.2.12", "203.0.113.9"}, []string{"2001:db8::9"}},
		{"bindAddress wins in its family", "192.0.2.99", Facts{NodeName: "node1"}, [2]string{"192.0.2.99", "2001:db8::9"},
			[]string{"192.0.2.11", "192.0.2.12", "192.0.2.99", "203.0.113.9"}, []string{"2001:db8::9"}},
		{"interfaces, where known", "::", Facts{NodeName: "node1", Interfaces: []Interface{lo, dummy, eth0}}, [2]string{"192.0.2.12", "2001:db8::9"},
			[]string{"192.0.2.11"}, []string{"fe80::1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newConfig(ir.ModeIPVS)
			cfg.BindAddress = c.bind
			v4, v6, _ := nodesOf(t, cfg, c.facts, mixed)
			if got := [2]string{v4.IP.String(), v6.IP.String()}; got != c.ip {
				t.Errorf("ip: got %v, want %v", got, c.ip)
			}
			for i, n := range []ir.Node{v4, v6} {
				var got []string
				for _, a := range n.Addrs {
					got = append(got, a.String())
				}
				if d := cmp.Diff([][]string{c.addrs4, c.addrs6}[i], got); d != "" {
					t.Errorf("%s (-want +got):\n%s", ir.Families()[i], d)
				}
			}
		})
	}
}

func TestUnknownNode(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"", "warning: config: hostnameOverride: the node's name is unknown: no endpoint is treated as local (set --hostname-override to the name of the node)"},
		{"node9", "warning: Node node9: not in the snapshot, which has node1, node2: its addresses, zone and pod ranges are unknown " +
			"(add the Node object, or set --hostname-override to another node)"},
	} {
		v4, _, diags := nodesOf(t, newConfig(ir.ModeNFTables), Facts{NodeName: c.name})
		if d := cmp.Diff([]string{c.want}, diags); d != "" {
			t.Errorf("diagnostics (-want +got):\n%s", d)
		}
		if v4.IP.IsValid() || v4.NodePorts.All || len(v4.NodePorts.Prefixes) > 0 {
			t.Errorf("got address %s and node ports %+v, want none: primary names no address", v4.IP, v4.NodePorts)
		}
	}
}

// A Node that could not be decoded counts as present: the decoding error is the
// only finding.
func TestBrokenNode(t *testing.T) {
	snap := snapshotOf()
	const node = "{apiVersion: v1, kind: Node, metadata: {name: node9}, spec: {podCIDRs: 7}}"
	errs := manifest.Decode(snap, "node.yaml", []byte(node))
	if !errs.HasErrors() {
		t.Fatalf("%s: %v, want an error", node, errs)
	}
	if _, diags := Compile(newConfig(ir.ModeNFTables), snap, Facts{NodeName: "node9"}); len(diags) > 0 {
		t.Errorf("a second finding: %v", texts(diags))
	}
}

// Each mode uses its own settings only.
func TestModeSettings(t *testing.T) {
	edit := func(c *config.Config) {
		c.Conntrack.TCPBeLiberal = false
		c.IPTables.MasqueradeBit, c.NFTables.MasqueradeBit = new(int32(5)), new(int32(6))
		c.IPVS.Scheduler, c.IPVS.StrictARP = "mh", true
		c.IPVS.ExcludeCIDRs = []string{"198.51.100.0/24", "2001:db8:9::/48", "192.0.2.0/24"}
		c.IPVS.TCPTimeout.Duration = time.Minute
		c.Winkernel = config.Winkernel{NetworkName: "net", SourceVip: "10.1.0.9", EnableDSR: true, RootHnsEndpointName: "cbr0", ForwardHealthCheckVip: true}
		c.HealthzBindAddress = "0.0.0.0:7777"
		c.PortRange = "40000-50000"
		c.BindAddress = "192.0.2.11"
	}
	for _, c := range []struct {
		mode    ir.Mode
		zone    string
		v4      ir.Node // only the fields below
		v6Bind  string
		v6Count int // excluded ranges
	}{
		{mode: ir.ModeIPTables, v4: ir.Node{MasqueradeBit: 5, DropInvalid: true}},
		{mode: ir.ModeNFTables, v4: ir.Node{MasqueradeBit: 6}},
		{mode: ir.ModeIPVS, v4: ir.Node{MasqueradeBit: 5, IPVS: &ir.IPVS{Scheduler: "mh", StrictARP: true, TCPTimeout: time.Minute,
			ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24")}}}},
		{mode: ir.ModeKernelspace, v4: ir.Node{MasqueradeBit: 5, HNS: &ir.HNS{NetworkName: "net", NetworkType: "L2Bridge",
			SourceVIP: netip.MustParseAddr("10.1.0.9"), EnableDSR: true, RootEndpoint: "cbr0", ForwardHealthCheckVIP: true, HealthzPort: 7777}}},
		{mode: ir.ModeUserspace, v4: ir.Node{MasqueradeBit: 5, Userspace: &ir.Userspace{BindAddress: netip.MustParseAddr("192.0.2.11"),
			PortMin: 40000, PortMax: 50000, UDPIdleTimeout: 250 * time.Millisecond}}},
	} {
		t.Run(string(c.mode), func(t *testing.T) {
			cfg := newConfig(c.mode)
			edit(cfg)
			v4, v6, _ := nodesOf(t, cfg, Facts{NodeName: "node1"})
			got := ir.Node{MasqueradeBit: v4.MasqueradeBit, DropInvalid: v4.DropInvalid, IPVS: v4.IPVS, HNS: v4.HNS, Userspace: v4.Userspace}
			if d := cmp.Diff(c.v4, got, netipValues); d != "" {
				t.Errorf("IPv4 (-want +got):\n%s", d)
			}
			if v4.Name != "node1" || v4.Zone != "zone-a" || v4.Mode != c.mode {
				t.Errorf("got %s in %s, mode %s", v4.Name, v4.Zone, v4.Mode)
			}
			switch {
			case c.mode == ir.ModeIPVS && len(v6.IPVS.ExcludeCIDRs) != 1:
				t.Errorf("IPv6: got excluded ranges %v, want the IPv6 one", v6.IPVS.ExcludeCIDRs)
			case c.mode == ir.ModeKernelspace && v6.HNS.SourceVIP.IsValid():
				t.Errorf("IPv6: got source VIP %s, want none", v6.HNS.SourceVIP)
			case c.mode == ir.ModeUserspace && v6.Userspace.BindAddress != netip.IPv6Unspecified():
				t.Errorf("IPv6: got %s, want ::", v6.Userspace.BindAddress)
			}
		})
	}
}

func TestNodeFamilies(t *testing.T) { // the node's address decides the primary family (SNAP-71)
	pods := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for _, c := range []struct {
		name, bind string
		addrs      []snapshot.NodeAddress
		want       config.NodeFamilies
		interfaces []Interface
		unknown    bool
	}{
		{name: "one", addrs: []snapshot.NodeAddress{{Type: "InternalIP", Address: "2001:db8::11"}}, want: config.NodeFamilies{Primary: ir.IPv6, PodCIDRs: pods}},
		{name: "one, of a kernel with both", addrs: []snapshot.NodeAddress{{Type: "InternalIP", Address: "192.0.2.11"}}, interfaces: []Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24"), netip.MustParsePrefix("fe80::1/64")}}},
			want: config.NodeFamilies{Primary: ir.IPv4, PodCIDRs: pods}},
		{name: "one, of a kernel with no other", addrs: []snapshot.NodeAddress{{Type: "InternalIP", Address: "192.0.2.11"}}, interfaces: []Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24")}}},
			want: config.NodeFamilies{Primary: ir.IPv4, OnlyOne: true, PodCIDRs: pods}},
		{name: "internal addresses first", addrs: []snapshot.NodeAddress{{Type: "ExternalIP", Address: "192.0.2.11"}, {Type: "InternalIP", Address: "2001:db8::11"}},
			want: config.NodeFamilies{Primary: ir.IPv6, DualStack: true, PodCIDRs: pods}},
		{name: "bindAddress before them", bind: "192.0.2.11", addrs: []snapshot.NodeAddress{{Type: "InternalIP", Address: "2001:db8::11"}},
			want: config.NodeFamilies{Primary: ir.IPv4, DualStack: true, PodCIDRs: pods}},
		{name: "not known", addrs: []snapshot.NodeAddress{{Type: "Hostname", Address: "node1"}}, unknown: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newConfig(ir.ModeNFTables)
			if c.bind != "" {
				cfg.BindAddress = c.bind
			}
			got, ok := NodeFamilies(cfg, &snapshot.Node{Name: "node1", Addresses: c.addrs, PodCIDRs: pods}, c.interfaces)
			if d := cmp.Diff(c.want, got, netipValues); d != "" || ok == c.unknown {
				t.Errorf("known: %t (-want +got):\n%s", ok, d)
			}
		})
	}
	if got, ok := NodeFamilies(newConfig(ir.ModeNFTables), nil, nil); ok {
		t.Errorf("without a Node: got %+v", got)
	}
}

func TestNetworkOfKernelspace(t *testing.T) {
	const noName = "warning: config: winkernel.networkName: must be the name of the HNS network, got none " +
		"(kube-proxy reads the node's environment variable KUBE_NETWORK instead, which is unknown here)"
	const noVIP = "error: config: winkernel.sourceVip: must be the source IP address of masqueraded packets in overlay networks, got none"
	for _, c := range []struct {
		name      string
		mode      ir.Mode
		winkernel config.Winkernel
		network   string
		want      []string
	}{
		{name: "WIN-2 a name is needed", mode: ir.ModeKernelspace, want: []string{noName}},
		{name: "by kernelspace only", mode: ir.ModeIPTables, network: "Overlay"},
		{name: "L2Bridge", mode: ir.ModeKernelspace, winkernel: config.Winkernel{NetworkName: "net"}, network: "L2Bridge"},
		{name: "WIN-4 an overlay needs sourceVip", mode: ir.ModeKernelspace, winkernel: config.Winkernel{NetworkName: "net"}, network: "Overlay",
			want: []string{noVIP}},
		{name: "WIN-4 and has it", mode: ir.ModeKernelspace, winkernel: config.Winkernel{NetworkName: "net", SourceVip: "10.1.0.9"}, network: "Overlay"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newConfig(c.mode)
			cfg.Winkernel = c.winkernel
			_, diags := Compile(cfg, snapshotOf(), Facts{NodeName: "node1", HNSNetworkType: c.network})
			if d := cmp.Diff(c.want, texts(diags)); d != "" {
				t.Errorf("diagnostics (-want +got):\n%s", d)
			}
		})
	}
}

func TestServiceCIDRs(t *testing.T) { // ServiceCIDRs (SNAP-65)
	cidrs := func(name string, prefixes ...string) object {
		c := &snapshot.ServiceCIDR{Name: name}
		for _, p := range prefixes {
			c.CIDRs = append(c.CIDRs, netip.MustParsePrefix(p))
		}
		return func(s *snapshot.Snapshot) { s.SetServiceCIDR(c) }
	}
	v4, v6, _ := nodesOf(t, newConfig(ir.ModeNFTables), Facts{NodeName: "node1"},
		cidrs("kubernetes", "10.97.0.0/16", "fd00:10:96::/112"), cidrs("more", "10.96.0.0/16", "10.97.0.0/16"))
	want := []ir.CIDR{
		{Prefix: netip.MustParsePrefix("10.96.0.0/16"), Origin: ir.Origin{Object: "ServiceCIDR more", Field: "spec.cidrs[0]"}},
		{Prefix: netip.MustParsePrefix("10.97.0.0/16"), Origin: ir.Origin{Object: "ServiceCIDR kubernetes", Field: "spec.cidrs[0]"}},
	}
	if d := cmp.Diff(want, v4.ServiceCIDRs, netipValues); d != "" {
		t.Errorf("IPv4 (-want +got):\n%s", d)
	}
	if len(v6.ServiceCIDRs) != 1 || v6.ServiceCIDRs[0].Origin.Field != "spec.cidrs[1]" {
		t.Errorf("IPv6: got %v, want fd00:10:96::/112 of spec.cidrs[1]", v6.ServiceCIDRs)
	}
}

// A change of interfaces that does not affect the node requires no new Compiler.
func TestMoves(t *testing.T) {
	interfaces := func(addrs ...string) Facts {
		f := Facts{NodeName: "node1", Interfaces: []Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24")}}}}
		for _, a := range addrs {
			f.Interfaces = append(f.Interfaces, Interface{Name: "other", Addrs: []netip.Prefix{netip.MustParsePrefix(a)}})
		}
		return f
	}
	c := New(newConfig(ir.ModeNFTables), snapshotOf(), interfaces())
	for _, tc := range []struct {
		name  string
		facts Facts
		want  bool
	}{
		{"nothing", interfaces(), false},
		{"the same address elsewhere", interfaces("192.0.2.11/32"), false},
		{"an address of the proxy's own device", Facts{NodeName: "node1", Interfaces: append(interfaces().Interfaces,
			Interface{Name: ir.IPVSDevice, Addrs: []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32")}})}, false},
		{"another address", interfaces("198.51.100.11/24"), true},
		{"another address of the other family", interfaces("2001:db8::11/64"), true},
		{"none left", Facts{NodeName: "node1", Interfaces: []Interface{}}, true},
	} {
		if got := c.NodeDiffers(tc.facts); got != tc.want {
			t.Errorf("%s: moves: %t, want %t", tc.name, got, tc.want)
		}
	}
}

func TestBare(t *testing.T) {
	c := New(newConfig(ir.ModeNFTables), snapshotOf(newService("a")), Facts{NodeName: "node1"})
	want := c.Programs()
	if len(want.IPv4.Services) == 0 {
		t.Fatal("no Service to leave out")
	}
	for _, p := range ir.Present(want) {
		p.Services = nil
	}
	if diff := cmp.Diff(want, c.WithoutServices(), netipValues); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
