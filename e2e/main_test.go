package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

var proxycFlag = flag.String("proxyc", "", "binary to use; built from the module above when empty")

// proxyc is the program that all tests share.
var proxyc string

// clusters are the control planes. At most one test at a time uses each.
var clusters struct {
	dir  string
	free chan *kube.Cluster
	lent sync.Map // the name of a test → *kube.Cluster
	// starts bounds the number of clusters that are started.
	starts chan struct{}

	mu  sync.Mutex
	all []*kube.Cluster
}

// mostClusters is the maximum number of clusters, and so of concurrent tests, which mostly wait.
const mostClusters = 3

// A refusal is a period in which a server may refuse requests of the proxies.
type refusal struct {
	cluster  *kube.Cluster
	from, to time.Time
}

var refusals []refusal // clusters.mu guards it

// mayRefuse is called when a test removes rights, or restarts a server, which refuses requests
// until it has read the rights. The returned function ends the period.
func mayRefuse(c *kube.Cluster) (end func()) {
	from := time.Now()
	return func() {
		clusters.mu.Lock()
		defer clusters.mu.Unlock()
		refusals = append(refusals, refusal{c, from, time.Now()})
	}
}

func TestMain(m *testing.M) {
	flag.Set("test.parallel", strconv.Itoa(mostClusters)) // the default is the number of processors
	flag.Parse()
	code, err := withClusters(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withClusters runs f while there are control planes. It returns an error if one of them forbade
// a request.
func withClusters(f func() int) (code int, err error) {
	clusters.dir, err = os.MkdirTemp("", "proxyc-e2e-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(clusters.dir)
	if proxyc = *proxycFlag; proxyc == "" {
		if proxyc, err = kube.Proxyc(context.Background(), clusters.dir); err != nil {
			return 0, err
		}
	}
	clusters.free, clusters.starts = make(chan *kube.Cluster, mostClusters), make(chan struct{}, mostClusters)
	defer func() {
		for _, c := range clusters.all {
			err = errors.Join(err, refused(c), c.Close())
		}
	}()
	return f(), nil
}

// startCluster starts another cluster.
func startCluster() (*kube.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // the tools may have to be built
	defer cancel()
	dir, err := os.MkdirTemp(clusters.dir, "cluster-")
	if err != nil {
		return nil, err
	}
	c, err := kube.Start(ctx, dir)
	if err != nil {
		return nil, err
	}
	clusters.mu.Lock()
	clusters.all = append(clusters.all, c)
	clusters.mu.Unlock()
	rbac, err := kube.Manifests("../docs/deploy/rbac.yaml")
	if err != nil {
		return nil, err
	}
	return c, c.Apply(ctx, rbac...)
}

// clusterOf returns the cluster of a test or of a parent test. The test uses it until it ends.
func clusterOf(t *testing.T) *kube.Cluster {
	t.Helper()
	for name := t.Name(); name != ""; name = name[:max(0, strings.LastIndexByte(name, '/'))] {
		if c, ok := clusters.lent.Load(name); ok {
			return c.(*kube.Cluster)
		}
	}
	c, err := freeCluster()
	if err != nil {
		t.Fatal(err)
	}
	clusters.lent.Store(t.Name(), c)
	t.Cleanup(func() {
		clusters.lent.Delete(t.Name())
		clusters.free <- c
	})
	return c
}

// freeCluster returns a cluster that no test uses. If there is none, it starts one, or waits.
func freeCluster() (*kube.Cluster, error) {
	select {
	case c := <-clusters.free:
		return c, nil
	default:
	}
	select {
	case c := <-clusters.free:
		return c, nil
	case clusters.starts <- struct{}{}:
		return startCluster()
	}
}

// parallel runs the rest of a test in parallel with others, with a cluster of its own.
func parallel(t *testing.T) *kube.Cluster {
	t.Helper()
	t.Parallel()
	return clusterOf(t)
}

// refused returns an error for each request of a proxy that a server forbade.
func refused(c *kube.Cluster) error {
	requests, err := c.Requests("", time.Time{})
	for _, r := range requests {
		excused := func(f refusal) bool { return c == f.cluster && r.Received.After(f.from) && r.Received.Before(f.to) }
		if r.ResponseStatus.Code != http.StatusForbidden || slices.ContainsFunc(refusals, excused) {
			continue
		}
		if user := r.User.Username; user == kube.ProxycUser || user == kube.KubeProxyUser {
			err = errors.Join(err, fmt.Errorf("forbidden to %s at %s: %s %s", user, r.Received.Format(time.TimeOnly), r.Verb, r.RequestURI))
		}
	}
	return err
}

// A node is a network namespace with a gate to the API server.
type node struct {
	*applytest.Namespace
	cluster *kube.Cluster
	gate    *kube.Gate
	dir     string
}

// newNode creates a node that exists until the test ends.
func newNode(t *testing.T) *node {
	t.Helper()
	applytest.RequireRoot(t)
	ns, err := applytest.NewNamespace("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return nodeIn(t, ns)
}

// nodeIn makes a namespace a node until the test ends.
func nodeIn(t *testing.T, ns *applytest.Namespace) *node {
	t.Helper()
	cluster := clusterOf(t)
	gate, err := cluster.Gate(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	return &node{Namespace: ns, cluster: cluster, gate: gate, dir: t.TempDir()}
}

// eventually calls try until it returns no error, and returns how long that took. After the limit,
// or a minute if that is longer, it fails the test with the last error.
func eventually(t *testing.T, limit time.Duration, what string, try func() error) time.Duration {
	t.Helper()
	limit = max(limit, time.Minute)
	began := time.Now()
	var err error
	if !applytest.Within(limit, func() bool { err = try(); return err == nil }) {
		t.Fatalf("%s: not within %s: %v", what, limit, err)
	}
	return time.Since(began)
}

// command returns the arguments of `proxyc watch` on the node.
func (n *node) command(t *testing.T, args ...string) []string {
	t.Helper()
	kubeconfig, err := n.gate.Kubeconfig(n.dir, kube.ProxycUser)
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"watch", "--kubeconfig", kubeconfig,
		"--hostname-override", "node1", "--conntrack-max-per-core", "0", "--conntrack-min", "0"}, args...)
}

// watch starts `proxyc watch` on the node and waits until it is ready. If it still runs at the
// end of the test, it is killed.
func (n *node) watch(ctx context.Context, t *testing.T, args ...string) *kube.Proxy {
	t.Helper()
	p, err := kube.StartProxy(n.Namespace, n.dir, "proxyc", proxyc, n.command(t, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	if err := p.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}
