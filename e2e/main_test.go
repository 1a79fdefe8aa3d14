package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

var proxycFlag = flag.String("proxyc", "", "binary to use; built from the module above when empty")

// The control plane and the program that all tests of the package share.
var (
	cluster *kube.Cluster
	proxyc  string
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := withCluster(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withCluster runs f while the control plane runs.
func withCluster(f func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "proxyc-e2e-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // the tools may have to be built
	defer cancel()
	if proxyc = *proxycFlag; proxyc == "" {
		if proxyc, err = kube.Proxyc(ctx, dir); err != nil {
			return 0, err
		}
	}
	if cluster, err = kube.Start(ctx, dir); err != nil {
		return 0, err
	}
	defer func() { err = cluster.Close() }()
	rbac, err := kube.Manifests("../docs/deploy/rbac.yaml")
	if err != nil {
		return 0, err
	}
	if err := cluster.Apply(ctx, rbac...); err != nil {
		return 0, err
	}
	return f(), nil
}

// A node is a network namespace with a gate to the API server.
type node struct {
	*applytest.Namespace
	gate *kube.Gate
	dir  string
}

// newNode makes a node that lasts as long as the test.
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

// nodeIn makes a namespace a node that lasts as long as the test.
func nodeIn(t *testing.T, ns *applytest.Namespace) *node {
	t.Helper()
	gate, err := cluster.Gate(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	return &node{Namespace: ns, gate: gate, dir: t.TempDir()}
}

// eventually tries until there is no error, and fails the test with the last
// one after a time. It gives how long it took.
func eventually(t *testing.T, limit time.Duration, what string, try func() error) time.Duration {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		took := time.Since(began)
		if err == nil {
			return took
		}
		if took > limit {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		<-tick.C
	}
}

// command gives the arguments of `proxyc watch` on the node.
func (n *node) command(t *testing.T, args ...string) []string {
	t.Helper()
	kubeconfig, err := n.gate.Kubeconfig(n.dir, kube.ProxycUser)
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"watch", "--kubeconfig", kubeconfig,
		"--hostname-override", "node1", "--conntrack-max-per-core", "0", "--conntrack-min", "0"}, args...)
}

// watch starts `proxyc watch` on the node and waits until it is ready; it is
// killed at the end of the test where it still runs then.
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
