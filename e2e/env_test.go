package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// planes are the ways in which a daemon can write rules.
var planes = map[string][]string{
	"nftables":        {"--proxy-mode", "nftables"},
	"iptables-nft":    {"--proxy-mode", "iptables", "--iptables-variant", "nft"},
	"iptables-legacy": {"--proxy-mode", "iptables", "--iptables-variant", "legacy"},
}

// A testEnv is a daemon on node1 of the topology, whose pods are the endpoints of
// numbered Services.
type testEnv struct {
	*node
	t     *testing.T
	topo  *applytest.Topology
	args  []string // of the daemon
	proxy *kube.Proxy
	// binary is the program that check runs: the daemon's.
	binary string
}

func newTestEnv(t *testing.T, plane string) *testEnv {
	t.Helper()
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { topo.Close() })
	s := &testEnv{node: nodeIn(t, topo.Namespace("node1")), t: t, topo: topo, binary: proxyc,
		args: append([]string{"--cluster-cidr", "10.244.0.0/16", "--profiling"}, planes[plane]...)}
	t.Cleanup(func() {
		if err := s.cluster.DeleteAll(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.send(kube.Object{"apiVersion": "v1", "kind": "Node", "metadata": kube.Object{"name": "node1"},
		"spec":   kube.Object{"podCIDR": "10.244.1.0/24", "podCIDRs": []any{"10.244.1.0/24"}},
		"status": kube.Object{"addresses": []any{kube.Object{"type": "InternalIP", "address": "192.0.2.11"}}}})
	return s
}

// start starts the daemon and waits until it is ready.
func (s *testEnv) start(args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	s.proxy = s.watch(ctx, s.t, append(args, s.args...)...)
}

// launch starts a daemon and does not wait for anything.
func (s *testEnv) launch(binary string, args ...string) {
	s.t.Helper()
	p, err := kube.StartProxy(s.Namespace, s.dir, "proxyc", binary, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Kill() })
	s.proxy = p
}

// numbered is a Service whose number determines its address.
type numbered struct {
	n          int
	pods, busy []string // endpoints that are ready, and that are not
	draining   []string // endpoints that serve and terminate
	dead       []string // endpoints that terminate and do not serve
	nodePort   bool
	affinity   bool
	udp        bool // also has UDP port 53
}

// some returns the Services with numbers from from to to-1, all with the same endpoints.
func some(from, to int, pods ...string) (services []numbered) {
	for n := from; n < to; n++ {
		services = append(services, numbered{n: n, pods: pods})
	}
	return services
}

func (n numbered) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(n.n/200 + 1), byte(n.n%200 + 1)})
}

func (n numbered) vip() netip.AddrPort { return netip.AddrPortFrom(n.addr(), 80) }

func (n numbered) name() string { return fmt.Sprintf("s%04d", n.n) }

// objects returns the Service and its EndpointSlice.
func (n numbered) objects() []kube.Object {
	meta := kube.Object{"name": n.name(), "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": n.name()}}
	ports := []any{kube.Object{"name": "tcp", "protocol": "TCP", "port": 80, "targetPort": 8080}}
	targets := []any{kube.Object{"name": "tcp", "protocol": "TCP", "port": 8080}}
	if n.udp {
		ports = append(ports, kube.Object{"name": "udp", "protocol": "UDP", "port": 53, "targetPort": 5353})
		targets = append(targets, kube.Object{"name": "udp", "protocol": "UDP", "port": 5353})
	}
	spec := kube.Object{"type": "ClusterIP", "clusterIP": n.addr().String(), "ports": ports}
	if n.nodePort {
		spec["type"] = "NodePort"
		for i, p := range ports {
			p.(kube.Object)["nodePort"] = 30000 + 2*n.n + i
		}
	}
	if n.affinity {
		spec["sessionAffinity"] = "ClientIP"
	}
	endpoints := []any{}
	add := func(pods []string, conditions kube.Object) {
		for _, pod := range pods {
			endpoints = append(endpoints, kube.Object{"addresses": []any{podAddr(pod)}, "nodeName": "node" + pod[3:4],
				"conditions": conditions})
		}
	}
	add(n.pods, kube.Object{"ready": true})
	add(n.busy, kube.Object{"ready": false})
	add(n.draining, kube.Object{"ready": false, "serving": true, "terminating": true})
	add(n.dead, kube.Object{"ready": false, "serving": false, "terminating": true})
	return []kube.Object{
		{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4",
			"ports": targets, "endpoints": endpoints},
	}
}

// podAddr returns the address of a pod: that of pod2b is 10.244.2.11, that of pod2c.105 is
// 10.244.2.105.
func podAddr(pod string) string {
	_, host, _ := strings.Cut(pod, ".")
	return "10.244." + pod[3:4] + "." + cmp.Or(host, strconv.Itoa(10+int(pod[4]-'a')))
}

// send creates or updates objects in the API.
func (s *testEnv) send(objects ...kube.Object) {
	s.t.Helper()
	if err := s.cluster.Apply(s.t.Context(), objects...); err != nil {
		s.t.Fatal(err)
	}
}

// set creates or updates Services.
func (s *testEnv) set(services ...numbered) {
	s.t.Helper()
	s.send(objectsOf(services)...)
}

// unset deletes Services.
func (s *testEnv) unset(services ...numbered) {
	s.t.Helper()
	if err := s.cluster.Delete(s.t.Context(), objectsOf(services)...); err != nil {
		s.t.Fatal(err)
	}
}

func objectsOf(services []numbered) (objects []kube.Object) {
	for _, n := range services {
		objects = append(objects, n.objects()...)
	}
	return objects
}

// probe returns a probe of a Service from a host.
func probe(from string, n numbered) applytest.Probe {
	return applytest.Probe{From: from, Proto: "tcp", To: n.vip()}
}

// load queries Services from inside and outside, over new connections and over connections that
// stay open. None may fail before the returned function ends it, unless the controls fail at the
// same time, because the machine itself stood still.
func (s *testEnv) load(services ...numbered) (load *applytest.Load, end func()) {
	s.t.Helper()
	var probes []applytest.Probe
	for _, n := range services {
		probes = append(probes, probe("pod1b", n), probe("ext", n))
	}
	open, err := s.topo.StartConnections(50*time.Millisecond, probes...)
	if err != nil {
		s.t.Fatal(err)
	}
	load = s.topo.StartLoad(20, append(probes, controls...)...)
	return load, func() {
		s.t.Helper()
		asked, broken := open.Stop()
		report := load.Stop()
		tries := 0
		for _, n := range report.Tries {
			tries += n
		}
		s.t.Logf("%d connections with %d queries, %d new ones", len(probes), asked, tries)
		if tries == 0 || asked == 0 {
			s.t.Error("no queries")
		}
		for _, f := range broken {
			s.t.Error(f)
		}
		noGaps(s.t, report)
	}
}

// controls are probes that no rule affects.
var controls = []applytest.Probe{
	{From: "ext", Proto: "tcp", To: netip.MustParseAddrPort("10.244.2.10:8080")},
	{From: "pod1b", Proto: "tcp", To: netip.MustParseAddrPort("10.244.2.10:8080")},
}

// noGaps fails the test for each try of a load that failed, unless the controls failed too.
func noGaps(t *testing.T, r applytest.LoadReport) {
	t.Helper()
	gaps, slow := r.Gaps(controls)
	t.Logf("%d gaps, %d of the machine", len(gaps), len(slow))
	for _, f := range gaps {
		t.Errorf("%s (%s after the start)", f, f.At.Sub(r.Start).Round(time.Millisecond))
	}
}

// check runs a verb on the API's current objects, under the daemon's configuration. It has its
// own /run, since the daemon holds the lock in the node's.
func (s *testEnv) check(verb ...string) (string, error) {
	file := filepath.Join(s.dir, "snapshot.json")
	if err := s.cluster.Snapshot(s.t.Context(), file); err != nil {
		return "", err
	}
	args := []string{"-m", "sh", "-c", `mount -t tmpfs tmpfs /run && exec "$0" "$@"`, s.binary}
	args = append(append(args, verb...), "-s", file, "--hostname-override", "node1", "--conntrack-max-per-core", "0", "--conntrack-min", "0")
	for i := 0; i < len(s.args); i++ {
		if verb[0] == "compile" && s.args[i] == "--iptables-variant" {
			i++
			continue
		}
		args = append(args, s.args[i])
	}
	out, err := s.Run(s.Command(s.t.Context(), "unshare", args...))
	return string(out), err
}

// converges waits until the kernel equals what a new process compiles from the API's objects, and
// returns how long that took.
func (s *testEnv) converges(limit time.Duration, what string) time.Duration {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Log("log of the daemon:\n" + s.proxy.Tail())
		}
	}()
	return eventually(s.t, limit, what, func() error {
		_, err := s.check("apply", "--check")
		return err
	})
}

// status is the part of the daemon's status that tests read.
type status struct {
	Synced     bool
	Generation int
	Pending    int
	APIServer  struct{ Lost time.Time }
}

func (s *testEnv) status() (st status, err error) {
	_, body, err := s.proxy.Get(s.t.Context(), "http://127.0.0.1:10249/proxyc/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &st)
	}
	return st, err
}

// metric returns the sum of a metric over its labels.
func (s *testEnv) metric(name string) (sum float64) {
	s.t.Helper()
	_, body, err := s.proxy.Get(s.t.Context(), "http://127.0.0.1:10249/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	found := false
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllStringSubmatch(body, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		s.t.Fatalf("no metric %s", name)
	}
	return sum
}

// empty removes all rules of the node.
func (s *testEnv) empty() {
	s.t.Helper()
	flush := []string{"nft flush ruleset"}
	for _, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
		for _, table := range []string{"nat", "filter", "mangle"} {
			flush = append(flush, fmt.Sprintf("%[1]s -t %[2]s -F && %[1]s -t %[2]s -X", tool, table))
		}
	}
	if out, err := s.Run(s.Command(s.t.Context(), "sh", "-ec", strings.Join(flush, "\n"))); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
}
