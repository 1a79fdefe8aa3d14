package apply

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// A Meter counts every value once: of a counter that a commit starts again, of one that another program
// resets or removes, and of one whose commit fails. Removed Services are forgotten, and start at 0.
func TestMeter(t *testing.T) {
	svc := ir.Service{Name: ir.Name{Namespace: "ns", Name: "web"}}
	f := ir.Frontend{Port: ir.ServicePort{Service: svc.Name, Port: "http", Protocol: ir.TCP}}
	svc.Frontends = []ir.Frontend{f}
	at := func(n uint64) Reading[string] {
		return Reading[string]{[]Value[string]{{"a", n}, {"b", n / 10}, {"foreign", 1}}, func(id string) (render.Counted, bool) {
			return render.Count(&f, id == "a", map[string]render.Reason{"b": render.NoEndpoints}[id]), id != "foreign"
		}}
	}
	var log bytes.Buffer
	m := NewMeter[string](slog.New(slog.NewTextHandler(&log, nil)))
	read := func(n uint64, want uint64) {
		t.Helper()
		sums, err := m.Read(t.Context(), func(context.Context) (Reading[string], error) { return at(n), nil })
		if got := sums[f.Port]; err != nil || got.Connections != want || got.Refused[render.NoEndpoints] != want/10 {
			t.Errorf("reads %v, want %d; %v", got, want, err)
		}
	}
	commit := func(before Reading[string], ok bool, during func()) {
		m.Around(func() (Reading[string], error) { return before, nil }, func(string) bool { return true }, func() bool { during(); return ok })
	}
	nothing := func() {}
	read(10, 10)
	commit(at(20), true, nothing) // both counters start again
	read(30, 50)
	commit(at(40), false, nothing)
	read(50, 70)
	read(10, 80) // reset by another program
	commit(at(10), true, func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sums, err := m.Read(ctx, nil)
		if got := sums[f.Port].Connections; err != nil || got != 80 {
			t.Errorf("%d during a commit, want 80: the sum before it; %v", got, err)
		}
	})
	read(20, 100)
	if log.Len() > 0 {
		t.Error(log.String())
	}
	commit(Reading[string]{}, true, nothing) // another program removed both
	read(30, 130)
	commit(at(30), true, nothing)
	if n := strings.Count(log.String(), "counters=2"); n != 1 {
		t.Errorf("the log reports %d times that counters were lost\n%s", n, &log)
	}

	var applied Applied
	programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Services: []ir.Service{svc}}, &ir.Program{Family: ir.IPv6, Services: []ir.Service{svc}})
	take := func(d Desired) {
		applied.Take(d)
		m.Forget(d, &applied)
	}
	removed := []ir.Change{{Name: svc.Name, Old: &svc}}
	take(Desired{Full: true, Programs: programs})
	take(Desired{Changes: ir.Changes{IPv4: removed}})
	read(10, 140) // another family has it
	take(Desired{Changes: ir.Changes{IPv6: removed}})
	read(20, 10)
	take(Desired{Full: true, Programs: ir.NewPrograms(&ir.Program{Family: ir.IPv4})})
	read(20, 0)
}
