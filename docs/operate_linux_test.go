package docs

import (
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// TestLeavingIPVS runs the sessions of operate.md on a node that has what
// kube-proxy left in mode ipvs.
func TestLeavingIPVS(t *testing.T) {
	applytest.RequireRoot(t)
	if !applytest.HaveIPVS(t) {
		t.Skip("the kernel has no ip_vs: make test-vm ONLY=leaving")
	}
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	node := topo.Namespace("node1")
	if _, err := node.Run(node.Command(t.Context(), "sh", root+"/testdata/apply/takeover/ipvs/load")); err != nil {
		t.Fatal(err)
	}
	playSessions(t, "operate.md", node)
}
