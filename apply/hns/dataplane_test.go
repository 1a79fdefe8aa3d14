package hns_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/ir"
)

var (
	server2019 = hns.Version{Major: 9, Minor: 5}
	server2022 = hns.Version{Major: 15, Minor: 1}
	newest     = hns.Version{Major: 16, Minor: 0} // can modify load balancers
)

// eachHost runs a test on each kind of host.
func eachHost(t *testing.T, run func(*testing.T, *machine)) {
	for _, overlay := range []bool{false, true} {
		for _, v := range []hns.Version{server2022, newest} {
			kind := "L2Bridge"
			if overlay {
				kind = "Overlay"
			}
			t.Run(fmt.Sprintf("%s/%s", kind, v), func(t *testing.T) { run(t, newMachine(t, v, overlay)) })
		}
	}
}

func TestApply(t *testing.T) {
	w := world{1: {local: []int{0}, remote: []int{0}, kinds: []ir.Kind{ir.NodePort}, sticky: true}}
	for _, row := range []struct {
		v         hns.Version
		overlay   bool
		balancers []string
		endpoints []string
	}{
		{server2022, false, []string{
			"10.96.0.12 6 80->8080 flags 0 distribution 2 flags 0 source - -> 10.244.1.16 10.244.2.16",
			foreignLine,
			"fd00:96::b 6 80->8080 flags 0 distribution 2 flags 2 source - -> fd00:10:244:1::10 fd00:10:244:2::10",
			"node 6 30001->8080 flags 18 distribution 2 flags 0 source - -> 10.244.1.16 10.244.2.16",
			"node 6 30001->8080 flags 18 distribution 2 flags 2 source - -> fd00:10:244:1::10 fd00:10:244:2::10",
		}, []string{"10.244.2.16 mac 02-11-0a-f4-02-10 flags 1", "fd00:10:244:2::10 mac 02-11-10-00-00-00 flags 1"}},
		{server2019, false, []string{ // neither dual-stack nor affinity
			"10.96.0.12 6 80->8080 flags 0 distribution 0 flags 0 source - -> 10.244.1.16 10.244.2.16",
			foreignLine,
			"node 6 30001->8080 flags 18 distribution 0 flags 0 source - -> 10.244.1.16 10.244.2.16",
		}, []string{"10.244.2.16 mac 02-11-0a-f4-02-10 flags 1"}},
		{server2022, true, []string{
			"10.96.0.12 6 80->8080 flags 0 distribution 2 flags 1 source 10.244.1.254 -> 10.244.1.16 10.244.2.16",
			foreignLine,
			"node 6 30001->8080 flags 18 distribution 2 flags 0 source 10.244.1.254 -> 10.244.1.16 10.244.2.16",
		}, []string{
			"10.244.1.254 mac host flags 0",
			`10.244.2.16 mac 02-11-0a-f4-02-10 flags 1 {"Settings": {"ProviderAddress": "192.0.2.12"}, "Type": "ProviderAddress"}`,
			`10.96.0.12 mac host flags 1 {"Settings": {"ProviderAddress": "192.0.2.11"}, "Type": "ProviderAddress"}`,
		}},
	} {
		t.Run(fmt.Sprintf("%s overlay %v", row.v, row.overlay), func(t *testing.T) {
			m := newMachine(t, row.v, row.overlay)
			if _, ok := m.settle(ir.Programs{}, w.programs(row.overlay), false); !ok {
				t.Fatal("the host is not as it should be")
			}
			balancers, endpoints := m.State(hostMAC)
			if diff := cmp.Diff(row.balancers, balancers); diff != "" {
				t.Errorf("load balancers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.endpoints, endpoints); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if r := m.Refusals(); len(r) > 0 {
				t.Errorf("refused: %q", r)
			}
		})
	}
}

// A thousand changes end in the state of a new host, without leftovers.
func TestHistories(t *testing.T) {
	eachHost(t, func(t *testing.T, m *machine) {
		r, w := random{rand.New(rand.NewPCG(1, 2))}, world{}
		now := w.programs(m.overlay)
		m.settle(ir.Programs{}, now, false)
		for step := range 250 {
			r.change(w)
			next := w.programs(m.overlay)
			if refused, ok := m.settle(now, next, true); !ok || len(refused) > 0 {
				t.Fatalf("step %d: %v, refused %v", step, ok, refused)
			}
			now = next
			m.check(w, fmt.Sprintf("step %d", step))
		}
		if r := m.Refusals(); len(r) > 0 {
			t.Errorf("HNS refused %d calls, the first: %s", len(r), r[0])
		}
		if n := m.OpenHandles(); n > 0 {
			t.Errorf("%d handles are open", n)
		}
		if err := m.Read(context.Background(), ir.Programs{}); err != nil || !m.Plan(now).Empty() {
			t.Errorf("after all of it something is left to do (%v)", err)
		}
	})
}

// After any call that fails in any way, the next attempts reach the desired state.
func TestFaults(t *testing.T) {
	for _, fault := range []struct {
		name string
		fail func(s *hnstest.Service, n int)
	}{
		{"unreachable", func(s *hnstest.Service, n int) { s.Before = nth(n, uint32(0x800706ba)) }},
		{"refused", func(s *hnstest.Service, n int) { s.Before = nth(n, uint32(0x80070057)) }},
		{"failed", func(s *hnstest.Service, n int) { s.Before = nth(n, uint32(0x80004005)) }},
		{"the answer is lost", func(s *hnstest.Service, n int) { s.After = nth(n, uint32(0x800706be)) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			eachHost(t, func(t *testing.T, m *machine) {
				failed := 0
				for n := 1; ; n = applytest.Next(n) {
					m := newMachine(t, m.version(), m.overlay)
					r, w := random{rand.New(rand.NewPCG(5, 6))}, world{}
					r.change(w)
					now := w.programs(m.overlay)
					before := m.Calls()
					fault.fail(m.Service, n)
					refused, ok := m.settle(ir.Programs{}, now, false)
					for range 3 {
						r.change(w)
						next := w.programs(m.overlay)
						refused, ok = m.settle(now, next, ok && len(refused) == 0)
						now = next
					}
					calls := m.Calls() - before
					m.Before, m.After = nil, nil
					if !ok || len(refused) > 0 {
						if refused, ok = m.settle(ir.Programs{}, now, false); !ok || len(refused) > 0 {
							t.Fatalf("call %d: %v, refused %v", n, ok, refused)
						}
					}
					m.check(w, fmt.Sprintf("call %d", n))
					failed++
					if calls < n {
						break
					}
				}
				t.Logf("%d calls failed, one after the other", failed)
			})
		})
	}
}

// nth returns a function that fails the n-th call.
func nth(n int, result uint32) func(hnstest.Call) uint32 {
	return func(c hnstest.Call) uint32 {
		if n--; n == 0 {
			return result
		}
		return 0
	}
}

// HNS stops during an operation and restarts, with all objects, without those that were created, or
// with other network ids.
func TestRestartOfHNS(t *testing.T) {
	for name, loss := range map[string]hnstest.Loss{"with all": hnstest.Nothing, "without what was made": hnstest.Made, "anew": hnstest.Identity} {
		t.Run(name, func(t *testing.T) {
			eachHost(t, func(t *testing.T, m *machine) {
				r, w := random{rand.New(rand.NewPCG(7, 8))}, world{}
				for range 6 {
					r.change(w)
				}
				now := w.programs(m.overlay)
				m.settle(ir.Programs{}, now, false)
				calls := 0
				m.Before = func(hnstest.Call) uint32 {
					if calls++; calls > 5 {
						return 0x800706ba
					}
					return 0
				}
				r.change(w)
				if _, ok := m.settle(now, w.programs(m.overlay), true); ok {
					t.Fatal("HNS was away, and nobody noticed")
				}
				m.Before = nil
				m.Stop()
				m.Start(loss)
				if loss != hnstest.Nothing {
					m.foreign("203.0.113.250", 80)
				}
				if refused, ok := m.settle(ir.Programs{}, w.programs(m.overlay), false); !ok || len(refused) > 0 {
					t.Fatalf("%v, refused %v", ok, refused)
				}
				m.check(w, "at the end")
			})
		})
	}
}

// A restarted proxy adopts existing objects: it lists, and changes nothing.
func TestRestartAdopts(t *testing.T) {
	eachHost(t, func(t *testing.T, m *machine) {
		r, w := random{rand.New(rand.NewPCG(9, 10))}, world{}
		for range 12 {
			r.change(w)
		}
		now := w.programs(m.overlay)
		m.settle(ir.Programs{}, now, false)
		m.restart()
		m.Before = func(c hnstest.Call) uint32 {
			for _, verb := range []string{"Create", "Modify", "Delete"} {
				if strings.HasPrefix(c.Name, verb) {
					t.Errorf("%s %s", c.Name, c.Text)
				}
			}
			return 0
		}
		plan, _, err := apply.Once(context.Background(), m.Dataplane, now, func(apply.Plan) bool { return true })
		if err != nil || !plan.Empty() {
			t.Errorf("plan is empty: %v, %v", plan != nil && plan.Empty(), err)
		}
	})
}

// The calls for a changed endpoint do not depend on the number of Services.
func TestCallsForAChange(t *testing.T) {
	eachHost(t, func(t *testing.T, m *machine) {
		var counts []int
		for _, n := range []int{10, 400} {
			m := newMachine(t, m.version(), m.overlay)
			w := world{}
			for i := range n {
				w[i] = &service{local: []int{i % localPods}, remote: []int{i % 12}}
			}
			now := w.programs(m.overlay)
			if _, ok := m.settle(ir.Programs{}, now, false); !ok {
				t.Fatal("start")
			}
			w[3] = &service{local: []int{3}, remote: []int{3, 100}}
			before := m.Calls()
			if _, ok := m.settle(now, w.programs(m.overlay), true); !ok {
				t.Fatal("change")
			}
			counts = append(counts, m.Calls()-before)
		}
		most := 16 // 5 for an endpoint, 1 + 3 for a load balancer in each family; 4 for the network of an overlay
		if counts[0] != counts[1] || counts[1] > most+4 {
			t.Errorf("calls of one change among 10 and 400 Services: %v, want the same, at most %d", counts, most+4)
		}
		t.Logf("%d calls", counts[1])
	})
}

// A Service that HNS rejects is omitted and reported, and the others are applied.
func TestRefusedService(t *testing.T) {
	m := newMachine(t, server2022, false)
	w := world{1: {remote: []int{1}}, 2: {remote: []int{2}}}
	m.foreign("10.96.0.12", 80) // the ClusterIP of Service 1
	refused, ok := m.settle(ir.Programs{}, w.programs(false), false)
	if !ok || len(refused) != 1 || refused[0].Service.Name != "s001" {
		t.Fatalf("%v, refused %v", ok, refused)
	}
	for _, want := range []string{"10.96.0.12:80/tcp", "another program", "0x803b0013"} {
		if !strings.Contains(refused[0].Reason.Error(), want) {
			t.Errorf("the reason lacks %q: %v", want, refused[0].Reason)
		}
	}
	balancers, endpoints := m.State(hostMAC)
	if !slices.ContainsFunc(balancers, func(l string) bool { return strings.HasPrefix(l, "10.96.0.13 ") }) {
		t.Errorf("the other Service is not there: %q", balancers)
	}
	if slices.ContainsFunc(endpoints, func(e string) bool { return strings.HasPrefix(e, "10.244.2.17 ") }) {
		t.Errorf("what the refused Service needed is left: %q", endpoints)
	}
}

// If HNS rejects many Services, the cause counts as the node's, and what was in force remains.
func TestSharedCause(t *testing.T) {
	m := newMachine(t, server2022, false)
	w := world{0: {remote: []int{1}}}
	m.settle(ir.Programs{}, w.programs(false), false)
	for i := 1; i <= 3; i++ {
		w[i] = &service{remote: []int{i}}
		m.foreign(fmt.Sprintf("10.96.0.%d", 11+i), 80)
	}
	_, _, err := apply.Once(t.Context(), m, w.programs(false), func(apply.Plan) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "the kernel refuses the rules of 3 of 4 Services, which counts as a failure of the node") {
		t.Error(err)
	}
	balancers, _ := m.State(hostMAC)
	if !slices.ContainsFunc(balancers, func(l string) bool { return strings.HasPrefix(l, "10.96.0.11 ") }) {
		t.Errorf("the previous Service is gone: %q", balancers)
	}
}

// A failed removal of a load balancer is retried, and does not block a required one.
func TestRefusedRemoval(t *testing.T) {
	m := newMachine(t, server2022, false)
	w := world{1: {local: []int{1}, remote: []int{1}}, 2: {local: []int{2}}}
	now := w.programs(false)
	m.settle(ir.Programs{}, now, false)
	var refused string
	for _, l := range m.LoadBalancers() {
		if slices.Contains(l.FrontendVIPs, "10.96.0.12") {
			refused = l.ID
		}
	}
	m.Stick(refused, true)
	delete(w, 1)
	next := w.programs(false)
	if refused, ok := m.settle(now, next, true); !ok || len(refused) > 0 {
		t.Fatalf("%v, refused %v", ok, refused)
	}
	want := []string{"removal of load balancer 10.96.0.12:80/tcp of Service ns/s001: the kernel refuses it: "}
	check := func(step string, want ...string) {
		t.Helper()
		if len(m.refusals) != len(want) || len(want) == 1 && !strings.HasPrefix(m.refusals[0], want[0]) {
			t.Errorf("%s: refused %q, want %q", step, m.refusals, want)
		}
	}
	check("a deletion", want...)
	m.settle(next, next, true)
	check("a retry", want...)
	if _, ok := m.settle(ir.Programs{}, next, false); !ok {
		t.Fatal("after a read")
	}
	check("after a read", want...)
	plan, err := applytest.Compare(t.Context(), m.Dataplane)
	if err != nil {
		t.Fatal(err)
	}
	for op := range plan.Operations {
		if !m.remains[op.Object] {
			t.Errorf("a comparison finds %v", op)
		}
	}
	if _, err := m.commit(plan); err != nil {
		t.Fatal(err)
	}
	check("after a comparison", want...)
	now = next
	m.Stick(refused, false)
	w[2] = &service{local: []int{3}}
	next = w.programs(false)
	m.settle(now, next, true)
	m.check(w, "after the deletion worked")
	check("after the deletion worked")
}

// A shutdown during the replacement of load balancers leaves none of them removed.
func TestEndDuringReplacement(t *testing.T) {
	for n := 1; ; n++ {
		m := newMachine(t, server2022, false)
		w := world{}
		for i := range 3 {
			w[i] = &service{local: []int{1}, remote: []int{i}, kinds: []ir.Kind{ir.NodePort}, noOptimize: true}
		}
		now := w.programs(false)
		m.settle(ir.Programs{}, now, false)
		for i := range 3 {
			w[i] = &service{local: []int{1}, remote: []int{i, i + 3}, kinds: []ir.Kind{ir.NodePort}, noOptimize: true}
		}
		next := w.programs(false)
		var changes ir.Changes
		for f, p := range ir.Present(next) {
			*changes.At(f) = ir.Diff(now.Of(f), p)
		}
		before := len(m.LoadBalancers())
		ctx, end := context.WithCancel(context.Background())
		calls := 0
		m.Before = func(hnstest.Call) uint32 {
			if calls++; calls == n {
				end()
			}
			return 0
		}
		_, err := m.Commit(ctx, m.PlanChanges(m.Applied().From(changes)))
		m.Before = nil
		end()
		if got := len(m.LoadBalancers()); got != before {
			t.Errorf("the end at call %d leaves %d load balancers of %d", n, got, before)
		}
		if refused, ok := m.settle(ir.Programs{}, next, false); !ok || len(refused) > 0 {
			t.Fatalf("call %d: %v, refused %v", n, ok, refused)
		}
		m.check(w, fmt.Sprintf("call %d", n))
		if calls < n {
			if err != nil {
				t.Error(err)
			}
			break
		}
	}
}

// Failed calls about load balancers are counted by their call, the kind of the load balancer, and
// the cause.
func TestBalancerFailures(t *testing.T) {
	m := newMachine(t, newest, false)
	w := world{1: {local: []int{1}, kinds: []ir.Kind{ir.NodePort}}, 2: {local: []int{2}}, 3: {local: []int{3}}}
	stick := func(vip string, refused bool) {
		for _, l := range m.LoadBalancers() {
			if strings.Join(l.FrontendVIPs, "") == vip {
				m.Stick(l.ID, refused)
			}
		}
	}
	check := func(step string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, m.failures); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		m.failures = nil
	}

	m.foreign("10.96.0.14", 80) // the ClusterIP of Service 3
	now := w.programs(false)
	m.settle(ir.Programs{}, now, false)
	check("an address of another program", "add IPv4 clusterip port_already_exists")

	delete(w, 3)
	now = w.programs(false)
	m.settle(ir.Programs{}, now, false)
	stick("10.96.0.12", true)
	stick("", true)
	delete(w, 1)
	next := w.programs(false)
	m.settle(now, next, true)
	check("removals that fail", "remove IPv4 clusterip other", "remove IPv4 nodeport other", "remove IPv6 nodeport other")
	w[2] = &service{local: []int{2, 4}}
	now, next = next, w.programs(false)
	m.settle(now, next, true)
	check("removals that fail again", "remove IPv4 clusterip other", "remove IPv4 nodeport other", "remove IPv6 nodeport other")

	stick("10.96.0.12", false)
	stick("", false)
	m.Before = func(c hnstest.Call) uint32 {
		if c.Name == "ModifyLoadBalancer" {
			return 0x803b001e
		}
		return 0
	}
	w[2] = &service{local: []int{4}}
	m.settle(next, w.programs(false), true)
	check("modifications that fail", "change IPv4 clusterip invalid_ip", "change IPv6 clusterip invalid_ip")
}

// A pod whose endpoint is created after its Service is served from then on.
func TestLatePod(t *testing.T) {
	m := newMachine(t, server2022, false)
	w := world{1: {local: []int{1}, remote: []int{1}}}
	now := w.programs(false)
	m.settle(ir.Programs{}, now, false)
	w[1] = &service{local: []int{1, 9}, remote: []int{1}} // HNS has no pod 9
	next := w.programs(false)
	if _, ok := m.settle(now, next, true); !ok {
		t.Fatal("change")
	}
	m.pod(9)
	plan, err := applytest.Compare(t.Context(), m.Dataplane)
	if err != nil || plan.Empty() {
		t.Fatalf("the pod is not missed: %v", err)
	}
	if _, err := m.Commit(context.Background(), plan); err != nil {
		t.Fatal(err)
	}
	balancers, _ := m.State(hostMAC)
	if want := "10.96.0.12 6 80->8080 flags 0 distribution 0 flags 0 source - -> 10.244.1.17 10.244.1.25 10.244.2.17"; balancers[0] != want {
		t.Errorf("got %s\nwant %s", balancers[0], want)
	}
}

// Objects that another program removes are restored.
func TestCompareRepairs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *machine) {
		w := world{1: {local: []int{1}, remote: []int{1, 2}}, 2: {remote: []int{2, 3}}}
		now := w.programs(m.overlay)
		m.settle(ir.Programs{}, now, false)
		for _, l := range m.LoadBalancers() {
			if slices.Contains(l.FrontendVIPs, "10.96.0.12") {
				m.Remove(l.ID)
			}
		}
		for _, e := range m.Endpoints() {
			if e.IpConfigurations[0].IpAddress == "10.244.2.19" {
				m.Remove(e.ID)
			}
		}
		plan, err := applytest.Compare(t.Context(), m.Dataplane)
		if err != nil || plan.Empty() {
			t.Fatalf("nothing was missed: %v", err)
		}
		for op := range plan.Differences {
			t.Logf("%s %s %q %q", op.Verb, op.Object, op.Have, op.Want)
		}
		if _, err := m.Commit(context.Background(), plan); err != nil {
			t.Fatal(err)
		}
		if err := m.Read(context.Background(), ir.Programs{}); err != nil || !m.Plan(now).Empty() {
			t.Error("something is left to do")
		}
		m.check(w, "after the repair")
	})
}

// An old host reports the required version. Configured direct server return is not omitted
// silently.
func TestOldHost(t *testing.T) {
	w := world{1: {remote: []int{1}}}
	old := hnstest.New(hns.Version{Major: 9, Minor: 1})
	if _, err := hns.New(hnstest.Host{Service: old}, hns.Options{Network: "l2"}); err == nil || !strings.Contains(err.Error(), "HNS 9.1: must be 9.2") {
		t.Errorf("HNS 9.1: %v", err)
	}
	old.Stop()
	if d, err := hns.New(hnstest.Host{Service: old}, hns.Options{Network: "l2"}); err != nil {
		t.Errorf("a service that does not answer yet: %v", err)
	} else if old.Start(hnstest.Nothing); d.Read(context.Background(), ir.Programs{}) == nil {
		t.Error("HNS 9.1 is read")
	}
	m := newMachine(t, hns.Version{Major: 10, Minor: 1}, false)
	programs := w.programs(false)
	programs.IPv4.Node.HNS.EnableDSR = true
	if err := m.Read(context.Background(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Commit(context.Background(), m.Plan(programs)); err == nil || !strings.Contains(err.Error(), "winkernel.enableDSR") {
		t.Errorf("enableDSR: %v", err)
	}
}

// If the service is not reachable, no Service is refused and no object counts as removed. The
// commit fails as a whole, and nothing is written before everything is read again.
func TestUnreachable(t *testing.T) {
	ctx := context.Background()
	for _, result := range []uint32{0x800706b5, 0x800706ba, 0x800706be, 0x80070426, 0x803b0020} {
		m := newMachine(t, server2022, false)
		w := world{1: {local: []int{1}, remote: []int{1}}}
		now := w.programs(false)
		m.settle(ir.Programs{}, now, false)
		w[1], w[2] = &service{local: []int{2}, remote: []int{2}}, &service{remote: []int{3}}
		var changes ir.Changes
		for f, p := range ir.Present(w.programs(false)) {
			*changes.At(f) = ir.Diff(now.Of(f), p)
		}
		m.Before = func(hnstest.Call) uint32 { return result }
		done, err := m.Commit(ctx, m.PlanChanges(m.Applied().From(changes)))
		if err == nil || len(done.Refused) > 0 {
			t.Errorf("%#x: %v, refused %v", result, err, done.Refused)
		}
		m.Before = nil
		calls := m.Calls()
		if _, err := m.Commit(ctx, m.PlanChanges(m.Applied().From(changes))); err == nil || m.Calls() != calls {
			t.Errorf("%#x: %d calls before anything was read (%v)", result, m.Calls()-calls, err)
		}
	}
}

// On an overlay the node uses its own address for nodes and for addresses outside all remote
// subnets. For pods it uses the source VIP.
func TestSourceOnOverlay(t *testing.T) {
	for backend, want := range map[string]string{
		"10.244.2.20": "source 10.244.1.254", "192.0.2.12": "source 192.0.2.11", "198.51.100.9": "source 192.0.2.11"} {
		m := newMachine(t, server2022, true)
		programs := world{1: {remote: []int{1}}}.programs(true)
		programs.IPv4.Services[0].Pools[0].Backends[0].AddrPort = netip.AddrPortFrom(netip.MustParseAddr(backend), 8080)
		if refused, ok := m.settle(ir.Programs{}, programs, false); !ok || len(refused) > 0 {
			t.Fatalf("%s: %v, refused %v", backend, ok, refused)
		}
		balancers, _ := m.State(hostMAC)
		if !strings.Contains(balancers[0], want+" -> "+backend) {
			t.Errorf("%s: got %s, want %s", backend, balancers[0], want)
		}
	}
}

// An overlay network may exist before the host has its management address. Nothing is written until
// then, with the reason; afterwards everything is.
func TestOverlayAwaitsAddress(t *testing.T) {
	ctx := context.Background()
	m := newMachine(t, server2022, true)
	m.noMAC = true
	w := world{1: {remote: []int{1}}}
	now := w.programs(true)
	if err := m.Read(ctx, ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Commit(ctx, m.Plan(now)); err == nil || !strings.Contains(err.Error(), "192.0.2.11 must be on an interface of the host") {
		t.Errorf("without the address: %v", err)
	}
	if balancers, endpoints := m.State(hostMAC); !slices.Equal(balancers, []string{foreignLine}) || len(endpoints) > 0 {
		t.Errorf("without the address the host got %q, %q", balancers, endpoints)
	}
	m.noMAC = false
	if refused, ok := m.settle(ir.Programs{}, now, false); !ok || len(refused) > 0 {
		t.Errorf("with the address: %v, refused %v", ok, refused)
	}
	m.check(w, "with the address")
}

// Two Services that share an address share its health check load balancer, which is removed with
// the last of them.
func TestSharedHealthChecks(t *testing.T) {
	programs := func(n int) ir.Programs {
		w := world{}
		for i := range n {
			w[i] = &service{local: []int{i}, kinds: []ir.Kind{ir.LoadBalancer}}
		}
		p := w.program(ir.IPv4, false)
		p.Node.HNS.ForwardHealthCheckVIP, p.Node.HNS.HealthzPort = true, 10256
		for i := range p.Services {
			lb := &p.Services[i].Frontends[1]
			lb.Match.Addr, lb.Match.Port = netip.MustParseAddr("203.0.113.1"), uint16(80+i)
		}
		return ir.NewPrograms(p)
	}
	const health = "203.0.113.1 6 10256->10256 flags 0 distribution 0 flags 0 source - -> 10.244.1.2"
	m := newMachine(t, server2022, false)
	now := programs(0)
	m.settle(ir.Programs{}, now, false)
	for _, n := range []int{2, 1, 2, 0} {
		next := programs(n)
		if refused, ok := m.settle(now, next, true); !ok || len(refused) > 0 {
			t.Fatalf("%d Services: %v, refused %v", n, ok, refused)
		}
		now = next
		balancers, _ := m.State(hostMAC)
		if has := slices.Contains(balancers, health); has != (n > 0) {
			t.Errorf("%d Services: health checks are led to the node: %v: %q", n, has, balancers)
		}
	}
	if r := m.Refusals(); len(r) > 0 {
		t.Errorf("refused: %q", r)
	}
}

// HNS restarts without the created objects, and no call failed meanwhile. The first change that
// requires a missing object causes a complete read.
func TestLostBetweenCommits(t *testing.T) {
	eachHost(t, func(t *testing.T, m *machine) {
		w := world{1: {local: []int{1}, remote: []int{1}}, 2: {remote: []int{2}}}
		now := w.programs(m.overlay)
		m.settle(ir.Programs{}, now, false)
		m.Stop()
		m.Start(hnstest.Made)
		m.foreign("203.0.113.250", 80)
		w[1] = &service{local: []int{2}}
		if refused, ok := m.settle(now, w.programs(m.overlay), true); !ok || len(refused) > 0 {
			t.Fatalf("%v, refused %v", ok, refused)
		}
		m.check(w, "after the change")
	})
}

// Committing a Plan of another dataplane is an error.
func TestForeignPlan(t *testing.T) {
	m := newMachine(t, server2022, false)
	if err := m.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Commit(t.Context(), struct{ apply.Plan }{}); err == nil {
		t.Error("it was committed")
	}
}
