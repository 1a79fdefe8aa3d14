package packets

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

// untilFastpath waits until the table of the fast path contains some words and not others.
func (m *machine) untilFastpath(want []string, without ...string) {
	m.t.Helper()
	applytest.Until(m.t, 0, fmt.Sprintf("the fast path has %q and none of %q", want, without), func() bool {
		out, err := m.Run(m.prepare("nft", "list", "table", "inet", "proxyc-fastpath"))
		has := func(word string) bool { return strings.Contains(string(out), word) }
		return err == nil && !slices.ContainsFunc(without, has) && !slices.ContainsFunc(want, func(w string) bool { return !has(w) })
	})
}

// untilRules waits until the tables of both families exist.
func (m *machine) untilRules() {
	m.t.Helper()
	applytest.Until(m.t, 0, "the tables of both families exist", func() bool {
		tables := m.tool("", "nft", "list", "tables")
		return strings.Contains(tables, "table ip proxyc\n") && strings.Contains(tables, "table ip6 proxyc\n")
	})
}

// awaitReply waits for the reply to a lost query. TCP retransmits the query several times, and
// doubles the wait each time.
func (k *keptConn) awaitReply() error {
	if err := k.conn.SetDeadline(time.Now().Add(applytest.ScaledTimeout(applytest.ConnTimeout))); err != nil {
		return err
	}
	return k.same(applytest.ReadAnswer(k.conn))
}

// TestFastpath checks connections through a flowtable, which bypass the rules in forward. They
// behave as without it: TCP keeps its backend, and UDP leaves a removed one immediately. Added and
// removed interfaces are followed, foreign changes are repaired, and disabling the fast path
// removes it. No connection is affected.
func TestFastpath(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	topo := applytest.TopologyFor(t)
	m := newMachine(t, topo.Namespace("node1"))
	applytest.RequireFlowtable(t, m.Namespace)
	// br_netfilter, if another test has loaded it, translates packets from a bridge before the
	// flowtable.
	m.tool("", "sh", "-c", "for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do [ ! -e $f ] || echo 0 > $f; done")
	config, _ := takeoverFiles()
	service := func(pods ...string) world {
		return world{1: {Type: "LoadBalancer", Families: []string{applytest.IPv4, applytest.IPv6}, Protocols: []string{"TCP", "UDP"}, Endpoints: pods, Ranges: []string{"192.0.2.200/30", "2001:db8:0:1::/64"}}}
	}
	file := m.file("snapshot.json", service("pod1a").snapshot(t))
	start := func(args ...string) applytest.Daemon {
		t.Helper()
		d, err := applytest.ProxycWatch(m.binary, args...)(t.Context(), m.Namespace, config, file, "nftables")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	fast := []string{"--nftables-fastpath", "cni0,eth*", "--nftables-fastpath-packets", "6"}
	d := start(fast...)
	all := []string{"hook ingress priority filter", `"cni0"`, `"eth0"`, `"eth1"`, "type filter hook forward priority 300; policy accept;",
		"ct status dnat ct state established ct direction reply ct packets > 6 flow add @fastpath"}
	unquote := func(words []string) (out []string) { // nft 1.0.6 prints names without quotes
		for _, w := range words {
			out = append(out, strings.ReplaceAll(w, `"`, ""))
		}
		return out
	}
	m.untilFastpath(unquote(all))

	var probes []applytest.Probe
	var udp []*udpClient
	var far []string // connections of clients on other machines, whose packets are forwarded, in the format of conntrack
	tracked := func(c net.Conn) string {
		from, to := applytest.AddrPort(c.LocalAddr()), applytest.AddrPort(c.RemoteAddr())
		return fmt.Sprintf(" src=%s dst=%s sport=%d dport=%d ", from.Addr(), to.Addr(), from.Port(), to.Port())
	}
	for _, f := range []string{applytest.IPv4, applytest.IPv6} {
		lan := map[string]string{applytest.IPv4: "192.0.2.11", applytest.IPv6: "2001:db8:0:1::11"}[f]
		probes = append(probes, applytest.Probe{From: "pod1b", Proto: "tcp", To: to(clusterIP(1, f), 80)}, applytest.Probe{From: "ext", Proto: "tcp", To: to(vip(1, f), 80)},
			applytest.Probe{From: "ext", Proto: "tcp", To: to(lan, nodePort(1, "TCP"))}, applytest.Probe{From: "pod1a", Proto: "tcp", To: to(clusterIP(1, f), 80)}, applytest.Probe{From: "node1", Proto: "tcp", To: to(clusterIP(1, f), 80)})
		udp = append(udp, newUDPClient(t, topo, "pod1b", to(clusterIP(1, f), 53)), newUDPClient(t, topo, "ext", to(vip(1, f), 53)),
			newUDPClient(t, topo, "ext", to(lan, nodePort(1, "UDP"))), newUDPClient(t, topo, "node1", to(clusterIP(1, f), 53)))
	}
	open := keepOpen(t, topo, probes)
	stillOpen := func() {
		t.Helper()
		for _, k := range open {
			if err := k.query(); err != nil {
				t.Fatalf("connection %s: %v", k.probe, err)
			}
		}
	}
	exchange := func(n int, pod string) {
		t.Helper()
		for range n {
			stillOpen()
			for _, c := range udp {
				c.expect(pod)
			}
		}
	}
	for _, k := range open {
		if k.probe.From != "node1" {
			far = append(far, tracked(k.conn))
		}
	}
	for i, c := range udp {
		if i%4 != 3 {
			far = append(far, tracked(c.conn))
		}
	}
	offloaded := func() {
		t.Helper()
		entries := m.tool("", "conntrack", "-L", "-f", "ipv4") + m.tool("", "conntrack", "-L", "-f", "ipv6")
		for _, one := range far {
			at := strings.Index(entries, one)
			if line, _, _ := strings.Cut(entries[max(at, 0):], "\n"); at < 0 || !strings.Contains(line, "[OFFLOAD]") {
				t.Errorf("not in the flowtable:%s in\n%s", one, entries)
			}
		}
	}
	exchange(10, "pod1a")
	offloaded()
	// pastForward waits for ten exchanges without a packet in the rules in forward. The kernel removes
	// flows from the flowtable when routes or addresses change, and adds them again later.
	pastForward := func() {
		t.Helper()
		var seen string
		for end := time.Now().Add(applytest.ScaledTimeout(20 * time.Second)); time.Now().Before(end); {
			m.tool(`table inet seen { chain forward { type filter hook forward priority -10; ct status dnat counter comment "seen"; }; }`, "nft", "-f", "/dev/stdin")
			exchange(10, "pod1a")
			seen = m.tool("", "nft", "list", "table", "inet", "seen")
			m.tool("", "nft", "delete", "table", "inet", "seen")
			if strings.Contains(seen, "packets 0 ") {
				return
			}
		}
		t.Errorf("packets of the fast path meet rules in forward:\n%s", seen)
	}
	pastForward()
	table := func() string {
		t.Helper()
		line, _, _ := strings.Cut(m.tool("", "nft", "-a", "list", "table", "inet", "proxyc-fastpath"), "\n")
		return line
	}
	is := table()
	m.tool("", "nft", "add", "rule", "ip", "proxyc", "services", "counter", "comment", "foreign")
	applytest.Until(t, 0, "a foreign rule is removed", func() bool {
		return !strings.Contains(m.tool("", "nft", "list", "chain", "ip", "proxyc", "services"), "foreign")
	})
	m.tool("", "ip", "link", "add", "eth6", "type", "dummy")
	m.untilFastpath([]string{"eth6"})
	m.tool("", "ip", "link", "delete", "eth6")
	m.untilFastpath(nil, "eth6")
	if now := table(); now != is {
		t.Errorf("an unchanged table is recreated when ours are compared: %s, was %s", now, is)
	}
	m.tool("", "ip", "route", "add", "203.0.113.128/25", "dev", "cni0")
	m.tool("", "ip", "-6", "route", "add", "2001:db8:ffff::/48", "dev", "cni0")
	pastForward()
	offloaded()
	update := func(w world) {
		t.Helper()
		file = m.file("snapshot.json", w.snapshot(t))
		if err := d.Update(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}

	// Flows in the flowtable follow their Service.
	update(service("pod2a"))
	exchange(10, "pod2a")
	offloaded()
	update(service())
	udp[0].expect(applytest.Refused)
	stillOpen()
	update(service("pod1c"))
	exchange(10, "pod1c")

	// The source ranges of a Service apply: the first packets, up to the threshold, pass the rules.
	if a, err := topo.Try("ext", "tcp", 0, to(vip(1, applytest.IPv4), 80), applytest.ReplyTimeout); err != nil {
		t.Errorf("from within the ranges: %v, %v", a, err)
	}

	// Interfaces are added and removed.
	m.tool("", "ip", "link", "add", "eth7", "type", "dummy")
	m.untilFastpath([]string{"eth7"})
	m.tool("", "ip", "link", "set", "eth7", "name", "other7")
	m.tool("", "ip", "link", "set", "other7", "name", "eth8")
	m.untilFastpath([]string{"eth8"}, "eth7")
	m.tool("", "ip", "link", "delete", "eth8")
	m.untilFastpath(nil, "eth8")
	m.tool("", "ip", "link", "add", "eth8", "type", "dummy")
	m.untilFastpath([]string{"eth8"})
	exchange(3, "pod1c")

	// Another program removes only our rules, and routes change. While the kernel does not translate,
	// packets of a connection take the normal path, to the Service's own address. The connection must
	// not keep that path.
	is = table()
	signal := func(s os.Signal) {
		t.Helper()
		if err := d.(interface{ Signal(os.Signal) error }).Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(unix.SIGSTOP)
	for _, family := range []string{"ip", "ip6"} {
		m.tool("", "nft", "delete", "table", family, "proxyc")
	}
	m.tool("", "ip", "route", "add", "203.0.113.64/26", "dev", "cni0")
	m.tool("", "ip", "-6", "route", "add", "fd00:10:244:1::ff/128", "dev", "cni0") // IPv6 only considers routes within the one in use
	// On its own address the node rejects untranslated packets, which ends a connection, with or
	// without a fast path.
	lost := slices.DeleteFunc(slices.Clone(open), func(k *keptConn) bool { return k.probe.From == "node1" || k.probe.To.Port() != 80 })
	var asked sync.WaitGroup
	for _, k := range lost {
		asked.Go(func() {
			if a, err := applytest.Query(k.conn, applytest.ScaledTimeout(250*time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("connection %s without rules: %v, %v", k.probe, a, err)
			}
		})
	}
	asked.Wait()
	signal(unix.SIGCONT)
	m.untilRules()
	for _, k := range lost {
		if err := k.awaitReply(); err != nil {
			t.Errorf("connection %s, queried without rules: %v", k.probe, err)
		}
	}
	if now := table(); now != is {
		t.Errorf("an unchanged table is recreated when ours are repaired: %s, was %s", now, is)
	}
	exchange(10, "pod1c")
	offloaded()

	// Another program removes everything. Queries before our rules are restored are lost, and UDP does
	// not retransmit.
	m.tool("", "nft", "flush", "ruleset")
	m.untilFastpath(unquote(all))
	m.untilRules()
	exchange(10, "pod1c")
	offloaded()
	m.tool("", "nft", "delete", "table", "inet", "proxyc-fastpath")
	exchange(3, "pod1c")
	m.tool("", "ip", "link", "add", "eth9", "type", "dummy") // the next notification shows that the table is missing
	m.untilFastpath(append(unquote(all), "eth9"))
	m.must(0, m.apply(plane{mode: "nftables"}, config, file, "--check"))
	exchange(10, "pod1c")

	// The table outlives the daemon, and is removed by one without a fast path.
	stop := func() {
		t.Helper()
		if err := d.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	exchange(10, "pod1c")
	offloaded()
	d = start()
	applytest.Until(t, 0, "a daemon without a fast path removes it", func() bool { return !strings.Contains(m.tool("", "nft", "list", "tables"), "fastpath") })
	exchange(10, "pod1c")
	stop()
	d = start(fast...)
	m.untilFastpath(unquote(all))
	stop()
	m.must(0, m.proxyc("cleanup"))
	if tables := m.tool("", "nft", "list", "tables"); strings.Contains(tables, "proxyc") {
		t.Errorf("cleanup leaves %s", tables)
	}
}
