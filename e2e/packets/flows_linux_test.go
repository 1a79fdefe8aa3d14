package packets

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// TestStaleFlows checks that a UDP client that keeps its socket follows its Service, for each kind
// of frontend. Entries for Services without endpoints, and for removed ones, are deleted. Foreign
// entries stay.
func TestStaleFlows(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		topo := applytest.TopologyFor(t)
		m := newMachine(t, topo.Namespace("node1"))
		config, _ := takeoverFiles()
		at := func(w world, flags ...string) ran {
			t.Helper()
			return m.must(0, m.apply(p, config, m.file("snapshot.json", w.snapshot(t)), flags...))
		}
		service := func(pods ...string) *worldService {
			return &worldService{Type: "LoadBalancer", Families: []string{applytest.IPv4, applytest.IPv6}, Protocols: []string{"UDP"}, Endpoints: pods}
		}
		at(world{1: service("pod1a"), 2: service("pod1a")})
		clients := []*udpClient{
			newUDPClient(t, topo, "pod1b", to(clusterIP(1, applytest.IPv4), 53)),
			newUDPClient(t, topo, "pod1b", to(clusterIP(1, applytest.IPv6), 53)),
			newUDPClient(t, topo, "node1", to(clusterIP(1, applytest.IPv4), 53)),
			newUDPClient(t, topo, "ext", to(vip(1, applytest.IPv4), 53)),
			newUDPClient(t, topo, "ext", to("192.0.2.11", nodePort(1, "UDP"))),
			newUDPClient(t, topo, "ext", to("2001:db8:0:1::11", nodePort(1, "UDP"))),
		}
		steady := newUDPClient(t, topo, "pod1b", to(clusterIP(2, applytest.IPv4), 53))
		direct := newUDPClient(t, topo, "ext", to("10.244.1.10", 53))
		for _, c := range append(clients, steady, direct) {
			c.expect("pod1a")
		}

		moved := world{1: service("pod2a"), 2: service("pod1a", "pod2a")}
		for _, flags := range [][]string{{"--dry-run"}, {}} {
			clients[0].expect("pod1a")
			r := at(moved, flags...)
			if n := strings.Count(r.stdout, "delete flow "); n != len(clients) {
				t.Errorf("%d flows to delete, want %d: %s", n, len(clients), r)
			}
		}
		for _, c := range clients {
			c.expect("pod2a")
		}
		steady.expect("pod1a")
		direct.expect("pod1a")

		at(world{1: service(), 2: service("pod1a")})
		m.noFlows(clusterIP(1, applytest.IPv4), vip(1, applytest.IPv4), clusterIP(1, applytest.IPv6), "dport="+strconv.Itoa(nodePort(1, "UDP")))
		clients[0].expect(applytest.Refused)
		at(world{1: service("pod1c"), 2: service("pod1a")})
		for _, c := range clients {
			c.expect("pod1c")
		}
		steady.expect("pod1a")

		at(world{1: service("pod1c")})
		m.noFlows(clusterIP(2, applytest.IPv4))
		at(world{}, "--allow-empty")
		m.noFlows(clusterIP(1, applytest.IPv4), vip(1, applytest.IPv4), clusterIP(1, applytest.IPv6), "dport="+strconv.Itoa(nodePort(1, "UDP")))
		direct.expect("pod1a")
		if flows := m.flows(applytest.IPv4); !strings.Contains(flows, "dst=10.244.1.10 ") {
			t.Errorf("a flow that is none of ours is gone:\n%s", flows)
		}
	})
}

// TestDrainingFlows checks that a UDP client keeps a terminating endpoint while it serves, also
// after new clients are no longer sent there. New clients use other endpoints.
func TestDrainingFlows(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		topo := applytest.TopologyFor(t)
		m := newMachine(t, topo.Namespace("node1"))
		config, _ := takeoverFiles()
		at := func(s worldService) {
			t.Helper()
			s.Type, s.Families, s.Protocols = "LoadBalancer", []string{applytest.IPv4, applytest.IPv6}, []string{"UDP"}
			m.must(0, m.apply(p, config, m.file("snapshot.json", world{1: &s}.snapshot(t))))
		}
		newClients := func() []*udpClient {
			return []*udpClient{
				newUDPClient(t, topo, "pod1b", to(clusterIP(1, applytest.IPv4), 53)),
				newUDPClient(t, topo, "pod1b", to(clusterIP(1, applytest.IPv6), 53)),
				newUDPClient(t, topo, "ext", to(vip(1, applytest.IPv4), 53)),
				newUDPClient(t, topo, "ext", to("192.0.2.11", nodePort(1, "UDP"))),
			}
		}
		expect := func(clients []*udpClient, pod string) {
			t.Helper()
			for _, c := range clients {
				c.expect(pod)
			}
		}
		at(worldService{Endpoints: []string{"pod2a"}})
		old := newClients()
		expect(old, "pod2a")

		at(worldService{Endpoints: []string{"pod1a"}, Draining: []string{"pod2a"}})
		young := newClients()
		expect(young, "pod1a")
		expect(old, "pod2a")
		at(worldService{Endpoints: []string{"pod1a", "pod2a"}, ExternalLocal: true, InternalLocal: true})
		expect(old, "pod2a")
		expect(newClients(), "pod1a")

		at(worldService{Endpoints: []string{"pod1a"}})
		expect(old, "pod1a")
		expect(young, "pod1a")
	})
}

// TestExcludedFlows checks that a UDP client without replies reaches no backend after the source
// ranges exclude it, in each mode. In mode nftables the rules see each of its packets as a first
// one. In the other modes its entry is deleted. A client with replies keeps its flow, like a
// connection. Mode ipvs checks each packet.
func TestExcludedFlows(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		topo := applytest.TopologyFor(t)
		m := newMachine(t, topo.Namespace("node1"))
		config, _ := takeoverFiles()
		admit := func(ranges ...string) {
			t.Helper()
			s := worldService{Type: "LoadBalancer", Families: []string{applytest.IPv4, applytest.IPv6}, Protocols: []string{"UDP"}, Endpoints: []string{"pod1a"}, Ranges: ranges}
			m.must(0, m.apply(p, config, m.file("snapshot.json", world{1: &s}.snapshot(t))))
		}
		pod := topo.Namespace("pod1a")
		mute := pod.Command(context.Background(), "nft", "-f", "-")
		mute.Stdin = strings.NewReader(`table inet mute {
			chain in { type filter hook input priority 0; @th,64,32 0x7368757e counter drop; }
		}`)
		if out, err := pod.Run(mute); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		arrived := func() int {
			t.Helper()
			out, err := pod.Run(pod.Command(context.Background(), "nft", "list", "chain", "inet", "mute", "in"))
			var n int
			_, after, _ := strings.Cut(string(out), "packets ")
			if _, scanned := fmt.Sscan(after, &n); err != nil || scanned != nil {
				t.Fatalf("%v, %v: %s", err, scanned, out)
			}
			return n
		}
		fence := newUDPClient(t, topo, "ext", to(clusterIP(1, applytest.IPv4), 53))
		admit("192.0.2.0/24", "2001:db8:0:1::/64")
		var silent, answered []*udpClient
		for _, family := range []string{applytest.IPv4, applytest.IPv6} {
			silent = append(silent, newUDPClient(t, topo, "ext", to(vip(1, family), 53)))
			answered = append(answered, newUDPClient(t, topo, "ext", to(vip(1, family), 53)))
		}
		send := func() (reached int) {
			t.Helper()
			before := arrived()
			for _, c := range silent {
				if _, err := c.conn.Write([]byte("shu~")); err != nil { // dropped by the pod
					t.Fatal(err)
				}
			}
			fence.expect("pod1a") // which follows them
			return arrived() - before
		}
		for _, c := range answered {
			c.expect("pod1a")
		}
		for range 2 { // the second uses the entry of the first
			if n := send(); n != len(silent) {
				t.Fatalf("%d of %d packets reach the pod", n, len(silent))
			}
		}
		admit("198.51.100.0/24", "2001:db8:5::/64")
		if n := send(); n != 0 {
			t.Errorf("%d packets of clients that are shut out reach the pod", n)
		}
		for _, c := range answered {
			if p.mode != "ipvs" {
				c.expect("pod1a")
			}
		}
		admit("192.0.2.0/24", "2001:db8:0:1::/64")
		if n := send(); n != len(silent) {
			t.Errorf("%d of %d packets reach the pod when the clients are admitted again", n, len(silent))
		}
	})
}

// A udpClient keeps one socket.
type udpClient struct {
	t    *testing.T
	topo *applytest.Topology
	conn net.Conn
}

func newUDPClient(t *testing.T, topo *applytest.Topology, from string, to netip.AddrPort) *udpClient {
	t.Helper()
	ns, addr, err := topo.Source(from, to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := ns.Dial(context.Background(), "udp", netip.AddrPortFrom(addr, 0), to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &udpClient{t, topo, conn}
}

// expect sends a query, and expects a reply from a pod, or a failure.
func (c *udpClient) expect(want string) {
	c.t.Helper()
	wait := applytest.ReplyTimeout
	if want == applytest.TimedOut {
		wait = applytest.ScaledTimeout(time.Second)
	}
	a, err := applytest.Query(c.conn, wait)
	got := c.topo.Name(a.Server.Addr())
	if err != nil {
		got = applytest.Failure(err)
	}
	if got != want {
		c.t.Errorf("%s -> %s: %s, want %s", c.conn.LocalAddr(), c.conn.RemoteAddr(), got, want)
	}
}

// expectReply sends a query, and expects a reply from any pod.
func (c *udpClient) expectReply(when string) {
	c.t.Helper()
	if _, err := applytest.Query(c.conn, applytest.ReplyTimeout); err != nil {
		c.t.Errorf("%s: %s -> %s: %s", when, c.conn.LocalAddr(), c.conn.RemoteAddr(), applytest.Failure(err))
	}
}

// flows lists the tracked UDP flows of the machine.
func (m *machine) flows(family string) string {
	m.t.Helper()
	return m.tool("", "conntrack", "-L", "-p", "udp", "-f", family)
}

// noFlows fails the test if there are translated flows to the addresses.
func (m *machine) noFlows(words ...string) {
	m.t.Helper()
	for _, family := range []string{applytest.IPv4, applytest.IPv6} {
		for line := range strings.Lines(m.flows(family)) {
			for _, w := range words {
				if strings.Contains(line, w+" ") {
					m.t.Errorf("still there: %s", line)
				}
			}
		}
	}
}

// A connection that began before the rules succeeds: the kernel tracks it without a translation, and
// shows the rules of mode nftables only the first packet of a connection.
func TestConnectionBeforeRules(t *testing.T) {
	t.Parallel()
	topo := applytest.TopologyFor(t)
	m := newMachine(t, topo.Namespace("node1"))
	m.tool("table inet tracking { chain forwarded { type filter hook forward priority 0; ct state invalid counter; }; }", "nft", "-f", "-")
	began := make(chan error, 2)
	families := []string{applytest.IPv4, applytest.IPv6}
	for _, family := range families {
		go func() {
			a, err := topo.Try("pod1b", "tcp", 0, to(clusterIP(0, family), 80), 2*time.Minute) // sent again after 1, 3, 7, 15, 31 and 63 s
			if err == nil && a.Server.Addr() != netip.MustParseAddr(podAddr("pod1a", family)) {
				err = fmt.Errorf("%s: answered by %s", family, a.Server)
			}
			began <- err
		}()
	}
	for _, family := range families {
		for deadline := time.Now().Add(applytest.ScaledTimeout(10 * time.Second)); !strings.Contains(m.tool("", "conntrack", "-L", "-p", "tcp", "-f", family), "UNREPLIED"); {
			if time.Now().After(deadline) {
				t.Fatal("no connection began")
			}
		}
	}
	m.must(0, m.apply(plane{mode: "nftables"}, filepath.Join(takeoverDir, "config.yaml"), m.file("snapshot.json", stableServices().snapshot(t))))
	for range families {
		if err := <-began; err != nil {
			t.Error(err)
		}
	}
}
