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
	playSessions(t, "architecture.md", ns)
}
