package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// A side is a way in which one of the two proxies maintains a node's rules.
type side struct {
	name    string
	mode    string
	variant string // of iptables
}

var (
	sideNFTables = side{"nftables", "nftables", ""}
	sideNFT      = side{"iptables-nft", "iptables", "nft"}
	sideLegacy   = side{"iptables-legacy", "iptables", "legacy"}
)

// takeovers are kube-proxy's ways, and those of proxyc that replace them.
var takeovers = []struct {
	peer, proxyc side
	long         bool // run with -tags all
}{
	{sideNFTables, sideNFTables, true},
	{sideNFT, sideNFT, false},
	{sideLegacy, sideLegacy, true},
	{sideNFT, sideNFTables, true},
	{sideLegacy, sideNFTables, false},
	{sideNFTables, sideNFT, true},
}

// manyServices is more than proxyc's chains in mode iptables contain without a tree.
const manyServices = 70

// TestTakeover changes from kube-proxy to proxyc on a running node, and back. Meanwhile no open
// or new connection fails. After each takeover the new proxy applies changes of Services.
func TestTakeover(t *testing.T) {
	t.Parallel()
	peer, err := kube.Tool(t.Context(), kube.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range takeovers {
		t.Run(way.peer.name+" to "+way.proxyc.name, func(t *testing.T) {
			if way.long {
				applytest.Long(t)
			}
			parallel(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			objects := []kube.Object{dropinNode()}
			for i := range manyServices {
				objects = append(objects, nodePortService(i), slice(name(i), "10.244.1.10", "10.244.2.10"))
			}
			put(ctx, t, objects...)
			t.Cleanup(func() { clusterOf(t).DeleteAll(context.WithoutCancel(ctx)) })
			topo, err := applytest.NewTopology()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { topo.Close() })
			n := &switched{node: nodeIn(t, topo.Namespace("node1")), t: t, topo: topo, binary: map[bool]string{true: peer, false: proxyc}}

			running := n.start(ctx, true, way.peer)
			n.awaitChanges(ctx, running)
			open := n.open(ctx)
			load := topo.StartLoad(20, append(n.probes(), controls...)...)

			n.stop(running)
			running = n.start(ctx, false, way.proxyc)
			n.awaitChanges(ctx, running)
			n.checkConnections(open, "after proxyc has started")

			back := load
			if way.peer.mode == "nftables" && way.proxyc.mode == "iptables" {
				// kube-proxy removes all rules of other modes before it writes its own.
				n.noFailure(load.Stop())
				back = nil
			}
			n.stop(running)
			if _, err := n.Run(n.Command(ctx, proxyc, "cleanup", "--keep-kube-proxy")); err == nil {
				t.Error("all rules of the node were removed before kube-proxy had written any")
			}
			running = n.start(ctx, true, way.peer)
			n.cleanUp(ctx)
			n.awaitChanges(ctx, running)
			n.checkConnections(open, "after kube-proxy is back")
			n.lacks(ctx, "proxyc", "KUBE-SVCS-", "KUBE-NPS-", "KUBE-HAIRPIN")
			if back != nil {
				n.noFailure(back.Stop())
			}
		})
	}
}

// switched is a node on which one proxy replaces the other.
type switched struct {
	*node
	t      *testing.T
	topo   *applytest.Topology
	binary map[bool]string // of kube-proxy, of proxyc
	update int
}

// name, clusterIP and nodePort return those of the i-th Service.
func name(i int) string      { return fmt.Sprintf("takeover-%d", i) }
func clusterIP(i int) string { return fmt.Sprintf("10.96.3.%d", i+1) }
func nodePort(i int) int     { return 31000 + i }

func nodePortService(i int) kube.Object {
	s := service(name(i), clusterIP(i))
	s["spec"] = kube.Object{"type": "NodePort", "clusterIP": clusterIP(i),
		"ports": []any{kube.Object{"port": 80, "targetPort": 8080, "nodePort": nodePort(i)}}}
	return s
}

// probes returns probes of the first and the last Service.
func (n *switched) probes() (probes []applytest.Probe) {
	for _, i := range []int{0, manyServices - 1} {
		vip := netip.AddrPortFrom(netip.MustParseAddr(clusterIP(i)), 80)
		external := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.11"), uint16(nodePort(i)))
		probes = append(probes,
			applytest.Probe{From: "pod1b", Proto: "tcp", To: vip},
			applytest.Probe{From: "node1", Proto: "tcp", To: vip},
			applytest.Probe{From: "ext", Proto: "tcp", To: external})
	}
	return probes
}

// start starts kube-proxy or proxyc, in kubeadm's container except for the mode, and waits until
// it has synced.
func (n *switched) start(ctx context.Context, peer bool, s side) *kube.Proxy {
	n.t.Helper()
	c := n.container(n.t, n.binary[peer], kube.KubeProxyUser)
	conf := filepath.Join(c.Files[filepath.Dir(configDir)], filepath.Base(configDir), "config.conf")
	text := strings.Replace(configFiles(n.t)["config.conf"], `mode: ""`, "mode: "+s.mode, 1)
	text = strings.ReplaceAll(text, "minSyncPeriod: 0s", "minSyncPeriod: 100ms")
	text = strings.ReplaceAll(text, "nodePortAddresses: null", "nodePortAddresses: [192.0.2.0/24]")
	writeFile(n.t, conf, text)
	if s.variant == "legacy" {
		c.Env = append(c.Env, "PATH="+n.tools(s.variant)+":"+os.Getenv("PATH"))
	}
	role := map[bool]string{true: "kube-proxy", false: "proxyc"}[peer]
	p := n.runAs(n.t, role, c, peerPath, "--config="+configDir+"/config.conf", "--hostname-override=node1", "--v=2")
	eventually(n.t, 20*time.Second, role+" syncs", func() error {
		_, metrics, err := p.Get(ctx, "http://127.0.0.1:10249/metrics")
		if err == nil && !strings.Contains(metrics, `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.`) {
			err = fmt.Errorf("no sync yet")
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, p.Tail())
		}
		return nil
	})
	if !peer {
		if err := p.Ready(ctx); err != nil {
			n.t.Fatal(err)
		}
	}
	n.t.Logf("%s has synced at %s", role, time.Now().Format("15:04:05.000"))
	return p
}

// tools creates a directory with iptables of a variant.
func (n *switched) tools(variant string) string {
	dir := n.t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			if err := os.Symlink("/usr/sbin/"+family+"-"+variant+verb, filepath.Join(dir, family+verb)); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	return dir
}

func (n *switched) stop(p *kube.Proxy) {
	n.t.Helper()
	if _, err := p.Stop(); err != nil && p.Name == "proxyc" {
		n.t.Errorf("%v\n%s", err, p.Tail())
	}
}

// cleanUp removes what proxyc has left while kube-proxy runs.
func (n *switched) cleanUp(ctx context.Context) {
	n.t.Helper()
	out, err := n.Run(n.Command(ctx, proxyc, "cleanup", "--keep-kube-proxy"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Logf("cleaned up at %s:\n%s", time.Now().Format("15:04:05.000"), out)
}

// awaitChanges waits until changes are in force: those of an existing Service, and those of a new
// one, which the next proxy finds.
func (n *switched) awaitChanges(ctx context.Context, p *kube.Proxy) {
	n.t.Helper()
	n.update++
	old, added := n.update, manyServices+n.update
	n.change(n.cluster.Apply(ctx, slice(name(old), "10.244.2.10")))
	n.awaitReplies(p, old, "pod2a")
	n.change(n.cluster.Delete(ctx, service(name(old), ""), slice(name(old))))
	n.awaitReplies(p, old, "")
	n.change(n.cluster.Apply(ctx, nodePortService(added), slice(name(added), "10.244.1.10")))
	n.awaitReplies(p, added, "pod1a")
}

func (n *switched) change(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// awaitReplies waits until only one host replies at a Service's address, or none if want is "".
func (n *switched) awaitReplies(p *kube.Proxy, i int, want string) {
	n.t.Helper()
	const asked = 6 // two endpoints look like one in 1 of 32 cases
	vip := netip.AddrPortFrom(netip.MustParseAddr(clusterIP(i)), 80)
	timeout := 2 * time.Second // a lost SYN is retransmitted within it
	if want == "" {
		timeout = 100 * time.Millisecond
	}
	eventually(n.t, 10*time.Second, fmt.Sprintf("%s under %s: %q", vip, p.Name, want), func() error {
		for range asked {
			a, err := n.topo.Try("pod1b", "tcp", 0, vip, timeout)
			got := ""
			if err == nil {
				got = n.topo.Name(a.Server.Addr())
			}
			if got != want {
				return fmt.Errorf("got %q (%v)\n%s", got, err, p.Tail())
			}
		}
		return nil
	})
}

// open opens connections that stay open.
func (n *switched) open(ctx context.Context) []net.Conn {
	n.t.Helper()
	var conns []net.Conn
	for _, p := range n.probes() {
		from, addr, err := n.topo.Source(p.From, p.To.Addr())
		if err != nil {
			n.t.Fatal(err)
		}
		conn, err := from.Dial(ctx, "tcp", netip.AddrPortFrom(addr, 0), p.To)
		if err != nil {
			n.t.Fatalf("%s: %v", p, err)
		}
		n.t.Cleanup(func() { conn.Close() })
		conns = append(conns, conn)
	}
	n.checkConnections(conns, "at first")
	return conns
}

// checkConnections sends queries over open connections.
func (n *switched) checkConnections(conns []net.Conn, when string) {
	n.t.Helper()
	for i, conn := range conns {
		if _, err := applytest.Query(conn, applytest.ReplyTimeout); err != nil {
			n.t.Errorf("an open connection %s: %s: %v", n.probes()[i], when, err)
		}
	}
}

// lacks fails the test if the rules contain one of the words.
func (n *switched) lacks(ctx context.Context, words ...string) {
	n.t.Helper()
	var all strings.Builder
	for _, tool := range []string{"nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save"} {
		command := strings.Fields(tool)
		out, err := n.Run(n.Command(ctx, command[0], command[1:]...))
		if err != nil {
			n.t.Fatal(err)
		}
		all.Write(out)
	}
	for _, word := range words {
		for line := range strings.Lines(all.String()) {
			if strings.Contains(line, word) {
				n.t.Errorf("left behind: %s", line)
				break
			}
		}
	}
}

// noFailure fails the test for each gap of a load, and if there were few tries.
func (n *switched) noFailure(r applytest.LoadReport) {
	n.t.Helper()
	for p, count := range r.Tries {
		if count < 20 {
			n.t.Errorf("%s: only %d tries", p, count)
		}
	}
	noGaps(n.t, r)
}
