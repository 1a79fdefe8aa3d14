package daemon

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// plane is a Dataplane in memory that records whether it is open.
type plane struct {
	apply.Memory
	closed bool
}

func (p *plane) Close() error {
	p.closed = true
	return nil
}

// written returns a plane that has applied Programs.
func written(t *testing.T) *plane {
	t.Helper()
	p := &plane{}
	node := ir.Node{Mode: ir.ModeNFTables}
	plan := p.Plan(ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: node}))
	if _, err := p.Commit(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	return p
}

// The Dataplane whose rules are in the kernel stays open until the next session has applied its own,
// and the lock is held as long.
func TestHandover(t *testing.T) {
	for _, tt := range []struct {
		name              string
		previous, session *plane // nil: none
		another           bool
		stays             func(previous, session *plane) apply.Dataplane
	}{
		{"a session that wrote", written(t), written(t), true, func(_, session *plane) apply.Dataplane { return session }},
		{"a session that wrote nothing", written(t), &plane{}, true, func(previous, _ *plane) apply.Dataplane { return previous }},
		{"a session that opened nothing", written(t), nil, true, func(previous, _ *plane) apply.Dataplane { return previous }},
		{"the last session", written(t), written(t), false, nil},
		{"the last session, which opened nothing", written(t), nil, false, nil},
	} {
		dir := t.TempDir()
		lock, err := apply.AcquireLock(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		h := handover{previous: tt.previous, lock: lock}
		var dataplane apply.Dataplane
		if tt.session != nil {
			dataplane = tt.session
		}
		h.leave(dataplane, ir.ModeNFTables, tt.another, slog.New(slog.DiscardHandler))
		var stays apply.Dataplane
		if tt.stays != nil {
			stays = tt.stays(tt.previous, tt.session)
		}
		if h.previous != stays {
			t.Errorf("%s: another Dataplane is left", tt.name)
		}
		for _, p := range []*plane{tt.previous, tt.session} {
			if p != nil && p.closed == (p == stays) {
				t.Errorf("%s: closed %t, left %t", tt.name, p.closed, p == stays)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		other, err := apply.AcquireLock(ctx, dir)
		cancel()
		if (err == nil) == tt.another {
			t.Errorf("%s: the lock: %v", tt.name, err)
		}
		if err == nil {
			other.Release()
		}
	}
}

// A session that fails leaves its Dataplane to the one that follows, as one whose configuration
// changed.
func TestHandoverAfterFailure(t *testing.T) {
	s := newTestSession(t, "userspace")
	p := written(t)
	s.rules.dataplane = p
	var others sync.WaitGroup
	s.shutdown(t.Context(), &others)
	if s.handover.previous != apply.Dataplane(p) || p.closed {
		t.Errorf("left %v, closed %t", s.handover.previous, p.closed)
	}
}

// While rules are restored or kept, health checks answer.
func TestHealthCheckOfRestored(t *testing.T) {
	for name, start := range map[string]func(h *restorer, programs ir.Programs) bool{
		"restored": func(h *restorer, programs ir.Programs) bool {
			return h.after(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}}, lastPrograms{Programs: programs, from: "the boot file"})
		},
		"newer rules are kept": func(h *restorer, programs ir.Programs) bool {
			return h.start(t.Context(), reconcile.Reconciler{Writer: reconcile.Writer{Dataplane: &plane{}}}, lastPrograms{programs, "the boot file", time.Now()})
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
		h := restorer{rules: s.rules}
		h.after(&reconcile.Sync{Kind: reconcile.Full, Work: reconcile.Work{Programs: programs}, Done: reconcile.Done{Operations: apply.Count{Added: added}}}, lastPrograms{Programs: programs})
		if got := s.rules.effects.flows.Busy(); got != want {
			t.Errorf("%d rules were added: flows are checked: %t", added, got)
		}
	}
}
