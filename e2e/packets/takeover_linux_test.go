package packets

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
)

const takeoverDir = "../../testdata/apply/takeover"

// recorded reads a file of takeoverDir. It removes nfacct matches, which require an object that
// only nfacct creates, and always match.
func recorded(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(takeoverDir, file))
	if err != nil {
		t.Fatal(err)
	}
	return nfacct.ReplaceAllString(string(data), "")
}

// firewall matches the lines of KUBE-FIREWALL.
var firewall = regexp.MustCompile(`(?m)^.*KUBE-FIREWALL.*\n`)

var nfacct = regexp.MustCompile(`-m nfacct --nfacct-name +\S+ `)

// A peer is a mode of kube-proxy, with a way to load its rules.
type peer struct {
	name  string
	marks bool // leaves objects that only kube-proxy creates: a canary, or a table
	load  func(m *machine)
}

func iptablesPeer(variant string) peer {
	return peer{"iptables-" + variant, true, func(m *machine) {
		m.t.Helper()
		for _, tool := range []string{"iptables", "ip6tables"} {
			text := recorded(m.t, "kube-proxy."+tool)
			if m.kubelet {
				text = firewall.ReplaceAllString(text, "")
			}
			m.tool(text, tool+"-"+variant+"-restore", "--noflush")
		}
	}}
}

// peers returns the modes that this kernel supports.
var peers = func() []peer {
	all := []peer{
		iptablesPeer("nft"),
		iptablesPeer("legacy"),
		{"nftables", true, func(m *machine) { m.t.Helper(); m.tool(recorded(m.t, "kube-proxy.nft"), "nft", "-f", "-") }},
	}
	if haveIPVS() {
		all = append(all, peer{"ipvs", false, func(m *machine) { m.t.Helper(); m.tool("", "sh", filepath.Join(takeoverDir, "ipvs", "load")) }})
	}
	return all
}()

// ofPeer contains words that only kube-proxy's rules contain.
var ofPeer = []string{"kube-proxy", "KUBE-PROXY-CANARY", "KUBE-SEP-IQIBSY2R4USWK4F3", "KUBE-SEP-SN6P7672PLX75ALS"}

// probeSpec is a short form of a Probe.
type probeSpec struct{ from, proto, to string }

func probesOf(questions []probeSpec) (probes []applytest.Probe) {
	for _, q := range questions {
		probes = append(probes, applytest.Probe{From: q.from, Proto: q.proto, To: netip.MustParseAddrPort(q.to)})
	}
	return probes
}

// takeoverProbes query every kind of frontend of the recorded cluster from every host.
var takeoverProbes = probesOf([]probeSpec{
	{"pod1b", "tcp", "10.96.0.10:80"},
	{"node1", "tcp", "10.96.0.10:80"},
	{"pod1b", "udp", "10.96.0.10:53"},
	{"pod1b", "tcp", "10.96.0.12:80"},
	{"ext", "tcp", "192.0.2.11:30080"},
	{"ext", "udp", "192.0.2.11:30053"},
	{"node1", "tcp", "192.0.2.11:30080"},
	{"ext", "tcp", "203.0.113.10:80"},
	{"ext", "tcp", "203.0.113.11:80"},
	{"ext", "tcp", "198.18.0.10:80"},
	{"pod1b", "tcp", "[fd00:10:96::10]:80"},
	{"node1", "udp", "[fd00:10:96::10]:53"},
	{"ext", "tcp", "[2001:db8:0:1::11]:30080"},
	{"ext", "tcp", "[2001:db8:203::10]:80"},
})

// controlProbes use no Service, so the machine causes their losses. They take the same paths as the
// others.
var controlProbes = probesOf([]probeSpec{
	{"pod1b", "tcp", "10.244.2.11:8080"},
	{"ext", "tcp", "10.244.1.11:8080"},
	{"node1", "tcp", "10.244.2.11:8080"},
	{"ext", "tcp", "[fd00:10:244:1::11]:8080"},
	{"ext", "udp", "10.244.1.11:5353"},
	{"pod1b", "udp", "[fd00:10:244:2::11]:5353"},
})

// noFailure fails the test for each failure of a load, and for a probe with too few tries.
func noFailure(t *testing.T, r applytest.LoadReport, controls []applytest.Probe) {
	t.Helper()
	tries := 0
	for p, n := range r.Tries {
		tries += n
		if n < 5 {
			t.Errorf("%s: only %d tries", p, n)
		}
	}
	gaps, slow := r.Gaps(controls)
	for i, f := range gaps {
		if i == 20 {
			t.Errorf("…")
			break
		}
		t.Errorf("%s (%s after the start)", f, f.At.Sub(r.Start).Round(time.Millisecond))
	}
	asked, troubled := 0, 0
	for _, p := range controls {
		asked += r.Tries[p]
	}
	for _, f := range append(slices.Clone(r.Failures), r.Late...) {
		if slices.Contains(controls, f.Probe) {
			troubled++
		}
	}
	if 2*troubled > asked && len(slow) > 0 {
		t.Errorf("the machine is too slow to distinguish gaps from its own: of %d queries without a Service %d were late or lost", asked, troubled)
	}
	t.Logf("%d connections, %d failures, %d lost together with controls, of which %d of %d were late or lost", tries, len(gaps), len(slow), troubled, asked)
}

// underLoad runs a load on the topology while f runs, and for some time before and after.
func underLoad(t *testing.T, topo *applytest.Topology, rate int, probes []applytest.Probe, f func()) {
	t.Helper()
	all := append(slices.Clone(probes), controlProbes...)
	load := topo.StartLoad(rate, all...)
	load.WaitTries(2)
	f()
	load.WaitTries(2)
	noFailure(t, load.Stop(), controlProbes)
}

// logStages logs when objects of mode ipvs and tables of nftables are added to and removed from a
// node, until stop is called. The log shows which step a failure belongs to.
func logStages(t *testing.T, node *applytest.Namespace) (stop func()) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(node.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	look := func() (s string) {
		if tables, err := conn.ListTables(); err == nil {
			var names []string
			for _, table := range tables {
				if strings.HasPrefix(table.Name, "proxyc") || strings.HasPrefix(table.Name, "kube-proxy") {
					names = append(names, table.Name)
				}
			}
			s = fmt.Sprintf("tables %v", names)
		}
		node.Do(func() error {
			servers, _ := os.ReadFile("/proc/thread-self/net/ip_vs")
			s += fmt.Sprintf(", %d virtual servers", strings.Count(string(servers), "\nTCP ")+strings.Count(string(servers), "\nUDP "))
			if link, err := net.InterfaceByName(ir.IPVSDevice); err == nil {
				addrs, _ := link.Addrs()
				s += fmt.Sprintf(", %d addresses of %s", len(addrs), link.Name)
			}
			return nil
		})
		return s
	}
	start, ended := time.Now(), make(chan struct{})
	var lines []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := ""
		for {
			at := time.Since(start)
			if now := look(); now != last {
				lines, last = append(lines, fmt.Sprintf("%s: %s", at.Round(time.Millisecond), now)), now
			}
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(ended)
		<-done
		t.Logf("stages, from %s on:\n%s", start.Format("15:04:05.000"), strings.Join(lines, "\n"))
	}
}

// udpClients returns clients that have queried Services of the recorded cluster, and keep their
// sockets, like resolvers.
func udpClients(t *testing.T, topo *applytest.Topology) (clients []*udpClient) {
	t.Helper()
	for _, p := range takeoverProbes {
		if p.Proto == "udp" {
			c := newUDPClient(t, topo, p.From, p.To)
			c.expectReply("before")
			clients = append(clients, c)
		}
	}
	return clients
}

// checkOpen sends queries over existing connections, and closes them.
func checkOpen(t *testing.T, open []*keptConn) {
	t.Helper()
	for _, k := range open {
		if err := k.query(); err != nil {
			t.Errorf("connection %s, open since before: %s", k.probe, applytest.Failure(err))
		}
		k.conn.Close()
	}
}

// TestTakeover checks that a node with kube-proxy's rules is taken over only on request. Every
// query is answered meanwhile, and open connections continue.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for i, from := range peers {
		t.Run(from.name, func(t *testing.T) {
			eachPlane(t, func(t *testing.T, to plane) {
				if to != planes[(i+2)%len(planes)] {
					applytest.Long(t)
				}
				topo := applytest.TopologyFor(t)
				m := newMachine(t, topo.Namespace("node1"))
				from.load(m)
				config, cluster := filepath.Join(takeoverDir, "config.yaml"), filepath.Join(takeoverDir, "cluster.yaml")
				before := m.dump()
				if from.marks {
					refused := m.must(2, m.apply(to, config, cluster))
					if !strings.Contains(refused.stderr, "--yes-takeover") || !strings.Contains(refused.stderr, "kube-proxy") {
						t.Errorf("the error does not state what to do: %s", refused)
					}
					m.same(before, "apply without --yes-takeover")
				}
				if r := m.must(1, m.apply(to, config, cluster, "--check")); r.stdout == "" {
					t.Errorf("no drift printed: %s", r)
				}
				m.same(before, "apply --check")

				keeping, open := udpClients(t, topo), keepOpen(t, topo, takeoverProbes)
				underLoad(t, topo, 40, takeoverProbes, func() {
					defer logStages(t, m.Namespace)()
					m.must(0, m.apply(to, config, cluster, "--yes-takeover"))
				})
				for _, c := range keeping {
					c.expectReply("after the takeover")
				}
				checkOpen(t, open)
				if to.mode != "ipvs" { // which uses the same names as kube-proxy
					m.lacks(ofPeer...)
				}
				m.must(0, m.apply(to, config, cluster, "--check"))
				m.must(0, m.apply(to, config, cluster))
			})
		})
	}
}

// TestModeChange checks the same for changes between all of proxyc's planes.
func TestModeChange(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	topo := applytest.TopologyFor(t)
	m := newMachine(t, topo.Namespace("node1"))
	config, cluster := filepath.Join(takeoverDir, "config.yaml"), filepath.Join(takeoverDir, "cluster.yaml")
	m.must(0, m.apply(planes[0], config, cluster))
	for i, from := range planes {
		for _, to := range planes[i+1:] {
			for j, step := range []struct{ from, to plane }{{from, to}, {to, from}} {
				t.Run(step.from.String()+" to "+step.to.String(), func(t *testing.T) {
					if j > 0 {
						applytest.Long(t)
					}
					m.must(0, m.apply(step.from, config, cluster))
					keeping, open := udpClients(t, topo), keepOpen(t, topo, takeoverProbes)
					underLoad(t, topo, 40, takeoverProbes, func() {
						defer logStages(t, m.Namespace)()
						m.must(0, m.apply(step.to, config, cluster))
					})
					for _, c := range keeping {
						c.expectReply("after the change")
					}
					checkOpen(t, open)
					m.must(0, m.apply(step.to, config, cluster, "--check"))
				})
			}
		}
	}
}
