package trace

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/ir"
)

// Every verb names what the bridge of the pods does to connections through it, as real packets show it. A trace is only
// affected if its packet is.
func TestVerbsNameWhatBridgesDo(t *testing.T) {
	t.Parallel()
	const (
		all      = "ext pod1a pod1b"
		isolated = "for p in vetha vethb; do bridge link set dev $p isolated on; done"
		shared   = "for p in vetha vethb; do bridge link set dev $p isolated off; done"
		bypass   = "replies of pods to others on bridge cni0 bypass the rules: net.bridge.bridge-nf-call-iptables must be 1 (module br_netfilter)"
		call     = "sysctl -qw net.bridge.bridge-nf-call-iptables="
		flush    = "ip neigh flush dev cni0; conntrack -F"
	)
	for _, plane := range []string{"nftables", "iptables-legacy", "ipvs"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w, topo := inTopology(t, plane)
			w.Write("cluster.yaml", strings.NewReplacer("type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, ", "", ", nodePort: 30080", "").Replace(nodetest.NodePort)+"---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n")
			w.Start("proxyc", "watch")
			w.Until("first sync", nodetest.Synced)
			in := func(pod, does string) {
				t.Helper()
				ns := topo.Namespace(pod)
				if out, err := ns.Run(ns.Command(t.Context(), "sh", "-c", does)); err != nil {
					t.Fatalf("%s: %s: %v\n%s", pod, does, err, out)
				}
			}
			for _, tt := range []struct {
				name, does, undo string
				names            string // "" if no verb but trace may warn
				passes           string // the hosts that reach the Service
				ipvs             bool   // mode ipvs routes packets that other modes bridge
			}{
				{"as it is", "true", "true", "", all, false},
				{"pods that routes lead to each other", call + "0", call + "1", "", all, false},
				{"no hairpin", "bridge link set dev vetha hairpin off", "bridge link set dev vetha hairpin on", "", "ext pod1b", true},
				{"no hairpin of a routed pod", call + "0; bridge link set dev vetha hairpin off", call + "1; bridge link set dev vetha hairpin on", "", all, false},
				{"no hairpin of another pod", "bridge link set dev vethb hairpin off", "bridge link set dev vethb hairpin on", "", all, false},
				{"isolated", isolated, shared, "isolated ports", "ext", true},
				{"the pod isolated", "bridge link set dev vetha isolated on", shared, "", "ext pod1b", true},
				{"another pod isolated", "bridge link set dev vethb isolated on", shared, "", all, false},
				{"isolated and routed", call + "0; " + isolated, call + "1; " + shared, "", all, false},
				{"link down", "ip link set vetha down", "ip link set vetha up", "route to 10.244.1.10, endpoint of Service ns/web: no carrier on port vetha of bridge cni0", "", false},
				{"no pod", "pod1a: ip addr add 10.244.1.99/32 dev eth0; ip addr del 10.244.1.10/32 dev eth0", "pod1a: ip addr add 10.244.1.10/32 dev eth0; ip addr del 10.244.1.99/32 dev eth0", "route to 10.244.1.10, endpoint of Service ns/web: no port of bridge cni0 leads to it", "", false},
				{"pods of one network", "pods: ip addr add $A/24 dev eth0", "true", "", all, false},
				{"isolated pods of one network", isolated, shared, "isolated ports", "ext", false},
				{"no rules on the bridge", call + "0", call + "1", bypass, "ext pod1a", false},
				{"no rules on the bridge, isolated", call + "0; " + isolated, call + "1; " + shared, "isolated ports", "ext pod1a", false},
				{"all undone", "true", "true", "", all, false},
			} {
				if tt.ipvs && plane == "ipvs" {
					tt.names, tt.passes = "", all
				}
				for i, does := range [...]string{tt.does, tt.undo} {
					if pod, of, ok := strings.Cut(does, ": "); ok && pod == "pods" {
						in("pod1a", strings.ReplaceAll(of, "$A", "10.244.1.10"))
						in("pod1b", strings.ReplaceAll(of, "$A", "10.244.1.11"))
					} else if ok {
						in(pod, of)
					} else {
						w.Must(does)
					}
					w.Must(flush)
					if i == 1 {
						break
					}
					args := strings.Join(w.Args, " ")
					for _, verb := range []string{"prove ir kernel " + args, "apply --check " + args, "doctor --try= -c " + w.File("config") + " --hostname-override node1"} {
						out, code := w.Run("proxyc", strings.Fields(verb)...)
						if tt.names != "" && !strings.Contains(out, tt.names) || tt.names == "" && strings.Contains(out, "route to ") {
							t.Errorf("%s: %s: want %q in:\n%s", tt.name, verb, tt.names, out)
						}
						if strings.HasPrefix(verb, "prove ") && (code == nodetest.ExitDone) != (tt.names == "") {
							t.Errorf("%s: prove: exit %d:\n%s", tt.name, code, out)
						}
					}
					w.Until(tt.name, func(st status.Status) bool {
						all := strings.Join(st.Settings, "\n")
						return tt.names == "" && all == "" || tt.names != "" && strings.Contains(all, tt.names)
					})
					for from, addr := range map[string]string{"ext": "192.0.2.200", "pod1a": "10.244.1.10", "pod1b": "10.244.1.11"} {
						passes := slices.Contains(strings.Fields(tt.passes), from)
						out, code := w.Proxyc("trace", "--kernel", "--from", addr, "--to", "10.96.0.10:80")
						if (code == nodetest.ExitDone) != passes || passes != strings.Contains(out, "=> 10.244.1.10:8080") {
							t.Errorf("%s: trace from %s: exit %d:\n%s", tt.name, from, code, out)
						}
						wait := time.Second
						if passes {
							wait = applytest.ReplyTimeout
						}
						if _, err := topo.Try(from, "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), wait); passes != (err == nil) {
							t.Errorf("%s: really from %s: %v", tt.name, from, err)
						}
					}
				}
			}
		})
	}
}

// Nothing is said about a bridge that does not carry the connection, or whose ports lead to more than pods.
func TestDiscardsOfBridges(t *testing.T) {
	t.Parallel()
	ns := map[string]*applytest.Namespace{}
	for _, name := range []string{"node", "a", "b", "behind", "host"} {
		ns[name] = applytest.RequireNamespace(t)
	}
	must := func(in, does string) {
		t.Helper()
		if out, err := ns[in].Run(ns[in].Command(t.Context(), "sh", "-ec", does)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var errs []error
	for _, link := range [][4]string{{"node", "vetha", "a", "eth0"}, {"node", "vethb", "b", "eth0"}, {"node", "up", "host", "container"}, {"a", "eth1", "behind", "eth0"}} {
		errs = append(errs, ns[link[0]].Connect(link[1], ns[link[2]], link[3]))
	}
	errs = append(errs, ns["node"].AddBridge("cni0"), ns["node"].AddBridge("br0"), ns["host"].AddBridge("docker0"))
	errs = append(errs, ns["node"].AddPort("cni0", "vetha"), ns["node"].AddPort("cni0", "vethb"), ns["node"].AddPort("br0", "up"), ns["host"].AddPort("docker0", "container"))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	must("node", `ip link set lo up; ip addr add 10.244.1.1/24 dev cni0; ip addr add 172.17.0.2/16 dev br0; ip route add default via 172.17.0.1
		sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.bridge.bridge-nf-call-iptables=0; ip route add 10.9.0.5 via 10.244.1.10
		ip rule add to 10.8.1.99/24 prohibit; ip route add 10.8.0.0/16 dev cni0`)
	must("host", "ip addr add 172.17.0.1/16 dev docker0")
	must("behind", "ip addr add 10.9.0.5/24 dev eth0")
	must("a", "ip addr add 10.244.1.10/24 dev eth0")
	must("b", "ip addr add 10.244.1.11/24 dev eth0")
	const bypass, call = "replies of pods to others on bridge cni0 bypass the rules", "sysctl -qw net.bridge.bridge-nf-call-iptables="
	detect := func(by string) ir.Detector { return ir.Detector{Mode: ir.DetectInterface, Interface: by} }
	for _, tt := range []struct {
		name, does, to, want string
		node                 ir.Node
	}{
		{"pods", "true", "10.244.1.10", bypass, ir.Node{Detector: detect("cni0")}},
		{"pods that are masqueraded", "true", "10.244.1.10", "", ir.Node{Detector: detect("other")}},
		{"pods that nothing detects", "true", "10.244.1.10", bypass, ir.Node{}},
		{"nobody", "true", "10.244.1.12", "no port of bridge cni0 leads to it", ir.Node{}},
		{"behind a pod", "true", "10.9.0.5", "", ir.Node{}},
		{"behind the host of a container", "true", "172.17.0.9", "", ir.Node{}},
		{"rule with an address in its network", "true", "10.8.1.1", "prohibits it", ir.Node{}},
		{"pods of a process", "true", "10.244.1.10", "", ir.Node{Mode: ir.ModeUserspace, Detector: detect("cni0")}},
		{"no hairpin", "bridge link set dev vetha hairpin off; " + call + "1", "10.244.1.10", "", ir.Node{Detector: detect("cni0")}},
		{"no hairpin, and a process", "true", "10.244.1.10", "", ir.Node{Mode: ir.ModeUserspace, Detector: detect("cni0")}},
	} {
		must("node", tt.does)
		to := ir.Backend{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(tt.to), 80), Local: tt.to != "10.8.1.1"}
		p := &ir.Program{Family: ir.IPv4, Node: tt.node, Services: []ir.Service{{Pools: []ir.Pool{{Backends: []ir.Backend{to}}}}}}
		p.Node.Addrs = []netip.Addr{netip.MustParseAddr("172.17.0.2")}
		var found []string
		err := ns["node"].Do(func() (err error) {
			found, err = node.Discards(t.Context(), p, nil)
			return err
		})
		if all := strings.Join(found, "\n"); err != nil || tt.want == "" && all != "" || tt.want != "" && (len(found) != 1 || !strings.Contains(all, tt.want)) {
			t.Errorf("%s: %v, %q, want %q", tt.name, err, found, tt.want)
		}
	}
}
