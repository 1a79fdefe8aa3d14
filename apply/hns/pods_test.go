package hns_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/ir"
)

// checkServed checks that a load balancer has exactly these backends, and that a comparison finds
// nothing.
func (m *machine) checkServed(step, vip string, backends ...string) {
	m.t.Helper()
	balancers, _ := m.State(hostMAC)
	at := slices.IndexFunc(balancers, func(l string) bool { return strings.HasPrefix(l, vip+" ") })
	if at < 0 {
		m.t.Fatalf("%s: %s has no load balancer", step, vip)
	}
	if _, got, _ := strings.Cut(balancers[at], " -> "); got != strings.Join(backends, " ") {
		m.t.Errorf("%s: %s has %s, want %v", step, vip, got, backends)
	}
	plan, err := applytest.Compare(m.t.Context(), m.Dataplane)
	if err != nil || !plan.Empty() {
		m.t.Errorf("%s: a comparison finds %v (%v)", step, slices.Collect(plan.Operations), err)
	}
}

// The CNI plugin creates a pod's endpoint before its Service contains the pod.
func TestNewPod(t *testing.T) {
	for name, c := range map[string]struct {
		from, to *service
		want     []string
	}{
		"first":    {nil, &service{local: []int{9}}, []string{"10.244.1.25"}},
		"replaced": {&service{local: []int{1}}, &service{local: []int{9}}, []string{"10.244.1.25"}},
		"second":   {&service{local: []int{1}}, &service{local: []int{1, 9}}, []string{"10.244.1.17", "10.244.1.25"}},
	} {
		t.Run(name, func(t *testing.T) {
			eachHost(t, func(t *testing.T, m *machine) {
				w := world{2: {local: []int{2}}}
				if c.from != nil {
					w[1] = c.from
				}
				now := w.programs(m.overlay)
				m.settle(ir.Programs{}, now, false)
				m.pod(9)
				w[1] = c.to
				m.settle(now, w.programs(m.overlay), true)
				m.checkServed("after the change", "10.96.0.12", c.want...)
			})
		})
	}
}

// A Service that waits for a pod is served as soon as a change of another one finds the pod.
func TestNewPodOfOtherService(t *testing.T) {
	eachHost(t, func(t *testing.T, m *machine) {
		w := world{1: {local: []int{9}}, 2: {local: []int{2}}}
		now := w.programs(m.overlay)
		m.settle(ir.Programs{}, now, false)
		m.pod(9)
		w[2] = &service{local: []int{2, 9}}
		m.settle(now, w.programs(m.overlay), true)
		m.checkServed("the waiting Service", "10.96.0.12", "10.244.1.25")
		m.checkServed("the changed Service", "10.96.0.13", "10.244.1.18", "10.244.1.25")
	})
}

// A comparison follows after a remote subnet was added, and corrects endpoints that are older.
func TestLateSubnet(t *testing.T) {
	m := newMachine(t, server2022, true)
	m.SetPolicies(m.network)
	looks := make(chan time.Time)
	m.start(hns.Options{Tick: func(time.Duration) <-chan time.Time { return looks }})
	w := world{1: {remote: []int{1}}}
	m.settle(ir.Programs{}, w.programs(true), false)
	drift, err := m.Drift(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.SetPolicies(m.network, hnstest.RemoteSubnet("10.244.2.0/24", "192.0.2.12"))
	looks <- time.Time{}
	looks <- time.Time{} // the first check has ended
	select {
	case <-drift:
	default:
		t.Fatal("the check does not report the subnet")
	}
	plan, err := applytest.Compare(t.Context(), m.Dataplane)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.commit(plan); err != nil {
		t.Fatal(err)
	}
	m.check(w, "after the repair")
}

// A change that replaces an endpoint also plans the other Services that use it.
func TestReplacedEndpointOfOtherService(t *testing.T) {
	m := newMachine(t, server2022, true)
	m.SetPolicies(m.network)
	w := world{1: {remote: []int{1}}, 2: {remote: []int{1}}}
	now := w.programs(true)
	m.settle(ir.Programs{}, now, false)
	m.SetPolicies(m.network, hnstest.RemoteSubnet("10.244.2.0/24", "192.0.2.12"))
	for i, remote := range [][]int{{1, 2}, {1}} {
		w[1] = &service{remote: remote}
		next := w.programs(true)
		if refused, ok := m.settle(now, next, true); !ok || len(refused) > 0 {
			t.Fatalf("change %d: %v, refused %v", i, ok, refused)
		}
		now = next
	}
	if r := m.Refusals(); len(r) > 0 {
		t.Errorf("HNS refused %q", r)
	}
	m.check(w, "after the changes")
}
