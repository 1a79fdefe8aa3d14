package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// A new, removed or replaced endpoint changes one or two elements of each map, whatever the order
// of the pool. Another process continues with the slots in the kernel. All backends are always
// equally likely.
func TestSlots(t *testing.T) {
	random := rand.New(rand.NewPCG(applytest.Seed(t), 3))
	n := newNode(t)
	program := func(hosts []int) ir.Programs {
		return ir.NewPrograms(pooled(ir.IPv4, hosts), pooled(ir.IPv6, hosts))
	}
	hosts := random.Perm(40)
	replace(t, n.Dataplane, program(hosts))
	for step := range 60 {
		was := slices.Clone(hosts)
		switch fresh := 40 + step; {
		case step%3 == 0: // the last one fills its place
			hosts = slices.Delete(hosts, 7, 8)
		case step%3 == 1:
			hosts = append(hosts, fresh)
		default:
			hosts[3] = fresh
		}
		random.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
		var changes ir.Changes
		for f, p := range program(hosts).All() {
			*changes.At(f) = ir.Diff(program(was).Of(f), p)
		}
		plan := n.PlanChanges(n.Applied().From(changes)).(*Plan)
		if got := mostAdded(plan); got > 1 {
			t.Fatalf("step %d: %d elements of a frontend are added, want one:\n%v", step, got, slices.Collect(plan.Operations))
		}
		if _, err := n.Commit(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		if step%10 > 0 {
			continue
		}
		have, err := n.reader.read(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for f, p := range program(hosts).All() {
			meaning, kernel := sim.NewEvaluator(p), nfteval.NewEvaluator(have.Of(f), sim.NewOwn(f.Loopback(), p.Node.Addrs))
			for i := range p.Services[0].Frontends {
				m := p.Services[0].Frontends[i].Match
				if m.IsNodePort() {
					m.Addr = p.Node.IP
				}
				pkt := sim.Packet{Src: nftest.Addr(f, "198.51.100.1"), Dst: m.Addr, Port: m.Port, Protocol: m.Protocol, In: "eth0"}
				if want, got := meaning.Outcome(pkt, nil), kernel.Outcome(pkt, nil); !got.Equal(want) {
					t.Fatalf("step %d: %v meets %v, want %v", step, pkt, got, want)
				}
			}
		}
		again, err := OpenIn(n.Fd(), apply.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if plan := replace(t, again, program(hosts)); !plan.Empty() {
			t.Fatalf("step %d: the next process does %v", step, slices.Collect(plan.Operations))
		}
		n.Dataplane.Close()
		n.Dataplane = again
		t.Cleanup(func() { again.Close() })
	}
}

// replace reads the tables, and applies Programs.
func replace(t testing.TB, d *Dataplane, want ir.Programs) *Plan {
	t.Helper()
	if err := d.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	plan := d.Plan(want).(*Plan)
	if result, err := d.Commit(t.Context(), plan); err != nil || result.Error() != nil {
		t.Fatal(err, result.Error())
	}
	return plan
}

// pooled returns one Service whose pools all have the backends of these hosts, in this order.
func pooled(f ir.Family, hosts []int) *ir.Program {
	p := nftest.Program(f)
	p.Services = p.Services[:1]
	pools := slices.Clone(p.Services[0].Pools)
	for i := range pools {
		pools[i].Backends = nil
		for _, h := range hosts {
			to := nftest.AddrPort(f, fmt.Sprintf("10.244.2.%d:8080", h+1))
			pools[i].Backends = append(pools[i].Backends, ir.Backend{AddrPort: to, Origin: ir.Origin{Object: "EndpointSlice ns/a", Field: to.String()}})
		}
	}
	p.Services[0].Pools = pools
	return p
}

// mostAdded returns the maximum number of elements that a Plan adds to a map of backends for one
// frontend.
func mostAdded(p *Plan) (most int) {
	for f, c := range ir.Present(p.families) {
		n := map[string]int{}
		for _, e := range c.sets.elements {
			for i := range e.added {
				if to := e.added[i].To; to != (netip.AddrPort{}) {
					n[fmt.Sprint(f, e.set.Name, matchOf(e.set, &e.added[i].Key))]++
				}
			}
		}
		for _, k := range n {
			most = max(most, k)
		}
	}
	return most
}
