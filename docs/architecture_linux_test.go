package docs

import (
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// TestArchitecture runs the sessions of the page in one network namespace.
func TestArchitecture(t *testing.T) {
	applytest.RequireRoot(t)
	ns, err := applytest.NewNamespace("node1")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Sysctl("ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"); err != nil { // as on each node of a cluster
		t.Fatal(err)
	}
	playSessions(t, "architecture.md", ns)
}
