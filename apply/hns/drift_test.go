package hns_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/ir"
)

// The next check detects foreign additions and removals, and a pod that a load balancer waits for.
// It ignores own changes and other pods.
func TestDrift(t *testing.T) {
	m := newMachine(t, server2022, false)
	looks, reported := make(chan time.Time), make(chan map[netip.Addr]struct{}, 100)
	m.start(hns.Options{Local: func(addrs map[netip.Addr]struct{}) { reported <- addrs },
		Tick: func(time.Duration) <-chan time.Time { return looks }})
	w := world{1: {local: []int{1}, remote: []int{1}}}
	now := w.programs(false)
	m.settle(ir.Programs{}, now, false)
	drift, err := m.Drift(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// look triggers a check and reports whether it sent a token. The next check starts only after this
	// one.
	look := func() bool {
		looks <- time.Time{}
		select {
		case <-drift:
			looks <- time.Time{}
			select {
			case <-drift:
			default:
			}
			return true
		case looks <- time.Time{}:
		}
		select {
		case <-drift:
			return true
		default:
			return false
		}
	}
	if look() {
		t.Error("the first look is no news")
	}
	m.pod(20)
	if look() {
		t.Error("a pod that nobody waits for is no news")
	}
	next := now
	for _, s := range []*service{{local: []int{2}, remote: []int{2}}, {local: []int{3}}} {
		w[2] = s
		now, next = next, w.programs(false)
		m.settle(now, next, true)
		if look() {
			t.Error("what the proxy does itself is no news")
		}
	}
	remove := func(vip string) {
		m.Remove(m.LoadBalancers()[slices.IndexFunc(m.LoadBalancers(), func(l hnstest.LoadBalancer) bool { return slices.Contains(l.FrontendVIPs, vip) })].ID)
	}
	remove("10.96.0.12")
	if !look() {
		t.Error("a load balancer went, and nobody noticed")
	}
	remove("fd00:96::b")
	now = next
	w[2] = &service{local: []int{4}}
	next = w.programs(false)
	m.settle(now, next, true)
	if !look() {
		t.Error("no token for a load balancer that was removed beside a commit")
	}
	if look() {
		t.Error("the same removal is news again")
	}
	for _, policies := range [][]hnstest.Policy{{hnstest.RemoteSubnet("10.244.9.0/24", "192.0.2.19")}, nil} {
		if m.SetPolicies(m.network, policies...); !look() {
			t.Errorf("no token after the remote subnets became %v", policies)
		}
	}
	read := func() { // as a sync does, which takes over foreign changes
		if err := m.Read(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	read()
	look()
	m.SetPolicies(m.network, hnstest.RemoteSubnet("10.244.9.0/24", "192.0.2.19"))
	look()
	read()
	if m.SetPolicies(m.network); !look() {
		t.Error("no token after a change that a sync has read was reverted")
	}
	now = next
	w[1] = &service{local: []int{1, 21}, remote: []int{1}}
	next = w.programs(false)
	m.settle(now, next, true)
	look()
	m.pod(21)
	if !look() {
		t.Error("the pod that a load balancer waits for is there, and nobody noticed")
	}
	m.Close()
	select {
	case looks <- time.Time{}:
		t.Error("closed, and still looking")
	default:
	}
	var last map[netip.Addr]struct{}
	for len(reported) > 0 {
		last = <-reported
	}
	if _, ok := last[localPod(ir.IPv4, 21)]; !ok {
		t.Errorf("the pod is not reported: %v", last)
	}
}
