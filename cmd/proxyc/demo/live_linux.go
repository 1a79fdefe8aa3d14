package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/daemon/status"
	proc "github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/ir/sim"
)

// The live demo has three processes. The process that the user starts creates the
// namespaces and waits; when either side ends, the kernel removes everything. The first process
// inside is the node, and the third one the daemon that maintains its rules. Each pod is a thread of
// the node with its own network namespace.

// Unsupported is why the demo is not supported on this system; nil if it is.
var Unsupported error

// codeDiffers is the exit code of a demo process that ends with ErrDiffers, and of trace --kernel
// if the kernel differs from the IR.
const codeDiffers = 1

// Run creates the namespaces, in which this program runs again as "demo --part=node --mode=MODE".
// It returns that process's exit code and error.
func Run(ctx context.Context, out, errs io.Writer, mode string) (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	err = proc.World(ctx, out, errs, self, "demo", "--part=node", "--mode="+mode)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if failed, isError := errors.AsType[*proc.Error](err); isError {
		return failed.Code, err
	}
	return 0, err
}

// Node runs the node and prints the events on it.
func Node(ctx context.Context, out, errs io.Writer, mode string) error {
	if os.Getpid() != 1 {
		return errors.New("--part: is only for --live")
	}
	n := &liveNode{out: out, errors: errs, mode: mode, dir: "/run/demo", pods: map[string]*pod{}}
	return n.play(ctx)
}

// liveNode is the node and the course of the demo.
type liveNode struct {
	out     io.Writer
	errors  io.Writer
	mode    string
	dir     string // for files, in its own file system
	self    string
	pods    map[string]*pod
	differs bool         // a connection differed from its trace
	log     lockedBuffer // of the daemon
}

// source returns the pod as a source for trace: its veth has its name on the node.
func (p *pod) source() string { return p.addr.String() + "@" + p.name }

var (
	liveNodeAddr = netip.MustParseAddr("192.0.2.11") // to the outside
	livePodGate  = netip.MustParseAddr("10.244.1.1") // to pods
)

func (n *liveNode) printf(format string, args ...any) { fmt.Fprintf(n.out, format+"\n", args...) }

func (n *liveNode) socket() string { return filepath.Join(n.dir, "status.sock") }

func (n *liveNode) play(ctx context.Context) (err error) {
	if n.self, err = os.Executable(); err != nil {
		return err
	}
	if err := n.setUp(); err != nil {
		return fmt.Errorf("namespaces: %w", err)
	}
	n.printf("# One node, three pods and an external client, each in its own network namespace")
	for _, p := range []*pod{{name: "web-1", addr: netip.MustParseAddr("10.244.1.10")}, {name: "web-2", addr: netip.MustParseAddr("10.244.1.11")},
		{name: "shopper", addr: netip.MustParseAddr("10.244.1.20")}, {name: "outside", addr: netip.MustParseAddr("192.0.2.200")}} {
		if err := n.start(p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		n.printf("%-8s %s", p.name, p.addr)
	}
	if err := n.cluster("web-1", "web-2"); err != nil {
		return err
	}
	n.printf("\n# proxyc watch writes the node's rules (%s)", n.mode)
	began := time.Now()
	if err := proc.Beside(ctx, &n.log, n.self, "watch", "-c", filepath.Join(n.dir, "config.yaml"), "-s", filepath.Join(n.dir, "cluster.yaml"), "--status-socket", n.socket(), "--service-metrics=services"); err != nil {
		return err
	}
	var st status.Status
	err = n.until(ctx, "rules", func() bool {
		var asking error
		st, asking = review.FetchStatus(ctx, n.socket())
		return asking == nil && st.Synced
	})
	if err != nil {
		return err
	}
	n.printf("applied after %s: %s", time.Since(began).Round(time.Millisecond), st.Operations)
	for _, x := range []struct {
		shows, from, to string
	}{
		{"A pod connects to a Service", "shopper", "10.96.0.10:80"},
		{"A client outside connects to its node port", "outside", "192.0.2.11:30080"},
		{"A Service without endpoints", "shopper", "10.96.0.80:80"},
		{"An address of a load balancer that does not admit the client", "outside", "203.0.113.31:443"},
	} {
		if err := n.compare(ctx, x.shows, x.from, x.to); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{n.killEndpoint, n.traffic, n.foreignRule} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if n.differs {
		n.printf("\nsome connections differ from their traces")
		return ErrDiffers
	}
	n.printf("\n# All connections match their traces. Namespaces, rules and files are removed with this process.")
	return nil
}

// setUp sets up the node: its mounts, and a network with forwarding.
func (n *liveNode) setUp() error {
	lo, err := netlink.LinkByName("lo")
	return errors.Join(err,
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), // locks, and files of the demo
		os.Mkdir(n.dir, 0o700),
		netlink.LinkSetUp(lo),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
		os.WriteFile(filepath.Join(n.dir, "config.yaml"), []byte(n.config()), 0o600))
}

// config returns a configuration that sets nothing that network namespaces share.
func (n *liveNode) config() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: 10.244.0.0/16
hostnameOverride: node1
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 0s, localhostNodePorts: false}
nftables: {minSyncPeriod: 0s}
`, n.mode)
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// cluster writes the objects, with the pods that are endpoints of shop/web and shop/edge.
func (n *liveNode) cluster(endpoints ...string) error {
	text, err := Files.ReadFile("live.yaml")
	if err != nil {
		return err
	}
	var b strings.Builder
	b.Write(text)
	for service, port := range map[string]string{"web": "http", "edge": ""} {
		fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata: {namespace: shop, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}\n"+
			"ports: [{name: %[2]q, port: 8080, protocol: TCP}]\nendpoints:\n", service, port)
		for _, name := range endpoints {
			fmt.Fprintf(&b, "- {addresses: [%s], nodeName: node1, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: %s}}\n", n.pods[name].addr, name)
		}
		b.WriteString("---\n")
	}
	return disk.Write(disk.OS{}, filepath.Join(n.dir, "cluster.yaml"), disk.Everybody, func(w io.Writer) error { _, err := io.WriteString(w, b.String()); return err })
}

// until waits until holds returns true.
func (n *liveNode) until(ctx context.Context, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not done within a minute; the daemon's log:\n%s", what, n.log.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// trace traces a connection through the daemon's rules.
func (n *liveNode) trace(from, to string) (trace.Trace, error) {
	j, programs, err := review.Live(n.socket())
	if err != nil {
		return trace.Trace{}, err
	}
	return trace.NewTracer(j, programs).Trace(n.pods[from].source(), to)
}

// tries is the number of connections. The probability that all reach the same one of two backends
// is about 1 in 500,000.
const tries = 20

// connect opens connections, and returns the distinct results.
func (n *liveNode) connect(from, to string) (got []string) {
	for range tries {
		answer := n.pods[from].get(to)
		if got = append(got, answer); !strings.HasPrefix(answer, "by ") {
			break // a rejected or dropped connection always is
		}
	}
	slices.Sort(got)
	return slices.Compact(got)
}

// compare traces a connection, opens it, and prints whether the results are equal.
func (n *liveNode) compare(ctx context.Context, shows, from, to string) error {
	n.printf("\n# %s: %s to %s", shows, from, to)
	t, err := n.trace(from, to)
	if err != nil {
		return err
	}
	if err := t.WriteText(n.out); err != nil {
		return err
	}
	got := n.connect(from, to)
	n.printf("  actual: %s", strings.Join(got, "; "))
	if want := n.expected(&t, from); !slices.Equal(got, want) {
		n.differs = true
		n.printf("  expected: %s", strings.Join(want, "; "))
	}
	return nil
}

// expected returns the results of connections according to a trace, in the format of a pod.
func (n *liveNode) expected(t *trace.Trace, from string) (all []string) {
	switch t.Outcome.Fate {
	case sim.Rejected:
		return []string{"refused"}
	case sim.Dropped:
		return []string{"no answer"}
	}
	for _, d := range t.Outcome.Destinations {
		seen := n.pods[from].addr
		if d.SNAT {
			seen = livePodGate
		}
		for _, p := range n.pods {
			if p.addr == d.AddrPort.Addr() {
				all = append(all, fmt.Sprintf("by %s, client address %s", p.name, seen))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// killEndpoint kills a pod, and then removes it from the EndpointSlice.
func (n *liveNode) killEndpoint(ctx context.Context) error {
	n.printf("\n# Pod web-2 is killed")
	n.pods["web-2"].kill()
	if err := n.cluster("web-1"); err != nil {
		return err
	}
	began := time.Now()
	err := n.until(ctx, "the change", func() bool {
		t, err := n.trace("shopper", "10.96.0.10:80")
		return err == nil && len(t.Outcome.Destinations) == 1
	})
	if err != nil {
		return err
	}
	n.printf("removed from its EndpointSlices: applied after %s", time.Since(began).Round(time.Millisecond))
	return n.compare(ctx, "The same connection", "shopper", "10.96.0.10:80")
}

// traffic shows what was counted, and the connections that the kernel tracks.
func (n *liveNode) traffic(ctx context.Context) error {
	for _, args := range [][]string{{"top", "--interval=100ms"}, {"flows"}} {
		n.printf("\n# proxyc %s", args[0])
		out, err := proc.Run(ctx, nil, n.self, append(args, "--status-socket", n.socket())...)
		if failed, ok := errors.AsType[*proc.Error](err); err != nil && (!ok || failed.Code != codeDiffers) {
			return err
		}
		if _, err := n.out.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// foreign is a rule of a firewall.
const foreign = "table inet firewall { chain forward { type filter hook forward priority -10; ip saddr 10.244.1.20 tcp dport 8080 drop; }; }"

// foreignRule adds a foreign rule, and lets trace find it.
func (n *liveNode) foreignRule(ctx context.Context) error {
	n.printf("\n# Another program adds a rule: nft '%s'", foreign)
	if _, err := proc.Run(ctx, nil, "nft", foreign); errors.Is(err, exec.ErrNotFound) {
		n.printf("skipped: nft is not installed")
		return nil
	} else if err != nil {
		return err
	}
	got := n.connect("shopper", "10.96.0.10:80")
	n.printf("  actual: %s\n\n# The rule that drops it: proxyc trace --kernel", strings.Join(got, "; "))
	out, err := proc.Run(ctx, nil, n.self, "trace", "--kernel", "--status-socket", n.socket(), "--from", n.pods["shopper"].source(), "--to", "10.96.0.10:80")
	if failed, ok := errors.AsType[*proc.Error](err); err != nil && (!ok || failed.Code != codeDiffers) {
		return err
	}
	if _, err := n.out.Write(out); err != nil {
		return err
	}
	n.differs = n.differs || !slices.Equal(got, []string{"no answer"}) || !bytes.Contains(out, []byte("firewall"))
	return nil
}

// pod is a machine in the demo: the thread of a goroutine, which has its own network namespace.
type pod struct {
	name string
	addr netip.Addr
	jobs chan func()
	http net.Listener
}

// start starts a pod in a new network namespace, connected to the node.
func (n *liveNode) start(p *pod) error {
	gate, outside := livePodGate, p.name == "outside"
	if outside {
		gate = liveNodeAddr
	}
	p.jobs = make(chan func())
	var thread int
	unshared := make(chan error)
	go func() {
		runtime.LockOSThread() // until the goroutine ends, which ends the thread
		thread = unix.Gettid()
		unshared <- unix.Unshare(unix.CLONE_NEWNET)
		for job := range p.jobs {
			job()
		}
	}()
	if err := <-unshared; err != nil {
		return err
	}
	n.pods[p.name] = p
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: p.name}, PeerName: "eth0", PeerNamespace: netlink.NsPid(thread)}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("cable: %w", err)
	}
	err := errors.Join(netlink.AddrAdd(link, &netlink.Addr{IPNet: hostNet(gate)}), netlink.LinkSetUp(link),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Dst: hostNet(p.addr), Scope: netlink.SCOPE_LINK, Src: gate.AsSlice()}))
	if outside { // default route of external machines
		err = errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Gw: p.addr.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
	}
	if err != nil {
		return fmt.Errorf("cable: %w", err)
	}
	p.inside(func() { err = p.up(gate) })
	return err
}

// inside runs a function in the namespace of the pod.
func (p *pod) inside(f func()) {
	done := make(chan struct{})
	p.jobs <- func() { f(); close(done) }
	<-done
}

// up configures the pod's address and its route to the node, and serves port 8080.
func (p *pod) up(gate netip.Addr) error {
	lo, err1 := netlink.LinkByName("lo")
	eth, err2 := netlink.LinkByName("eth0")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	index := eth.Attrs().Index
	err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(eth, &netlink.Addr{IPNet: hostNet(p.addr)}), netlink.LinkSetUp(eth),
		netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: hostNet(gate), Scope: netlink.SCOPE_LINK}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gate.AsSlice()}))
	if err != nil {
		return err
	}
	if p.http, err = net.Listen("tcp4", ":8080"); err != nil {
		return err
	}
	go func() {
		for {
			conn, err := p.http.Accept()
			if err != nil {
				return
			}
			client, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			fmt.Fprintf(conn, "by %s, client address %s\n", p.name, client)
			conn.Close()
		}
	}()
	return nil
}

// kill ends the pod, and the namespace with it.
func (p *pod) kill() {
	p.http.Close()
	close(p.jobs)
}

// get returns the result of a connection.
func (p *pod) get(to string) (result string) {
	p.inside(func() { result = connection(to) })
	return result
}

func connection(to string) string {
	conn, err := net.DialTimeout("tcp4", to, 1500*time.Millisecond)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case isTimeout(err):
		return "no answer"
	case err != nil:
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// lockedBuffer is safe for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
