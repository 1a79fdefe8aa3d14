package daemon

import (
	"io"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// served is a Dataplane whose kernel has the rules of a frontend.
type served struct{ apply.Memory }

func (*served) Plan(ir.Programs) apply.Plan { return servedPlan{} }

type servedPlan struct{ apply.Plan }

func (servedPlan) RemovedFrontends() []ir.Match {
	return []ir.Match{{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.TCP, Port: 80}}
}

// While rules are restored or kept, health checks answer.
func TestHealthCheckOfRestored(t *testing.T) {
	for name, start := range map[string]func(h *restorer, programs ir.Programs) bool{
		"restored": func(h *restorer, programs ir.Programs) bool {
			return h.after(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}}, lastPrograms{Programs: programs})
		},
		"newer rules are kept": func(h *restorer, programs ir.Programs) bool {
			return h.start(t.Context(), reconcile.Reconciler{Writer: reconcile.Writer{Dataplane: &served{}}}, lastPrograms{programs, time.Now()})
		},
	} {
		t.Run(name, func(t *testing.T) { testHealthCheckOfRestored(t, start) })
	}
}

func testHealthCheckOfRestored(t *testing.T, start func(h *restorer, programs ir.Programs) bool) {
	t.Helper()
	programs, _, addr := healthChecked(t)
	s := newTestSession(t, "iptables")
	defer s.rules.effects.checks.close()
	s.rules.effects.boot = newBootFile(t, &diskFiles{})
	if err := s.rules.effects.boot.lock.SetNote(""); err != nil {
		t.Fatal(err)
	}
	if !start(&restorer{rules: s.rules}, programs) {
		t.Fatal("not restored")
	}
	r, err := http.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if body, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", r.Status, body, err)
	}
}

// Flows from before restored rules existed are checked.
func TestFlowsOfRestored(t *testing.T) {
	for added, want := range map[int]bool{0: false, 3: true} {
		s := newTestSession(t, "nftables")
		match := ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.UDP, Port: 53}
		service := ir.Service{Name: ir.Name{Namespace: "shop", Name: "dns"}, Frontends: []ir.Frontend{{Match: match}}}
		programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Services: []ir.Service{service}}, &ir.Program{Family: ir.IPv6})
		s.rules.effects.boot = newBootFile(t, &diskFiles{})
		h := restorer{rules: s.rules}
		h.after(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}, Done: reconcile.Done{Operations: apply.Count{Added: added}}}, lastPrograms{Programs: programs})
		if got := s.rules.effects.flows.Busy(); got != want {
			t.Errorf("%d rules were added: flows are checked: %t", added, got)
		}
	}
}
