package reviewtest

import (
	"bytes"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// MixedCluster returns a snapshot with Services of all kinds, each with five endpoints.
func MixedCluster(t testing.TB, services int) *snapshot.Snapshot {
	t.Helper()
	var text bytes.Buffer
	if err := cluster.WriteList(&text, cluster.Cluster{Services: services, Endpoints: 5}.Objects()); err != nil {
		t.Fatal(err)
	}
	snap, diags := Decode(text.Bytes())
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	return snap
}

// MixedProgram compiles a snapshot for node1 in a mode, and returns the IPv4 Program.
func MixedProgram(t testing.TB, mode ir.Mode, snap *snapshot.Snapshot) *ir.Program {
	t.Helper()
	cfg := ParseConfig(t, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.128.0.0/9\n"))
	programs, _ := compiler.Compile(cfg, snap, compiler.Facts{NodeName: "node1"})
	return programs.Of(ir.IPv4)
}
