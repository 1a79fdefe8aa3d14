package applytest

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newTopology(t testing.TB) *Topology {
	t.Helper()
	RequireRoot(t)
	topo, err := NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := topo.Close(); err != nil {
			t.Error(err)
		}
	})
	return topo
}

// TestTopologyWithoutRules sends queries over every kind of path of the topology. Without rules,
// every reply must come from the queried address and contain the sender's.
func TestTopologyWithoutRules(t *testing.T) {
	t.Parallel()
	topo := newTopology(t)
	tests := []struct {
		from, to string // address of the topology
		want     string
	}{
		{"pod1a", "10.244.1.11", "pod1b saw pod1a"},
		{"pod1a", "10.244.2.10", "pod2a saw pod1a"},
		{"pod1a", "10.244.1.1", "node1.cni0 saw pod1a"},
		{"pod1a", "192.0.2.11", "node1 saw pod1a"},
		{"pod1a", "192.0.2.200", "ext saw pod1a"},
		{"pod1c", "10.244.1.105", "pod1c.105 saw pod1c.105"},
		{"pod2c", "10.244.1.10", "pod1a saw pod2c"},
		{"node1", "10.244.1.10", "pod1a saw node1.cni0"},
		{"node1", "10.244.2.105", "pod2c.105 saw node1"},
		{"node1", "127.0.0.1", "loopback saw loopback"},
		{"node1", "192.0.2.12", "node2 saw node1"},
		{"ext", "192.0.2.11", "node1 saw ext"},
		{"ext.201", "192.0.2.12", "node2 saw ext.201"},
		{"ext.202", "10.244.2.11", "pod2b saw ext.202"},
		{"ext", "198.51.100.11", "node1.eth1 saw ext.eth1"},
		{"pod1a", "10.96.0.10", TimedOut},
		{"pod2a", "10.96.0.10", TimedOut},
		{"ext", "203.0.113.1", TimedOut},
	}
	for _, family := range []string{IPv4, IPv6} {
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			for _, tt := range tests {
				to := tt.to
				if family == IPv6 {
					to = Twin(to)
				}
				at := netip.AddrPortFrom(netip.MustParseAddr(to), 8080)
				timeout := ReplyTimeout
				if tt.want == TimedOut {
					timeout = 300 * time.Millisecond
				}
				a, err := topo.Try(tt.from, proto, 0, at, timeout)
				got := topo.Name(a.Server.Addr()) + " saw " + topo.Name(a.Client.Addr())
				if err != nil {
					got = Failure(err)
				}
				if got != tt.want {
					t.Errorf("%s -> %s/%s: %s, want %s", tt.from, at, proto, got, tt.want)
				}
			}
		}
	}
}

// TestTryRefused checks that a closed port is rejected by its host every time, since the limits of
// ICMP errors are off.
func TestTryRefused(t *testing.T) {
	t.Parallel()
	topo := newTopology(t)
	for _, to := range []string{"192.0.2.11:7", "[2001:db8:0:1::11]:7"} {
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			for range 20 {
				_, err := topo.Try("ext", proto, 0, netip.MustParseAddrPort(to), ReplyTimeout)
				if err == nil || Failure(err) != Refused {
					t.Fatalf("%s/%s: %v, want %s", to, proto, err, Refused)
				}
			}
		}
	}
}

// TestSourcePort checks that tries can reuse a source port, while other processes are started,
// which share open sockets for a moment.
func TestSourcePort(t *testing.T) {
	t.Parallel()
	topo := newTopology(t)
	to := netip.MustParseAddrPort("10.244.2.10:53")
	ctx, cancel := context.WithCancel(t.Context())
	var starts sync.WaitGroup
	defer starts.Wait()
	defer cancel()
	for range 4 {
		starts.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range Fewer(1000) {
		a, err := topo.Try("pod1a", "udp", 40001, to, ReplyTimeout)
		if want := netip.MustParseAddrPort("10.244.1.10:40001"); err != nil || a.Client != want {
			t.Errorf("client %s, %v; want %s", a.Client, err, want)
		}
	}
}

// TestNoTryIsLost checks that each of many concurrent tries gets its own reply. A lost one would be
// a false difference.
func TestNoTryIsLost(t *testing.T) {
	t.Parallel()
	topo := newTopology(t)
	to := netip.MustParseAddrPort("10.244.2.10:80")
	for _, proto := range []string{"tcp", "udp", "sctp"} {
		var wg sync.WaitGroup
		tokens := make(chan struct{}, 100)
		for range Fewer(12000) {
			tokens <- struct{}{}
			wg.Go(func() {
				defer func() { <-tokens }()
				if _, err := topo.Try("pod1a", proto, 0, to, ReplyTimeout); err != nil {
					t.Errorf("%s: %v", proto, err)
				}
			})
		}
		wg.Wait()
	}
}

// TestNamespaceIsolation checks that actions inside a namespace are not visible outside.
func TestNamespaceIsolation(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	home := netnsOf(t)
	ns, err := NewNamespace("apart")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.AddBridge("br0"); err != nil {
		t.Fatal(err)
	}
	var inside string
	if err := ns.Do(func() error { inside = netnsOf(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if inside == home {
		t.Errorf("Do ran in the namespace of the test, %s", home)
	}
	if diff := cmp.Diff(home, netnsOf(t)); diff != "" {
		t.Errorf("the test is in another namespace than before (-want +got):\n%s", diff)
	}
	out, err := ns.Run(ns.Command(context.Background(), "ls", "/proc/self/ns/net", "-l"))
	if err != nil || !strings.Contains(string(out), inside) {
		t.Errorf("command ran in %s, %v; want %s", out, err, inside)
	}
	if _, err := os.Stat("/sys/class/net/br0"); err == nil {
		t.Error("the bridge is visible outside")
	}
}

func netnsOf(t *testing.T) string {
	t.Helper()
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return link
}
