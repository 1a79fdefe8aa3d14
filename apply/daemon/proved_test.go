package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
)

// Only Services that changed are asked about, each by itself; what was found of one
// stays in the status until it changes again, or everything does.
func TestProvedChanges(t *testing.T) {
	p := irtest.Program(ir.ModeNFTables)
	node := *p
	node.Services = nil
	a, b := &p.Services[0], &p.Services[1]
	var asked []ir.Name
	wrong := map[ir.Name]bool{b.Name: true}
	prove := func(_ context.Context, programs ir.Programs) (found []Unproved) {
		for _, p := range ir.Present(programs) {
			if len(p.Services) != 1 || p.Node.Mode != ir.ModeNFTables {
				t.Errorf("asked about %d Services in mode %s", len(p.Services), p.Node.Mode)
			}
			asked = append(asked, p.Services[0].Name)
			if wrong[p.Services[0].Name] {
				found = append(found, Unproved{Packet: "--from node --to 10.96.0.10:80/tcp", Want: "dropped", Have: "rejected"})
			}
		}
		return found
	}
	st := newState(ir.ModeNFTables, "node1", time.Now)
	st.synced(&reconcile.Sync{Kind: reconcile.Full})
	change := func(all bool, changes ...ir.Change) {
		w := reconcile.Work{Programs: ir.NewPrograms(&node), All: all}
		*w.Changes.At(p.Family) = changes
		names, found := provedChanges(t.Context(), prove, w)
		st.setUnproved(names, all, found)
	}
	line := "not proved   Service " + b.Name.String() + ": proxyc trace --from node --to 10.96.0.10:80/tcp: is rejected, must be dropped\n"
	told := func(when string, want bool) {
		t.Helper()
		if well, got := printed(t, st.told(0)); well == want || strings.Contains(got, line) != want {
			t.Errorf("%s: well %t, want %q (%t) in\n%s", when, well, line, want, got)
		}
	}
	change(false, ir.Change{Name: a.Name, New: a}, ir.Change{Name: b.Name, New: b})
	told("after a change to what is wrong", true)
	change(false, ir.Change{Name: a.Name, Old: a, New: a})
	told("after a change of another", true)
	wrong = nil
	change(false, ir.Change{Name: b.Name, Old: b, New: b})
	told("after a change to what is right", false)
	wrong = map[ir.Name]bool{b.Name: true}
	change(false, ir.Change{Name: b.Name, Old: b, New: b})
	change(false, ir.Change{Name: b.Name, Old: b})
	told("after it went", false)
	change(false, ir.Change{Name: b.Name, New: b})
	change(true)
	told("after everything changed", false)
	if want := []ir.Name{a.Name, b.Name, a.Name, b.Name, b.Name, b.Name}; len(asked) != len(want) {
		t.Errorf("asked about %v, want %v", asked, want)
	}
}
