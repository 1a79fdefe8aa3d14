package config

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Errors of names.
const (
	bridgeName = `detectLocal.bridgeInterface: must have 1-15 characters of a name that "ip link" lists, without @ and what follows, blanks, /, :, quotes, \, !, + and *, got `
	prefixName = `detectLocal.interfaceNamePrefix: must have 1-14 characters of a name that "ip link" lists, without @ and what follows, blanks, /, :, quotes, \, !, + and *, got `
)

// Each rule with a violating value, and the valid values next to it.
func TestValidate(t *testing.T) {
	const vip = `must be IP:port such as "127.0.0.1:10249" or "[::1]:10249", port 1-65535, got `
	tests := []struct{ name, body, want string }{
		{"", "featureGates: {NFTablesProxyMod: true}", `featureGates.NFTablesProxyMod: unknown feature gate (did you mean NFTablesProxyMode?)`},
		{"another component's", "featureGates: {NodeSwapp: true}", `featureGates.NodeSwapp: unknown feature gate (did you mean NodeSwap?)`},
		{"", "featureGates: {MemoryQoS: true}", `info: featureGates.MemoryQoS: has no effect on proxyc`},
		{"", "featureGates: {NodeSwap: false}", `featureGates.NodeSwap: must be true or absent, the gate is locked, got false`},
		{"", "featureGates: {GitRepoVolumeDriver: true}", `featureGates.GitRepoVolumeDriver: must be false or absent, the gate is locked, got true`},
		{"", "featureGates: {Zzz: true}", `featureGates.Zzz: unknown feature gate`},
		{"", "featureGates: {NFTablesProxyMode: false}", `featureGates.NFTablesProxyMode: must be true or absent, the gate is locked, got false`},
		{"locked, as it is", "featureGates: {NFTablesProxyMode: true}", "info: featureGates.NFTablesProxyMode: has no effect on proxyc"},
		{"by stage", "featureGates: {AllAlpha: true, AllBeta: true}", ""},
		{"of an old release", "featureGates: {RunAsGroup: false}", "warning: featureGates.RunAsGroup: has no effect: a gate of an older release"},
		{"off, and always on", "featureGates: {SCTPSupport: false}", "warning: featureGates.SCTPSupport: has no effect: always on since release 1.20"},
		{"without what it needs", "featureGates: {PodLevelResources: false}", "featureGates.InPlacePodLevelResourcesVerticalScaling: is on and requires PodLevelResources, which must be on too\ninfo: featureGates.PodLevelResources: has no effect on proxyc\n" +
			"featureGates.PodLevelResourcesFixDefaulting: is on and requires PodLevelResources, which must be on too\n" +
			"featureGates.PodLevelResourcesFixKubeletQOSClass: is on and requires PodLevelResources, which must be on too"},
		{"", "featureGates: {ServiceTopology: true}", `warning: featureGates.ServiceTopology: has no effect: dropped in release 1.22`},
		{"", "clientConnection: {burst: -1}", `clientConnection.burst: must be 0 or more, got -1`},
		{"", "logging: {format: xml}", `logging.format: must be one of text, json, got "xml"`},
		{"", "logging: {format: json}", ""},
		{"", "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}", `logging.format: must not be json while feature gate LoggingBetaOptions is off`},
		{"", "logging: {format: json}\nfeatureGates: {AllBeta: false}", `logging.format: must not be json while feature gate LoggingBetaOptions is off`},
		{"", "logging: {flushFrequency: -1s}", `logging.flushFrequency: must be more than 0s, got -1s`},
		{"", "logging: {verbosity: 2147483648}", `logging.verbosity: must be 0-2147483647, got 2147483648`},
		{"", "logging: {vmodule: [{filePattern: a}], format: json}", `logging.vmodule: must be empty, because logging.format is json`},
		{"", "logging: {vmodule: [{filePattern: 'a,b'}]}", `logging.vmodule[0].filePattern: must be a file name or pattern without , and =, got "a,b"`},
		{"", "logging: {vmodule: [{filePattern: a, verbosity: 2147483648}]}", `logging.vmodule[0].verbosity: must be 0-2147483647, got 2147483648`},
		{"", "logging: {options: {text: {splitStream: true}}}", `logging.options.text.splitStream: must be false unless feature gate LoggingAlphaOptions is on`},
		{"", "logging: {options: {json: {infoBufferSize: 4Ki}}}", `logging.options.json.infoBufferSize: must be 0 unless feature gate LoggingAlphaOptions is on, got "4Ki"`},
		{"", "logging: {options: {json: {infoBufferSize: 4Ki}}}\nfeatureGates: {AllAlpha: true, AllBeta: true}", ""},
		{"", "logging: {options: {json: {infoBufferSize: lots}}}", `logging.options.json.infoBufferSize: must be a size such as "512" or "4Ki", got "lots"`},
		{"", "hostnameOverride: '  '", `hostnameOverride: must be empty or a name, got "  "`},
		{"", "bindAddress: localhost", `bindAddress: must be an IP address, got "localhost"`},
		{"", "bindAddress: fe80::1%eth0", `bindAddress: must be an IP address, got "fe80::1%eth0"`},
		{"leading zeros", "bindAddress: 010.001.0.00", ""},
		{"", "healthzBindAddress: ':10256'", `healthzBindAddress: ` + vip + `":10256"`},
		{"", "healthzBindAddress: localhost:10256", `healthzBindAddress: ` + vip + `"localhost:10256"`},
		{"", "healthzBindAddress: 10.0.0.1:0", `healthzBindAddress: ` + vip + `"10.0.0.1:0"`},
		{"", "metricsBindAddress: 10.0.0.1:65536", `metricsBindAddress: ` + vip + `"10.0.0.1:65536"`},
		{"", "metricsBindAddress: 10.0.0.1:65535", ""},
		{"", "metricsBindAddress: 'fd00::1:80:'", `metricsBindAddress: ` + vip + `"fd00::1:80:"`},
		{"", "metricsBindAddress: '[fd00::1]:80'", ""},
		{"", "metricsBindAddress: '[fd00::1:80'", `metricsBindAddress: ` + vip + `"[fd00::1:80"`},
		{"", "showHiddenMetricsForVersion: '1.35'", ""},
		{"", "showHiddenMetricsForVersion: '1.x'", `showHiddenMetricsForVersion: must be empty or a minor release such as "1.35", got "1.x"`},
		{"only the mode's section", "mode: nftables\niptables: {syncPeriod: -1s}", ""},
		{"", "mode: nftables\niptables: {masqueradeBit: 32}", `iptables.masqueradeBit: must be 0-31, got 32`},
		{"", "showHiddenMetricsForVersion: '1.36'", ""},
		{"", "mode: iptable", `mode: must be one of iptables, ipvs, nftables, kernelspace, userspace, got "iptable" (did you mean iptables?)`},
		{"", "mode: kernelspace", ""},
		{"", "iptables: {masqueradeBit: 32}", `iptables.masqueradeBit: must be 0-31, got 32`},
		{"in every mode", "mode: nftables\niptables: {masqueradeBit: -1}", `iptables.masqueradeBit: must be 0-31, got -1`},
		{"", "iptables: {masqueradeBit: 31}", ""},
		{"", "iptables: {syncPeriod: -1s}", "iptables.syncPeriod: must be at least minSyncPeriod, which is 1s, got -1s\niptables.syncPeriod: must be more than 0s, got -1s"},
		{"", "iptables: {minSyncPeriod: -1s}", `iptables.minSyncPeriod: must be 0s or more, got -1s`},
		{"", "iptables: {minSyncPeriod: 31s}", `iptables.syncPeriod: must be at least minSyncPeriod, which is 31s, got 30s`},
		{"", "iptables: {minSyncPeriod: 30s}", ""},
		{"only in its mode", "ipvs: {syncPeriod: -1s, tcpTimeout: -1s, excludeCIDRs: [x]}", ""},
		{"", "mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", `ipvs.syncPeriod: must be at least minSyncPeriod, which is 2s, got 1s`},
		{"", "mode: ipvs\nipvs: {tcpTimeout: -1s, tcpFinTimeout: -2s, udpTimeout: -3s}",
			"ipvs.tcpFinTimeout: must be 0s or more, got -2s\nipvs.tcpTimeout: must be 0s or more, got -1s\nipvs.udpTimeout: must be 0s or more, got -3s"},
		{"", "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, 10.0.0.1]}", `ipvs.excludeCIDRs[1]: must be a CIDR such as "10.0.0.0/8", got "10.0.0.1"`},
		{"", "mode: ipvs\nipvs: {scheduler: mine}", `warning: ipvs.scheduler: is none of rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, fo, ovf, mh, got "mine": a kernel without its module rejects all Services`},
		{"", "mode: ipvs\nipvs: {scheduler: 'sh,sh-port'}", ""},
		{"", "mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}", `mode: must not be ipvs while feature gate KubeProxyIPVS is off`},
		{"only in its mode", "nftables: {masqueradeBit: 77, syncPeriod: -1s}", ""},
		{"", "mode: nftables\nnftables: {masqueradeBit: 32}", `nftables.masqueradeBit: must be 0-31, got 32`},
		{"", "mode: nftables\nnftables: {minSyncPeriod: 1m}", `nftables.syncPeriod: must be at least minSyncPeriod, which is 1m0s, got 30s`},
		{"", "detectLocalMode: clusterCIDR", `detectLocalMode: must be one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix, got "clusterCIDR" (did you mean ClusterCIDR?)`},
		{"", "detectLocalMode: BridgeInterface", `detectLocal.bridgeInterface: must name an interface, because detectLocalMode is BridgeInterface`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br0}", ""},
		{"", "detectLocalMode: InterfaceNamePrefix", `detectLocal.interfaceNamePrefix: must be the prefix of interface names, because detectLocalMode is InterfaceNamePrefix`},
		{"", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}", ""},
		{"", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: abcdefghijklmn}", ""},
		{"", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: abcdefghijklmno}", prefixName + `"abcdefghijklmno"`},
		{"", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali*}", prefixName + `"cali*"`},
		{"", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali+}", prefixName + `"cali+"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: enp3s0f0.803}", ""},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: abcdefghijklmno}", ""},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: abcdefghijklmnop}", bridgeName + `"abcdefghijklmnop"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: enp3s0f0.803@enp3s0f0}", bridgeName + `"enp3s0f0.803@enp3s0f0"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: \"cni0\\n-A X\"}", bridgeName + `"cni0\n-A X"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: .}", bridgeName + `"."`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: ..}", bridgeName + `".."`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: a/b}", bridgeName + `"a/b"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 'eth0:1'}", bridgeName + `"eth0:1"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: ' '}", bridgeName + `" "`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: \"a'b\"}", bridgeName + `"a'b"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 'cni+'}", bridgeName + `"cni+"`},
		{"", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 'cni*'}", bridgeName + `"cni*"`},
		{"", "mode: kernelspace\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: vEthernet (Ethernet)}", ""},
		{"", "clusterCIDR: 10.0.0.0", `clusterCIDR: must be a CIDR, or one of each family such as "10.244.0.0/16" or "10.244.0.0/16,fd00:10:244::/56", got "10.0.0.0" in "10.0.0.0"`},
		{"", "clusterCIDR: 10.0.0.0/8,11.0.0.0/8", `clusterCIDR: must be a CIDR, or one of each family such as "10.244.0.0/16" or "10.244.0.0/16,fd00:10:244::/56", got "10.0.0.0/8,11.0.0.0/8"`},
		{"", "clusterCIDR: '10.0.0.0/8,fd00::/8,fd01::/16'", `clusterCIDR: must be a CIDR, or one of each family such as "10.244.0.0/16" or "10.244.0.0/16,fd00:10:244::/56", got "10.0.0.0/8,fd00::/8,fd01::/16"`},
		{"", "clusterCIDR: 'fd00::/8,10.0.0.0/8'", ""},
		{"only in mode ClusterCIDR", "clusterCIDR: nonsense\ndetectLocalMode: NodeCIDR", ""},
		{"", "nodePortAddresses: [10.0.0.1]", `nodePortAddresses[0]: must be a CIDR such as "192.168.0.0/16", or one of primary, localhost, all, got "10.0.0.1"`},
		{"", "nodePortAddresses: [primary, localhost, all, 10.0.0.0/8, '::/0', 010.0.0.0/8]", ""},
		{"", "nodePortAddresses: [primary, 10.0.0.0/8, primary]", `nodePortAddresses[2]: must occur only once, got "primary" again`},
		{"", "nodePortAddresses: [10.0.0.0/8, 10.0.0.0/8]", ""},
		{"", "oomScoreAdj: 1001", `oomScoreAdj: must be -1000 to 1000, got 1001`},
		{"", "oomScoreAdj: -1000", ""},
		{"", "conntrack: {maxPerCore: -1, min: -2, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -2s, udpTimeout: -3s, udpStreamTimeout: -4s}",
			"conntrack.maxPerCore: must be 0 or more, got -1\nconntrack.min: must be 0 or more, got -2\nconntrack.tcpCloseWaitTimeout: must be 0s or more, got -2s\n" +
				"conntrack.tcpEstablishedTimeout: must be 0s or more, got -1s\nconntrack.udpStreamTimeout: must be 0s or more, got -4s\nconntrack.udpTimeout: must be 0s or more, got -3s"},
		{"", "configSyncPeriod: -1s", `configSyncPeriod: must be more than 0s, got -1s`},
		{"only in its mode", "portRange: a", ""},
		{"", "mode: userspace\nportRange: 5-4", `portRange: must be a range of ports such as "30000-32000" or "30000+2000", a port, or empty, got "5-4"`},
		{"", "mode: userspace\nportRange: a", `portRange: must be a range of ports such as "30000-32000" or "30000+2000", a port, or empty, got "a"`},
		{"", "mode: userspace\nportRange: 1-65536", `portRange: must be a range of ports such as "30000-32000" or "30000+2000", a port, or empty, got "1-65536"`},
		{"", "mode: userspace\nudpIdleTimeout: -1s", `udpIdleTimeout: must be more than 0s, got -1s`},
		{"", "udpIdleTimeout: -1s", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+tt.body, func(t *testing.T) {
			c, l := Parse("c.yaml", []byte(header+tt.body), true)
			if len(l) > 0 {
				t.Fatal(l)
			}
			SetDefaults(c)
			Complete(c)
			got := ""
			for _, d := range Validate(c) {
				if got != "" {
					got += "\n"
				}
				if d.Severity != diag.Error {
					got += d.Severity.String() + ": "
				}
				got += d.String()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	tests := []struct {
		name, body string
		want       []setting
	}{
		{"IPv6", "bindAddress: '::'", []setting{
			{"healthzBindAddress", `"[::]:10256"`, "default from bindAddress, which is not IPv4"},
			{"metricsBindAddress", `"[::1]:10249"`, "default from bindAddress, which is not IPv4"},
		}},
		{"IPv4 in IPv6", "bindAddress: '::ffff:10.0.0.1'", []setting{{"healthzBindAddress", `"0.0.0.0:10256"`, "default"}}},
		{"bare addresses", "healthzBindAddress: 10.0.0.1\nmetricsBindAddress: fd00::1", []setting{
			{"healthzBindAddress", `"10.0.0.1:10256"`, "c.yaml:3"},
			{"metricsBindAddress", `"[fd00::1]:10249"`, "c.yaml:4"},
		}},
		{"zeros that count as not set", "iptables: {minSyncPeriod: 0s}\nclientConnection: {qps: 0, burst: 0}\nconfigSyncPeriod: 0s", []setting{
			{"iptables.minSyncPeriod", `"1s"`, "default, as the value at c.yaml:3 is treated as not set"},
			{"clientConnection.qps", `5`, "default, as the value at c.yaml:4 is treated as not set"},
			{"clientConnection.burst", `10`, "default, as the value at c.yaml:4 is treated as not set"},
			{"configSyncPeriod", `"15m0s"`, "default, as the value at c.yaml:5 is treated as not set"},
		}},
		{"zeros that count", "conntrack: {tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, maxPerCore: 0, min: 0}\niptables: {masqueradeBit: 0, localhostNodePorts: false}\noomScoreAdj: 0", []setting{
			{"conntrack.tcpEstablishedTimeout", `"0s"`, "c.yaml:3"}, {"conntrack.tcpCloseWaitTimeout", `"0s"`, "c.yaml:3"},
			{"conntrack.maxPerCore", "0", "c.yaml:3"}, {"conntrack.min", "0", "c.yaml:3"},
			{"iptables.masqueradeBit", "0", "c.yaml:4"}, {"iptables.localhostNodePorts", "false", "c.yaml:4"}, {"oomScoreAdj", "0", "c.yaml:5"},
		}},
		{"nftables", "mode: nftables\nnodePortAddresses: []", []setting{{"nodePortAddresses", `["primary"]`, "default of mode nftables, as the value at c.yaml:4 is treated as not set"}}},
		{"iptables", "mode: ''", []setting{{"nodePortAddresses", `null`, "default"}, {"mode", `"iptables"`, "default on Linux, as the value at c.yaml:3 is treated as not set"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkSettings(t, check(t, header+tt.body, true), tt.want) })
	}
}

// TestDefaultFile compares the written form of all defaults (CFG-6).
func TestDefaultFile(t *testing.T) {
	want, err := os.ReadFile("testdata/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	Complete(c)
	got, err := WriteConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r, l := Load("c.yaml", got, true)
	if len(l) > 0 {
		t.Error(l)
	}
	if diff := cmp.Diff(c, r.Config); diff != "" {
		t.Errorf("read again (-written +read):\n%s", diff)
	}
}

// The effective configuration of flags is written and read back
// (--write-config-to).
func TestWriteResolved(t *testing.T) {
	r, l := resolve(t, nil, "--proxy-mode=userspace", "--udp-timeout=1s", "--nodeport-addresses=10.0.0.0/8,all", "--vmodule=a=1",
		"--feature-gates=ComponentFlagz=true", "--kube-api-qps=2.5", "--log-flush-frequency=1500ms", "--hostname-override=a<b")
	if l != nil {
		t.Fatal(l)
	}
	data, err := WriteConfig(r.Config)
	if err != nil {
		t.Fatal(err)
	}
	again := check(t, string(data), true)
	if diff := cmp.Diff(r.Config, again.Config); diff != "" {
		t.Errorf("(-written +read):\n%s\n%s", diff, data)
	}
}

func TestModeSections(t *testing.T) {
	c := Default()
	c.IPTables.MasqueradeAll, c.IPTables.MasqueradeBit = true, new(int32(1))
	c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod = seconds(10), seconds(1)
	c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod = seconds(20), seconds(2)
	c.NFTables.MasqueradeBit = new(int32(3))
	c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod = seconds(30), seconds(3)
	type settings struct {
		All           bool
		Bit           uint8
		Sync, MinSync time.Duration
	}
	for mode, want := range map[ir.Mode]settings{
		ir.ModeIPTables:    {true, 1, 10 * time.Second, time.Second},
		ir.ModeIPVS:        {true, 1, 20 * time.Second, 2 * time.Second},
		ir.ModeNFTables:    {false, 3, 30 * time.Second, 3 * time.Second},
		ir.ModeKernelspace: {true, 1, 10 * time.Second, time.Second},
		ir.ModeUserspace:   {true, 1, 10 * time.Second, time.Second},
		"":                 {true, 1, 10 * time.Second, time.Second},
	} {
		c.Mode = string(mode)
		if diff := cmp.Diff(want, settings{c.MasqueradeAll(), c.MasqueradeBit(), c.SyncPeriod(), c.MinSyncPeriod()}); diff != "" {
			t.Errorf("mode %q (-want +got):\n%s", mode, diff)
		}
	}
	if got := new(Config).MasqueradeBit(); got != 14 {
		t.Errorf("masquerade bit without defaults: %d, want 14", got)
	}
}

func TestPortRange(t *testing.T) {
	tests := []struct {
		in     string
		lo, hi uint16
		ok     bool
	}{
		{"", 0, 0, false}, {"0", 0, 0, false}, {"0-0", 0, 0, false}, {"80", 80, 80, true}, {" 80 - 90 ", 80, 90, true},
		{"80+10", 80, 90, true}, {"65530+10", 65530, 65535, true}, {"9-8", 0, 0, false}, {"-", 0, 0, false},
	}
	for _, tt := range tests {
		lo, hi, ok := (&Config{PortRange: tt.in}).ProxyPorts()
		if ok != tt.ok || ok && (lo != tt.lo || hi != tt.hi) {
			t.Errorf("%q: %d-%d %t, want %d-%d %t", tt.in, lo, hi, ok, tt.lo, tt.hi, tt.ok)
		}
	}
}

func TestCheckNode(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00::/64")
	tests := []struct {
		name, body string
		node       NodeFamilies
		want       []string
	}{
		{"nothing to say", "mode: iptables\nnodePortAddresses: [primary]", NodeFamilies{Primary: ir.IPv4}, nil},
		{"defaults", "bindAddress: '::'", NodeFamilies{Primary: ir.IPv6}, nil},
		{"clusterCIDR of the other family", "mode: nftables\nclusterCIDR: fd00::/8", NodeFamilies{Primary: ir.IPv4, OnlyOne: true},
			[]string{`error: c.yaml:4:1: clusterCIDR: must have an IPv4 CIDR, the node's primary family, got "fd00::/8"`}},
		{"clusterCIDR of the other family, dual stack", "mode: nftables\nclusterCIDR: fd00::/8", NodeFamilies{Primary: ir.IPv4, DualStack: true},
			[]string{`warning: c.yaml:4:1: clusterCIDR: must have an IPv4 CIDR, the node's primary family, got "fd00::/8"`}},
		{"clusterCIDR of one family", "mode: nftables\nclusterCIDR: fd00::/8", NodeFamilies{Primary: ir.IPv6, DualStack: true},
			[]string{`warning: c.yaml:4:1: clusterCIDR: has one family on a dual-stack node, got "fd00::/8" (add a CIDR of the other family)`}},
		{"clusterCIDR of both", "mode: nftables\nclusterCIDR: fd00::/8,10.0.0.0/8", NodeFamilies{Primary: ir.IPv4, DualStack: true}, nil},
		{"podCIDRs", "mode: nftables\ndetectLocalMode: NodeCIDR", NodeFamilies{Primary: ir.IPv4, DualStack: true, PodCIDRs: []netip.Prefix{v6}},
			[]string{`error: c.yaml:4:1: detectLocalMode: must not be NodeCIDR, because no podCIDR of the Node is IPv4, its primary family`}},
		{"podCIDRs of both", "mode: nftables\ndetectLocalMode: NodeCIDR", NodeFamilies{Primary: ir.IPv4, PodCIDRs: []netip.Prefix{v6, v4}}, nil},
		{"nodePortAddresses", "mode: iptables\nnodePortAddresses: [fd00::/8]", NodeFamilies{Primary: ir.IPv4, DualStack: true},
			[]string{`warning: c.yaml:4:1: nodePortAddresses: has no IPv4 CIDR, the node's primary family: node ports answer on all its IPv4 addresses`}},
		{"nodePortAddresses with a word", "mode: iptables\nnodePortAddresses: [fd00::/8, primary]", NodeFamilies{Primary: ir.IPv4}, nil},
		{"single stack", "mode: ipvs\nbindAddress: '::'\nipvs: {excludeCIDRs: [fd00::/8]}\nnodePortAddresses: [primary]\nmetricsBindAddress: '[::1]:1'", NodeFamilies{Primary: ir.IPv4}, []string{
			`warning: c.yaml:5:8: ipvs.excludeCIDRs: has no IPv4 CIDR, the node's only family`,
			`warning: c.yaml:7:1: metricsBindAddress: must be IPv4, the node's only family, got "[::1]:1"`,
		}},
		{"Windows", "mode: kernelspace\nwinkernel: {sourceVip: 'fd00::1'}", NodeFamilies{Primary: ir.IPv4}, []string{
			`warning: c.yaml:4:13: winkernel.sourceVip: must be IPv4, the node's primary family, got "fd00::1"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := check(t, header+tt.body, true)
			if diff := cmp.Diff(tt.want, lines(r.CheckNode(tt.node))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAdvice(t *testing.T) { // settings that should be set (CFG-15)
	mode := `info: c.yaml:1:1: mode: is not set, iptables is used (set it, since kube-proxy 1.40 will use nftables)`
	addrs := `info: c.yaml:1:1: nodePortAddresses: is not set, node ports answer on all addresses of the node (set it to ["primary"])`
	for body, want := range map[string][]string{
		"":                             {mode, addrs},
		"mode: iptables":               {addrs},
		"mode: nftables":               nil,
		"nodePortAddresses: [primary]": {mode},
	} {
		if diff := cmp.Diff(want, lines(check(t, header+body, true).Advice())); diff != "" {
			t.Errorf("%q (-want +got):\n%s", body, diff)
		}
	}
}
