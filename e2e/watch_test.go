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
	if proxyc, err = kube.Proxyc(ctx, dir); err != nil {
		return 0, err
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

func service(name, ip string) kube.Object {
	return kube.Object{"apiVersion": "v1", "kind": "Service", "metadata": kube.Object{"name": name, "namespace": "default"},
		"spec": kube.Object{"clusterIP": ip, "ports": []any{kube.Object{"port": 80, "targetPort": 8080}}}}
}

// TestSmoke brings one Service from the API into a kernel.
func TestSmoke(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node, err := applytest.NewNamespace("node")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	gate, err := cluster.Gate(node)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	kubeconfig, err := gate.Kubeconfig(t.TempDir(), kube.ProxycUser)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Apply(ctx, service("a", "10.96.0.10")); err != nil {
		t.Fatal(err)
	}
	p, err := kube.StartProxy(node, t.TempDir(), "proxyc", proxyc, "watch", "--kubeconfig", kubeconfig, "--proxy-mode", "nftables", "--hostname-override", "node1", "--conntrack-max-per-core", "0", "--conntrack-min", "0")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	out, err := node.Run(node.Command(ctx, "nft", "list", "ruleset"))
	t.Log(string(out), err, gate.FromServer.Load())
	took, err := p.Stop()
	t.Log(took, err, p.Tail())
}
