package status

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Names that other people choose add no lines.
func TestPrintForgesNoLine(t *testing.T) {
	const name = "x\nsynced       yes"
	var st Status
	st.Invalid = []Problem{{Object: "Service " + name, Reason: name}}
	st.MayDrop, st.MayDivert = []string{name}, []string{name}
	st.Restored, st.RestoredOf = "the boot file b", time.Unix(5e9, 0).UTC()
	st.KubeProxy = &KubeProxy{State: Maintained, Process: name}
	st.LastDrift = &LastDrift{By: []string{name}, Gone: []string{name}, First: []apply.Operation{{Object: name, Have: []string{name}, Want: []string{name}}}}
	var out strings.Builder
	if err := st.Print(&out); err != nil {
		t.Fatal(err)
	}
	if want := "rules of the boot file b, saved at 2128-06-11T08:53:20Z by a clock that was ahead: "; !strings.Contains(out.String(), want) {
		t.Errorf("want %q in\n%s", want, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(strings.TrimSpace(line), "synced       yes") {
			t.Errorf("forged: %q in\n%s", line, out.String())
		}
	}
}

// What a Status reports about a packet: why its Service is not in force, and why the rules may be outdated.
func TestAbout(t *testing.T) {
	st := Status{Process: Process{PID: 1, Now: time.Unix(300, 0)}, Syncs: Syncs{Refused: []Problem{{"Service ns/a", "no such match"}}}, Reason: "busy"}
	st.Inputs = Inputs{APIServer: &APIServer{Lost: time.Unix(0, 0), Cause: "refused"}, Invalid: []Problem{{"Service ns/b", "port"}}}
	got := slices.Concat(st.About(ir.Name{Namespace: "ns", Name: "a"}), st.About(ir.Name{Namespace: "ns", Name: "b"}), st.Doubts(), new(Status).Doubts())
	want := []string{"Service ns/a is refused by the kernel, so its packets are not proxied: no such match", "the newest version of Service ns/b is not in force: port",
		"cut off from the API server for 5m0s, so objects may be outdated: refused", "the rules are not in sync: busy"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
