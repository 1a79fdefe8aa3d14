package trace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// Every verb that reads the kernel names what else affects packets to Services on this node, as real
// packets show it. None warns about usual rules and routes of network plugins.
func TestVerbsNameWhatAffectsPackets(t *testing.T) {
	t.Parallel()
	const (
		mark    = "nft 'table inet m { chain c { type filter hook prerouting priority -150; meta mark set 7; }; }'; "
		ctmark  = "nft 'table inet m { chain c { type filter hook prerouting priority -150; ct mark set 7 meta mark set ct mark; }; }'; "
		unmark  = "nft delete table inet m; "
		rewrite = "inet m chain c, hook prerouting, priority -150: rewrites packets in chain c"
	)
	chain := func(rule string) string {
		return "nft 'table inet m { chain c { type filter hook prerouting priority -150; " + rule + "; }; }'"
	}
	carrier := func(state string) string {
		return "for i in $(ip -o link show master cni0 | sed 's/^[0-9]*: //; s/[@:].*//'); do ip link set $i " + state +
			"; done; until ip link show cni0 | grep -qi 'state " + state + "'; do :; done"
	}
	w, topo := inTopology(t, "nftables")
	w.Write("cluster.yaml", strings.NewReplacer("type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32000, ", "", ", nodePort: 30080", "").Replace(nodetest.NodePort)+"---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n")
	w.Start("proxyc", "watch")
	w.Until("first sync", nodetest.Synced)
	address := func(from, to string) string { // of the Node, in the rules of the daemon
		return "sed -i s/" + from + "/" + to + "/ " + w.File("cluster.yaml") + "; until curl -s --unix-socket /run/proxyc/proxyc-$(stat -Lc %i /proc/self/ns/net).sock http://localhost/proxyc/ir | grep -q " + to + "; do :; done"
	}
	for _, tt := range []struct {
		name, does, undo string
		names            string // "" if no verb may warn
		passes           bool
		trace            string // "" if that of names
	}{
		{"as it is", "true", "true", "", true, "=> 10.244.1.10:8080+snat\n"},
		{"wrong neighbour", "ip neigh replace 10.244.1.10 dev cni0 lladdr 02:00:00:00:00:99 nud permanent; conntrack -F; curl -sm 2 http://10.96.0.10 || true", "ip neigh del 10.244.1.10 dev cni0; conntrack -F", "", false, "tracked connections to 10.96.0.10:80/tcp: 1; no reply was seen to 1 of them (proxyc flows --wrong)\n"},
		{"foreign mark", mark + "ip rule add fwmark 7 prohibit", unmark + "ip rule del fwmark 7 prohibit", "with mark 0x7, which may be set by inet m chain c, hook prerouting, priority -150: meta mark set in chain c: a route or rule that prohibits it", false, "because: route to 10.244.1.10 from 192.0.2.200 by eth0 with mark 0x7: a route or rule that prohibits it\n"},
		{"mark of the connection", ctmark + "ip rule add fwmark 7 prohibit", unmark + "ip rule del fwmark 7 prohibit", "with mark 0x7, which may be set by inet m chain c", false, "a route or rule that prohibits it\n"},
		{"mark of iptables", "iptables-nft -t mangle -A PREROUTING -j MARK --set-mark 7; ip rule add fwmark 7/0xff blackhole", "iptables-nft -t mangle -F; ip rule del fwmark 7/0xff blackhole", "with mark 0x7, which may be set by ip mangle chain PREROUTING", false, "a blackhole route or rule"},
		{"mark for a table, of later packets", mark + "ip route add blackhole 10.244.0.0/16 table 99; ip rule add fwmark 7 lookup 99", unmark + "ip rule del fwmark 7 lookup 99; ip route flush table 99", "with mark 0x7, which may be set by inet m chain c", false, "a blackhole route or rule"},
		{"another mark", mark + "ip rule add fwmark 8 prohibit", unmark + "ip rule del fwmark 8 prohibit", "", true, "=> 10.244.1.10:8080+snat\n"},
		{"no mark", "ip rule add fwmark 0x80000/0xff0000 unreachable", "ip rule del fwmark 0x80000/0xff0000 unreachable", "", true, "=> 10.244.1.10:8080+snat\n"},
		{"mark for a harmless table", mark + "ip route add default dev eth0 table 99; ip route add 10.244.1.0/24 dev cni0 table 99; ip rule add fwmark 7 lookup 99", unmark + "ip rule del fwmark 7 lookup 99; ip route flush table 99", "", true, ""},
		{"other destination port", chain("ip daddr 10.96.0.10 tcp dport set 81"), unmark, rewrite, false, "=> not known"},
		{"other destination", chain("ip daddr 10.96.0.10 ip daddr set 10.96.0.99"), unmark, rewrite, false, "=> not known"},
		{"ttl", chain("ip daddr 10.96.0.10 ip ttl set 1"), unmark, rewrite, false, "=> not known"},
		{"ttl of iptables", "iptables-nft -t mangle -A PREROUTING -d 10.96.0.10 -j TTL --ttl-set 1", "iptables-nft -t mangle -F", "ip mangle chain PREROUTING, hook prerouting, priority -150: TTL in chain PREROUTING", false, "=> not known"},
		{"later packets", "nft 'table inet m { chain c { type filter hook forward priority 0; ip daddr 10.244.1.10 ct state established drop; }; }'", unmark, "inet m chain c, hook forward, priority 0: drop in chain c", false, "because: table inet m, chain c, rule 1 (foreign) drops the packet: ip daddr 10.244.1.10 ct state established drop, for later packets\n"},
		{"first replies", "nft 'table inet m { chain c { type filter hook forward priority 0; tcp flags & (syn|ack) == (syn|ack) drop; }; }'", unmark, "inet m chain c, hook forward, priority 0: drop in chain c", false, "because: table inet m, chain c, rule 1 (foreign) drops the packet: tcp flags syn,ack / syn,ack drop, for replies\n"},
		{"first replies, in iptables", "iptables-nft -A FORWARD -p tcp --tcp-flags SYN,ACK SYN,ACK -j DROP", "iptables-nft -F FORWARD", "ip filter chain FORWARD, hook forward, priority 0: drop in chain FORWARD", false, "(foreign) drops the packet: -p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK -j DROP, for replies\n"},
		{"data", "iptables-nft -A FORWARD -p tcp --tcp-flags PSH PSH -j DROP", "iptables-nft -F FORWARD", "ip filter chain FORWARD, hook forward, priority 0: drop in chain FORWARD", false, "--tcp-flags PSH PSH -j DROP, for replies\n"},
		{"rule of another port", "ip rule add priority 99 ipproto tcp dport 22 lookup main", "ip rule del priority 99", "", true, "=> 10.244.1.10:8080+snat\n"},
		{"rule of a port", "ip rule add priority 99 ipproto tcp dport 8080 blackhole", "ip rule del priority 99", "ip rule 99 may discard packets to Services", false, "not checked: ip rule 99, which depends on more than addresses, interface and mark\n"},
		{"queue", "tc qdisc add dev cni0 root blackhole", "tc qdisc del dev cni0 root", "", false, "not checked: the queueing discipline blackhole of interface cni0\n"},
		{"IPsec", "ip xfrm policy add dst 10.244.1.10/32 dir out action block", "ip xfrm policy flush", "", false, "not checked: the IPsec policy 0.0.0.0/0 to 10.244.1.10/32, which blocks\n"},
		{"neighbour", "ip neigh flush dev cni0; nft 'table arp m { chain c { type filter hook input priority 0; iifname cni0 drop; }; }'; curl -sm 5 http://10.244.1.10:9 || true", "nft delete table arp m; ip neigh flush dev cni0", "", false, "not checked: neighbour 10.244.1.10 on cni0, which did not answer\n"},
		{"conntrack zone", "nft 'table inet m { chain c { type filter hook prerouting priority -300; iifname eth0 ct zone set 5; }; }'", unmark, "inet m chain c, hook prerouting, priority -300: ct zone set in chain c", false, "=> not known"},
		{"segment size and DSCP", chain("tcp flags syn tcp option maxseg size set 1200; ip dscp set cs1"), unmark, "", true, "-"},
		{"forwarding of pods", "sysctl -qw net.ipv4.conf.cni0.forwarding=0", "sysctl -qw net.ipv4.conf.cni0.forwarding=1", "net.ipv4.conf.cni0.forwarding is 0", false, ""},
		{"forwarding of others", "sysctl -qw net.ipv4.conf.eth0.forwarding=0", "sysctl -qw net.ipv4.conf.eth0.forwarding=1", "net.ipv4.conf.eth0.forwarding is 0", false, ""},
		{"forwarding", "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1", "net.ipv4.ip_forward is 0: the node forwards no IPv4 packet", false, "net.ipv4.conf.eth0.forwarding is 0"},
		{"forwarding of IPv6 of an IPv4 Service", "sysctl -qw net.ipv6.conf.all.forwarding=0", "sysctl -qw net.ipv6.conf.all.forwarding=1", "", true, ""},
		{"blackhole", "ip route add blackhole 10.244.1.10", "ip route del blackhole 10.244.1.10", "route to 10.244.1.10, endpoint of Service ns/web: a blackhole route or rule", false, "a blackhole route or rule"},
		{"blackhole of the node's range", "ip route add blackhole 10.244.1.0/26; ip route add 10.244.1.10 dev cni0", "ip route del blackhole 10.244.1.0/26; ip route del 10.244.1.10 dev cni0", "", true, ""},
		{"blackhole of the Service", "ip route add blackhole 10.96.0.0/12", "ip route del blackhole 10.96.0.0/12", "route to 10.96.0.10, to which the node itself sends packets: a blackhole route or rule", true, "=> 10.244.1.10:8080+snat\n"},
		{"rule", "ip rule add to 10.244.0.0/16 unreachable", "ip rule del to 10.244.0.0/16 unreachable", "route to 10.244.1.10, endpoint of Service ns/web: there is none, or an unreachable rule", false, "there is none, or an unreachable rule\n"},
		{"rule of a source", "ip rule add priority 99 from 192.0.2.0/24 prohibit", "ip rule del priority 99", "ip rule 99 may discard packets to Services", false, "a route or rule that prohibits it"},
		{"no route to the node's pods but the default route", "ip route del 10.244.1.0/24", "ip route add 10.244.1.0/24 dev cni0", "route to 10.244.1.10, endpoint of Service ns/web: only a default route, by eth0, although it is a pod of this node", false, "route to 10.244.1.10 from 192.0.2.200 by eth0: only a default route"},
		{"no route to the node's pods", "ip route del 10.244.1.0/24; ip route del default", "ip route add 10.244.1.0/24 dev cni0; ip route add default via 192.0.2.200", "route to 10.244.1.10, endpoint of Service ns/web: there is none", false, "there is none, or an unreachable rule\n"},
		{"no default route", "ip route del default", "ip route add default via 192.0.2.200", "route to 10.96.0.10, to which the node itself sends packets: there is none", true, "=> 10.244.1.10:8080+snat\n"},
		{"no carrier", carrier("down"), carrier("up"), "route to 10.244.1.10, endpoint of Service ns/web: interface cni0 is down", false, "interface cni0 is down\n"},
		{"drop of IPv6 beside an IPv4 Service", "nft 'table ip6 m { chain c { type filter hook forward priority 0; policy drop; }; }'", "nft delete table ip6 m", "", true, "=> 10.244.1.10:8080+snat\n"},
		{"rule of pods", "ip route add blackhole default table 98; ip rule add priority 98 from 10.244.1.0/24 lookup 98", "ip rule del priority 98; ip route flush table 98", "route to 10.244.1.10, endpoint of Service ns/web from 10.244.1.2 by cni0: a blackhole route or rule", false, "a blackhole route or rule"},
		{"rule of the pods' interface", "ip route add blackhole default table 98; ip rule add priority 98 iif cni0 lookup 98", "ip rule del priority 98; ip route flush table 98", "route to 10.244.1.10, endpoint of Service ns/web from 10.244.1.2 by cni0: a blackhole route or rule", false, "a blackhole route or rule"},
		{"rule of pods to the outside", "ip route add blackhole default table 98; ip route add 10.244.0.0/16 dev cni0 table 98; ip rule add priority 98 from 10.244.1.0/24 lookup 98", "ip rule del priority 98; ip route flush table 98", "route to 192.0.2.1, a client on eth0 from 10.244.1.2 by cni0: a blackhole route or rule", false, "a blackhole route or rule"},
		{"rule of pods to other networks", "ip route add blackhole 192.168.0.0/16 table 98; ip rule add priority 98 from 10.244.1.0/24 lookup 98", "ip rule del priority 98; ip route flush table 98", "", true, ""},
		{"rule of pods, and rp_filter", "sysctl -qw net.ipv4.conf.eth0.rp_filter=1; ip route add default dev eth1 table 98; ip rule add priority 98 from 10.244.1.0/24 lookup 98", "sysctl -qw net.ipv4.conf.eth0.rp_filter=0; ip rule del priority 98; ip route flush table 98", "route to 10.244.1.10, endpoint of Service ns/web from 192.0.2.1 by eth0: a blackhole route or rule, or rp_filter, which rejects this source on eth0", false, "rp_filter, which rejects this source on eth0\n"},
		{"rp_filter", "for i in eth0 eth1 cni0 lo; do sysctl -qw net.ipv4.conf.$i.rp_filter=1; done", "for i in eth0 eth1 cni0 lo; do sysctl -qw net.ipv4.conf.$i.rp_filter=0; done", "", true, ""},
		{"outdated address of the Node", address("192.0.2.11", "192.0.2.99"), address("192.0.2.99", "192.0.2.11"), "192.0.2.99 is the node's address by bindAddress or its Node object, and no interface has it", true, "=> 10.244.1.10:8080+snat\n"},
		{"untracked replies", "nft 'table inet m { chain c { type filter hook prerouting priority -300; ip saddr 10.244.1.10 notrack; }; }'", unmark, "inet m chain c, hook prerouting, priority -300: notrack in chain c", false, "because: table inet m, chain c, rule 1 (foreign) determines the result: ip saddr 10.244.1.10 notrack, for replies\n"},
		{"untracked replies, in iptables", "iptables-nft -t raw -A PREROUTING -s 10.244.1.10 -j CT --notrack", "iptables-nft -t raw -F", "ip raw chain PREROUTING, hook prerouting, priority -300: NOTRACK in chain PREROUTING", false, "-j CT --notrack, for replies\n"},
		{"last rule", "ip rule add priority 40000 unreachable", "ip rule del priority 40000", "", true, ""},
		{"all undone", "true", "true", "", true, ""},
	} {
		w.Must(tt.does)
		args := strings.Join(w.Args, " ")
		for _, verb := range []string{"prove ir kernel " + args, "apply --check " + args, "doctor --try= -c " + w.File("config") + " --hostname-override node1"} {
			out, code := w.Run("proxyc", strings.Fields(verb)...)
			verb, _, _ := strings.Cut(verb, " ")
			if quiet := !strings.Contains(out, "may ") && !strings.Contains(out, "route to ") && !strings.Contains(out, "forwarding is 0"); tt.names != "" && !strings.Contains(out, tt.names) || tt.names == "" && !quiet && verb != "doctor" {
				t.Errorf("%s: %s: want %q in:\n%s", tt.name, verb, tt.names, out)
			}
			if verb == "prove" && (code == nodetest.ExitDone) != (tt.names == "") {
				t.Errorf("%s: prove: exit %d:\n%s", tt.name, code, out)
			}
		}
		st := w.Until(tt.name, func(st status.Status) bool {
			all := strings.Join(slices.Concat(st.MayDrop, st.MayDivert, st.Settings), "\n")
			return tt.names == "" && all == "" || tt.names != "" && strings.Contains(all, tt.names)
		})
		if out, _ := w.Run("proxyc", "status"); (tt.names == "") != strings.Contains(out, "synced       yes\n") {
			t.Errorf("%s: status: %s\n%+v", tt.name, out, st.Foreign)
		}
		if tt.trace != "-" {
			out, code := w.Proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "10.96.0.10:80")
			if (code == nodetest.ExitDone) != tt.passes || !strings.Contains(out, tt.trace) {
				t.Errorf("%s: trace: exit %d, want %q in:\n%s", tt.name, code, tt.trace, out)
			}
		}
		wait := time.Second
		if tt.passes {
			wait = applytest.ReplyTimeout
		}
		if _, err := topo.Try("ext", "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), wait); tt.passes != (err == nil) {
			t.Errorf("%s: really: %v", tt.name, err)
		}
		w.Must(tt.undo)
		applytest.Until(t, time.Second, tt.name+", undone: a reply of the pod to the node", func() bool { // also to ARP
			_, err := topo.Try("node1", "tcp", 0, netip.MustParseAddrPort("10.244.1.10:8080"), time.Second)
			return err == nil
		})
	}
	w.Must("nft 'table ip6 m { chain c { type filter hook forward priority 0; policy drop; }; }'")
	const ignored = "not compared: foreign rules for packets of a family without Services: ip6 m chain c, hook forward, priority 0: policy drop\n"
	if out, code := w.Proxyc("prove", "ir", "kernel"); code != nodetest.ExitDone || !strings.Contains(out, ignored) {
		t.Errorf("prove: exit %d, want %q in:\n%s", code, ignored, out)
	}
	const unread = "info: the rules in this node's kernel are not read: --kernel follows them\n"
	if out, code := w.Proxyc("trace", "--from", "192.0.2.200", "--to", "10.96.0.10:80"); code != nodetest.ExitDone || !strings.Contains(out, unread) {
		t.Errorf("trace without --kernel: exit %d, want %q in:\n%s", code, unread, out)
	}
	w.Write("cluster.yaml", strings.NewReplacer("externalTrafficPolicy: Local, healthCheckNodePort: 32000, ", "").Replace(nodetest.NodePort)+"---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n")
	w.Must("until curl -s --unix-socket /run/proxyc/proxyc-$(stat -Lc %i /proc/self/ns/net).sock http://localhost/proxyc/ir | grep -q 30080; do :; done; " + address("192.0.2.11", "192.0.2.99"))
	for from, addr := range map[string]string{"ext": "192.0.2.200", "pod1b": "10.244.1.11", "node1": "node"} {
		out, code := w.Proxyc("trace", "--kernel", "--from", addr, "--to", "192.0.2.99:30080")
		passes := from != "ext"
		if (code == nodetest.ExitDone) != passes || strings.Contains(out, "not checked: 192.0.2.99 is the node's address by bindAddress or its Node object, and no interface has it") == passes {
			t.Errorf("to an outdated address of the Node from %s: exit %d:\n%s", from, code, out)
		}
		if _, err := topo.Try(from, "tcp", 0, netip.MustParseAddrPort("192.0.2.99:30080"), applytest.ReplyTimeout); passes != (err == nil) {
			t.Errorf("to an outdated address of the Node, really from %s: %v", from, err)
		}
	}
}
