package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
)

// inTopology returns a node of a topology, with the configuration of a mode and without rules.
func inTopology(t *testing.T, plane string) (*nodetest.Daemon, *applytest.Topology) {
	t.Helper()
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { topo.Close() })
	w := nodetest.New(t, plane)
	w.NS = topo.Namespace("node1")
	w.Write("cluster.yaml", nodetest.NodePort+"---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n")
	return w, topo
}

// If foreign chains translate at the same priority as proxyc's, the kernel calls the one registered
// last first, and does not show the order. Trace names both outcomes, of which real packets have
// one, and gives no result. If foreign chains have no other effect on a packet, the order does not
// matter.
func TestTraceKernelWithEqualPriorities(t *testing.T) {
	t.Parallel()
	const apply = "proxyc apply $ARGS"
	const iptables = "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p tcp --dport 80 -j DNAT --to 10.244.1.11:8080"
	const native = "nft 'table ip aaa { chain p { type nat hook prerouting priority -100; ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.11:8080; }; }'"
	const inet = "nft 'table inet zzz { chain p { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.244.1.11:8080; }; }'"
	const filter = "nft 'table ip aaa { chain p { type filter hook prerouting priority -100; ip daddr 10.96.0.10 drop; }; }'"
	const pass = "iptables-nft -t nat -A PREROUTING -d 10.96.0.11 -j DNAT --to 10.244.1.11; iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE; iptables-nft -A FORWARD -s 172.17.0.0/16 -j DROP"
	const doubt = "so the order is unknown"
	for _, tt := range []struct {
		name     string
		commands []string
		code     int
		want     []string
	}{
		{"iptables first", []string{iptables, apply}, nodetest.ExitFindings, []string{"table ip nat, chain PREROUTING: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"iptables last", []string{apply, iptables}, nodetest.ExitFindings, []string{"table ip nat, chain PREROUTING: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"nft first", []string{native, apply}, nodetest.ExitFindings, []string{"table ip aaa, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"nft last", []string{apply, native}, nodetest.ExitFindings, []string{"table ip aaa, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"inet first", []string{inet, apply}, nodetest.ExitFindings, []string{"table inet zzz, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"inet last", []string{apply, inet}, nodetest.ExitFindings, []string{"table inet zzz, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"filter first", []string{filter, apply}, nodetest.ExitFindings, []string{doubt, "dropped", "10.244.1.10:8080+snat"}},
		{"filter last", []string{apply, filter}, nodetest.ExitFindings, []string{doubt, "dropped", "10.244.1.10:8080+snat"}},
		{"all pass", []string{pass, apply, pass}, nodetest.ExitDone, []string{"=> 10.244.1.10:8080+snat\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, topo := inTopology(t, "nftables")
			for _, command := range tt.commands {
				w.Must(strings.ReplaceAll(command, "$ARGS", strings.Join(w.Args, " ")))
			}
			out, code := w.Proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "10.96.0.10:80")
			for _, want := range tt.want {
				if code != tt.code || !strings.Contains(out, want) {
					t.Errorf("exit %d, want %d and %q in:\n%s", code, tt.code, want, out)
				}
			}
			if strings.Contains(out, "because") {
				t.Errorf("a cause of what nobody knows:\n%s", out)
			}
			really := "dropped"
			if a, err := topo.Try("ext", "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), applytest.ScaledTimeout(6*time.Second)); err == nil {
				really = a.Server.String()
			}
			if !strings.Contains(out, really) {
				t.Errorf("really %s, which is not in:\n%s", really, out)
			}
		})
	}
}

// Packets to backends are lost if the kernel does not forward or has no route. Real packets show
// it, and trace names the reason.
func TestTraceKernelAsksForRoutes(t *testing.T) {
	t.Parallel()
	const served = "=> 10.244.1.10:8080+snat\n"
	cases := []struct {
		name, does, undo string
		from             string // as trace has it
		code             int
		want             []string
	}{
		{"as it is", "true", "true", "192.0.2.200", nodetest.ExitDone, []string{served}},
		{"from pod", "true", "true", "10.244.1.11", nodetest.ExitDone, []string{"10.244.1.11@cni0 -> ", "=> 10.244.1.10:8080\n"}},
		{"from node", "true", "true", "node", nodetest.ExitDone, []string{"=> 10.244.1.10:8080"}},
		{"no forwarding", "sysctl -w net.ipv4.ip_forward=0", "sysctl -w net.ipv4.ip_forward=1", "192.0.2.200", nodetest.ExitFindings,
			[]string{"=> dropped\n", "because: route to 10.244.1.10 from 192.0.2.200 by eth0: net.ipv4.conf.eth0.forwarding is 0\n"}},
		{"no forwarding of pods", "sysctl -w net.ipv4.conf.cni0.forwarding=0", "sysctl -w net.ipv4.conf.cni0.forwarding=1", "192.0.2.200", nodetest.ExitFindings,
			[]string{"=> dropped\n", "because: route to 10.244.1.10 from 192.0.2.200 by eth0: net.ipv4.conf.cni0.forwarding is 0, so replies are lost\n"}},
		{"no forwarding, from node", "sysctl -w net.ipv4.ip_forward=0", "sysctl -w net.ipv4.ip_forward=1", "node", nodetest.ExitDone, []string{"=> 10.244.1.10:8080"}},
		{"blackhole", "ip route add blackhole 10.244.1.10", "ip route del blackhole 10.244.1.10", "192.0.2.200", nodetest.ExitFindings, []string{"=> dropped\n", "because: route to 10.244.1.10 from 192.0.2.200 by eth0: a blackhole route or rule, or rp_filter"}},
		{"blackhole, from node", "ip route add blackhole 10.244.1.10", "ip route del blackhole 10.244.1.10", "node", nodetest.ExitFindings, []string{"=> dropped\n", "because: route to 10.244.1.10: a blackhole route or rule\n"}},
		{"blackhole of the Service, from node", "ip route add blackhole 10.96.0.10", "ip route del blackhole 10.96.0.10", "node", nodetest.ExitFindings, []string{"=> dropped\n", "because: route to 10.96.0.10: a blackhole route or rule\n"}},
		{"blackhole of the Service", "ip route add blackhole 10.96.0.10", "ip route del blackhole 10.96.0.10", "192.0.2.200", nodetest.ExitDone, []string{served}},
		{"unreachable", "ip route add unreachable 10.244.1.10", "ip route del unreachable 10.244.1.10", "192.0.2.200", nodetest.ExitFindings, []string{"=> dropped\n", "an unreachable route or rule\n"}},
		{"prohibited", "ip route add prohibit 10.244.1.10", "ip route del prohibit 10.244.1.10", "192.0.2.200", nodetest.ExitFindings, []string{"=> dropped\n", "a route or rule that prohibits it\n"}},
		{"rule", "ip rule add to 10.244.0.0/16 blackhole", "ip rule del to 10.244.0.0/16 blackhole", "192.0.2.200", nodetest.ExitFindings, []string{"=> dropped\n", "a blackhole route or rule"}},
		{"rule by the mark", "ip rule add fwmark 0x4000/0x4000 blackhole", "ip rule del fwmark 0x4000/0x4000 blackhole", "192.0.2.200", nodetest.ExitFindings, []string{"=> dropped\n", "a blackhole route or rule"}},
		{"no route", "ip route flush table main; ip route add 192.0.2.0/24 dev eth0", "ip route add 10.244.1.0/24 dev cni0", "192.0.2.200", nodetest.ExitFindings, []string{"=> dropped\n"}},
		{"rp_filter", "sysctl -w net.ipv4.conf.eth0.rp_filter=1; ip route add 192.0.2.200 dev eth1", "sysctl -w net.ipv4.conf.eth0.rp_filter=0; ip route del 192.0.2.200 dev eth1", "192.0.2.200@eth0", nodetest.ExitFindings, []string{"=> dropped\n", "rp_filter, which rejects this source on eth0\n"}},
		{"no interface", "true", "true", "192.0.2.200@eth7", nodetest.ExitFindings, []string{"not checked: routes and forwarding: eth7: no such interface\n"}},
		{"no machine", "true", "true", "0.0.0.0@eth0", nodetest.ExitFindings, []string{"not checked: routes and forwarding: no machine has the address 0.0.0.0\n"}},
		{"all undone", "true", "true", "192.0.2.200", nodetest.ExitDone, []string{served}},
	}
	for _, plane := range []string{"nftables", "iptables-nft", "iptables-legacy"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w, topo := inTopology(t, plane)
			w.Must("proxyc apply " + strings.Join(w.Args, " "))
			for _, tt := range cases {
				if plane != "nftables" && tt.name != "no forwarding" && tt.name != "blackhole" && tt.name != "all undone" {
					continue // rules play no part in the others
				}
				w.Must(tt.does)
				out, code := w.Proxyc("trace", "--kernel", "--from", tt.from, "--to", "10.96.0.10:80")
				for _, want := range tt.want {
					if code != tt.code || !strings.Contains(out, want) {
						t.Errorf("%s: exit %d, want %d and %q in:\n%s", tt.name, code, tt.code, want, out)
					}
				}
				from := map[string]string{"node": "node1", "10.244.1.11": "pod1b"}[tt.from]
				if from == "" {
					from = "ext"
				}
				passes := strings.Contains(out, "=> 10.244.1.10:8080")
				if strings.Contains(out, "=> not known\n") { // what would be, were routes as they should
					passes = strings.Contains(out, "if that has no effect on the packet: 10.244.1.10:8080+snat\n")
				}
				wait := time.Second
				if passes {
					wait = applytest.ReplyTimeout
				}
				_, err := topo.Try(from, "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), wait)
				if passes != (err == nil) {
					t.Errorf("%s: really: %v; trace says:\n%s", tt.name, err, out)
				}
				w.Must(tt.undo)
			}
		})
	}
}

// In IPv6 forwarding is not a matter of routes, and is asked for apart.
func TestTraceKernelAsksForForwardingOfIPv6(t *testing.T) {
	t.Parallel()
	w, topo := inTopology(t, "nftables")
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "10.244.0.0/16", "fd00:10:244::/56", 1))
	w.Write("cluster.yaml", strings.NewReplacer("IPv4", "IPv6", "10.96.0.10", "'fd00:10:96::10'", "10.244.1.10", "'fd00:10:244:1::10'", "192.0.2.11", "'2001:db8:0:1::11'").Replace(nodetest.NodePort))
	w.Must("proxyc apply " + strings.Join(w.Args, " "))
	for _, tt := range []struct {
		does, want string
		code       int
		passes     bool
	}{
		{"true", "=> [fd00:10:244:1::10]:8080+snat\n", nodetest.ExitDone, true},
		{"sysctl -w net.ipv6.conf.all.forwarding=0", "because: route to fd00:10:244:1::10 from 2001:db8:0:1::200 by eth0: net.ipv6.conf.all.forwarding is 0\n", nodetest.ExitFindings, false},
		{"sysctl -w net.ipv6.conf.all.forwarding=1; ip -6 route add blackhole fd00:10:244:1::10", "by eth0: a blackhole route or rule", nodetest.ExitFindings, false},
	} {
		w.Must(tt.does)
		out, code := w.Proxyc("trace", "--kernel", "--from", "2001:db8:0:1::200", "--to", "[fd00:10:96::10]:80")
		if code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("%s: exit %d, want %d and %q in:\n%s", tt.does, code, tt.code, tt.want, out)
		}
		timeout := applytest.ScaledTimeout(time.Second)
		if tt.passes {
			timeout = applytest.ReplyTimeout
		}
		if _, err := topo.Try("ext", "tcp", 0, netip.MustParseAddrPort("[fd00:10:96::10]:80"), timeout); tt.passes != (err == nil) {
			t.Errorf("%s: really: %v", tt.does, err)
		}
	}
}

// Causes are rules that decide about the packet: neither foreign jumps or returns, which only lead
// it on, nor single rules if proxyc's table is missing.
func TestTraceKernelNamesTheCause(t *testing.T) {
	t.Parallel()
	const docker = "iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER; "
	for _, tt := range []struct {
		plane, does string
		want        []string // the causes, each by a part
	}{
		{"nftables", docker + "iptables-nft -P FORWARD DROP", []string{"table ip filter, chain FORWARD (foreign) drops the packet: policy drop"}},
		{"nftables", "nft delete table ip proxyc", []string{"table ip proxyc is missing"}},
		{"nftables", "nft add table ip proxyc '{ flags dormant; }'", []string{"table ip proxyc is dormant"}},
		{"nftables", docker + "nft delete table ip proxyc", []string{"table ip proxyc is missing"}},
		{"nftables", docker + "iptables-nft -P FORWARD DROP; nft delete table ip proxyc",
			[]string{"table ip proxyc is missing", "table ip filter, chain FORWARD (foreign) drops the packet: policy drop"}},
		{"nftables", docker + "nft flush chain ip proxyc nat-prerouting", []string{"table ip proxyc, chain nat-prerouting: missing or not reached: jump services"}},
		{"iptables-nft", docker + "iptables-nft -t nat -D PREROUTING 1", []string{"table nat, chain PREROUTING: missing or not reached: "}},
		{"iptables-nft", docker + "iptables-nft -A FORWARD -p tcp --dport 8080 -j DROP", []string{"table filter, chain FORWARD, rule 6 (foreign) drops the packet: "}},
	} {
		t.Run(tt.plane+" "+tt.does, func(t *testing.T) {
			t.Parallel()
			w := nodetest.Applied(t, tt.plane)
			w.Must(tt.does)
			out, code := w.Proxyc("trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80")
			var causes []string
			for line := range strings.Lines(out) {
				if cause, ok := strings.CutPrefix(line, "  because: "); ok {
					causes = append(causes, cause)
				}
			}
			if code != nodetest.ExitFindings || !slices.EqualFunc(causes, tt.want, strings.Contains) {
				t.Errorf("exit %d, want the causes %q in:\n%s", code, tt.want, out)
			}
			proof, code := w.Proxyc("prove", "ir", "kernel")
			if gone := strings.HasPrefix(tt.want[0], "table ip proxyc is "); gone && code != nodetest.ExitFindings || gone != strings.HasPrefix(proof, "not compared: "+tt.want[0]) {
				t.Errorf("prove: exit %d:\n%s", code, proof)
			}
		})
	}
}
