package applytest

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const takeoverDir = "../../testdata/apply/takeover"

// recorded reads a file of takeoverDir. Matches that count with nfacct are left out: they need an object
// that only nfacct makes, and match always.
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

// A peer is a mode of kube-proxy, and how its rules get onto a machine.
type peer struct {
	name  string
	marks bool // leaves what only kube-proxy makes: a canary, or a table
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

// peers are those of the modes that this kernel has.
var peers = func() []peer {
	all := []peer{
		iptablesPeer("nft"),
		iptablesPeer("legacy"),
		{"nftables", true, func(m *machine) { m.t.Helper(); m.tool(recorded(m.t, "kube-proxy.nft"), "nft", "-f", "-") }},
	}
	if haveIPVS() == nil {
		all = append(all, peer{"ipvs", false, func(m *machine) { m.t.Helper(); m.tool("", "sh", filepath.Join(takeoverDir, "ipvs", "load")) }})
	}
	return all
}()

// ofPeer are words of which only kube-proxy's rules have any.
var ofPeer = []string{"kube-proxy", "KUBE-PROXY-CANARY", "KUBE-SEP-IQIBSY2R4USWK4F3", "KUBE-SEP-SN6P7672PLX75ALS"}

// takeoverProbes ask every kind of frontend of the recorded cluster from everywhere.
var takeoverProbes = func() (probes []Probe) {
	for _, p := range []struct{ from, proto, to string }{
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
	} {
		probes = append(probes, Probe{p.from, p.proto, netip.MustParseAddrPort(p.to)})
	}
	return probes
}()

// noFailure fails the test for each failure of a load, and for a probe that hardly asked.
func noFailure(t *testing.T, r LoadReport) {
	t.Helper()
	tries := 0
	for p, n := range r.Tries {
		tries += n
		if n < 5 {
			t.Errorf("%s: only %d tries", p, n)
		}
	}
	for i, f := range r.Failures {
		if i == 20 {
			t.Errorf("and so on")
			break
		}
		t.Errorf("%s (%s after the start)", f, f.At.Sub(r.Start).Round(time.Millisecond))
	}
	t.Logf("%d connections, %d failures", tries, len(r.Failures))
}

// during puts a load on the topology while f runs, and some time before and after.
func during(t *testing.T, topo *Topology, rate int, probes []Probe, f func()) {
	t.Helper()
	load := topo.StartLoad(max(1, int(time.Duration(rate)*time.Second/Patience(time.Second))), probes...)
	waitUntil(t, time.Now().Add(200*time.Millisecond))
	f()
	waitUntil(t, time.Now().Add(200*time.Millisecond))
	noFailure(t, load.Stop())
}

// udpClients have asked Services of the recorded cluster, and keep their sockets, as resolvers do.
func udpClients(t *testing.T, topo *Topology) (clients []*udpClient) {
	t.Helper()
	for _, p := range takeoverProbes {
		if p.Proto == "udp" {
			c := newUDPClient(t, topo, p.From, p.To)
			c.expectAnswer("before")
			clients = append(clients, c)
		}
	}
	return clients
}

// TestTakeover: a node with kube-proxy's rules is taken over only if that is said, and then without a
// moment in which anything is not answered.
func TestTakeover(t *testing.T) {
	for _, from := range peers {
		t.Run(from.name, func(t *testing.T) {
			eachPlane(t, func(t *testing.T, to plane) {
				topo := newTopology(t)
				m := newMachine(t, topo.Namespace("node1"))
				from.load(m)
				config, cluster := filepath.Join(takeoverDir, "config.yaml"), filepath.Join(takeoverDir, "cluster.yaml")
				before := m.dump()
				if from.marks {
					refused := m.must(2, m.apply(to, config, cluster))
					if !strings.Contains(refused.stderr, "--yes-takeover") || !strings.Contains(refused.stderr, "kube-proxy") {
						t.Errorf("not told what to do: %s", refused)
					}
					m.same(before, "apply without --yes-takeover")
				}
				if r := m.must(1, m.apply(to, config, cluster, "--check")); r.stdout == "" {
					t.Errorf("no drift printed: %s", r)
				}
				m.same(before, "apply --check")

				keeping := udpClients(t, topo)
				during(t, topo, 40, takeoverProbes, func() {
					m.must(0, m.apply(to, config, cluster, "--yes-takeover"))
				})
				for _, c := range keeping {
					c.expectAnswer("after the takeover")
				}
				if to.mode != "ipvs" { // which has kube-proxy's words
					m.lacks(ofPeer...)
				}
				m.must(0, m.apply(to, config, cluster, "--check"))
				m.must(0, m.apply(to, config, cluster))
			})
		})
	}
}

// TestModeChange: so does a node go from each way in which proxyc keeps its rules to each other.
func TestModeChange(t *testing.T) {
	RequireRoot(t)
	topo := newTopology(t)
	m := newMachine(t, topo.Namespace("node1"))
	config, cluster := filepath.Join(takeoverDir, "config.yaml"), filepath.Join(takeoverDir, "cluster.yaml")
	m.must(0, m.apply(planes[0], config, cluster))
	for i, from := range planes {
		for _, to := range planes[i+1:] {
			for _, step := range []struct{ from, to plane }{{from, to}, {to, from}} {
				t.Run(step.from.String()+" to "+step.to.String(), func(t *testing.T) {
					m.must(0, m.apply(step.from, config, cluster))
					keeping := udpClients(t, topo)
					during(t, topo, 40, takeoverProbes, func() {
						m.must(0, m.apply(step.to, config, cluster))
					})
					for _, c := range keeping {
						c.expectAnswer("after the change")
					}
					m.must(0, m.apply(step.to, config, cluster, "--check"))
				})
			}
		}
	}
}
