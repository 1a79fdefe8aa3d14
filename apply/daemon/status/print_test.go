package status

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply"
)

// Names that other people choose add no lines.
func TestPrintForgesNoLine(t *testing.T) {
	const name = "x\nsynced       yes"
	var st Status
	st.Invalid = []Problem{{Object: "Service " + name, Reason: name}}
	st.MayDrop, st.MayDivert = []string{name}, []string{name}
	st.KubeProxy = &KubeProxy{State: Maintained, Process: name}
	st.LastDrift = &LastDrift{By: []string{name}, Gone: []string{name}, First: []apply.Operation{{Object: name, Have: []string{name}, Want: []string{name}}}}
	var out strings.Builder
	if err := st.Print(&out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(strings.TrimSpace(line), "synced       yes") {
			t.Errorf("forged: %q in\n%s", line, out.String())
		}
	}
}
