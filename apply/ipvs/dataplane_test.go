package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/render/iptables"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// program returns a Program with Services of every kind, in IPv4.
func program() *ir.Program {
	p := irtest.Program(ir.ModeIPVS)
	p.Node.IPVS = &ir.IPVS{Scheduler: "rr"}
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			f := &p.Services[i].Frontends[j]
			f.Fallback = ir.Reject
			if n := len(f.Routes); n > 1 && f.Policy == ir.Local {
				f.Routes = f.Routes[n-1:]
			}
		}
	}
	return p
}

// bench is a Dataplane on fakes.
type bench struct {
	*Dataplane
	t      *testing.T
	k      *fakeKernel
	tables *fakeTables
	now    time.Time
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, k: newFakeKernel(), tables: &fakeTables{}, now: time.Unix(1e9, 0)}
	for _, a := range program().Node.Addrs {
		b.k.families.IPv4.local[a] = true
	}
	b.restart(apply.IPVS{})
	return b
}

// restart discards the state of the process.
func (b *bench) restart(o apply.IPVS) {
	b.tables.applied = apply.Applied{}
	families := ir.Families()
	b.Dataplane = newDataplane(b.k, b.tables, families[:], apply.Options{IPVS: o})
	b.drains.now = func() time.Time { return b.now }
}

// once applies the Programs.
func (b *bench) once(p ...*ir.Program) apply.Plan {
	b.t.Helper()
	want := ir.NewPrograms(p...)
	plan, result, err := apply.Once(b.t.Context(), b.Dataplane, want, func(apply.Plan) bool { return true })
	if err == nil && plan.Empty() { // the daemon commits an empty plan, too
		result, err = b.Commit(b.t.Context(), plan)
	}
	if err = errors.Join(err, result.Error()); err != nil {
		b.t.Fatal(err)
	}
	b.holds(want)
	return plan
}

func (b *bench) holds(want ir.Programs) {
	b.t.Helper()
	if d := b.k.difference(want, b.tables); d != "" {
		b.t.Fatal(d)
	}
}

// change applies changes like the daemon.
func (b *bench) change(changes ...ir.Change) apply.Plan {
	b.t.Helper()
	var all ir.Changes
	all.IPv4 = changes
	plan := b.PlanChanges(b.Applied().From(all))
	result, err := b.Commit(b.t.Context(), plan)
	if err = errors.Join(err, result.Error()); err != nil {
		b.t.Fatal(err)
	}
	return plan
}

func operations(p apply.Plan) (all []string) {
	for op := range p.Operations {
		all = append(all, op.Verb.String()+" "+op.Object)
	}
	return all
}

// withBackends returns a copy of a Service with other backends in its first pool.
func withBackends(s *ir.Service, backends ...ir.Backend) *ir.Service {
	now := *s
	now.Pools = slices.Clone(s.Pools)
	now.Pools[0].Backends = backends
	return &now
}

// Connections are those of virtual servers, added up over their removal, for each address of a node port.
func TestTraffic(t *testing.T) {
	b := newBench(t)
	b.meter = &meter{apply.NewMeter[ir.Match](nil), b.k, []ir.Family{ir.IPv4, ir.IPv6}, &b.applied}
	p := program()
	b.once(p)
	s := &p.Services[slices.IndexFunc(p.Services, func(s ir.Service) bool {
		return slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Kind == ir.NodePort })
	})]
	connect := func() {
		for _, v := range b.k.families.IPv4.servers {
			v.conns += 10
		}
	}
	count := func() (n [ir.NodePort + 1]uint64) {
		t.Helper()
		all, err := b.Counters().Traffic(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for port, traffic := range all {
			if port.Service == s.Name {
				for kind := range n {
					n[kind] += traffic.Kinds[kind]
				}
			}
		}
		return n
	}
	connect()
	want := [ir.NodePort + 1]uint64{}
	addresses := uint64(0)
	for _, v := range rules.Lower(p).VirtualServers {
		if v.Port.Service == s.Name {
			want[v.Kind] += 10
			if v.Kind == ir.NodePort {
				addresses++
			}
		}
	}
	if addresses < 2 || count() != want {
		t.Fatalf("%v, want %v, %d addresses of node ports", count(), want, addresses)
	}
	connect()
	without := *s
	without.Frontends = slices.DeleteFunc(slices.Clone(s.Frontends), func(f ir.Frontend) bool { return f.Kind == ir.NodePort })
	b.change(ir.Change{Name: s.Name, New: &without})
	b.change(ir.Change{Name: s.Name, New: s})
	connect()
	for kind := range want {
		want[kind] *= 3
	}
	if got := count(); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	b.change(ir.Change{Name: s.Name})
	if got := count(); got != ([ir.NodePort + 1]uint64{}) {
		t.Errorf("%v after the Service was removed", got)
	}
}

// A first load, a second one without changes, and the removal of everything.
func TestLoad(t *testing.T) {
	b := newBench(t)
	p := program()
	b.once(p)
	if err := b.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if again := b.Plan(ir.NewPrograms(p)); !again.Empty() {
		t.Errorf("after a load: %v", operations(again))
	}
	empty := program()
	empty.Services = nil
	b.once(empty)
}

// firstTCP returns a Service in the program with its TCP ClusterIP.
func firstTCP(p *ir.Program) (*ir.Service, ir.Match) {
	for i := range p.Services {
		s := &p.Services[i]
		for _, f := range s.Frontends {
			if f.Kind == ir.ClusterIP && f.Match.Protocol == ir.TCP && len(s.Pools) > 0 && len(s.Pools[0].Backends) > 1 && s.Pools[0].Affinity == nil &&
				len(f.Routes) > 0 && f.Routes[0].Pool == 0 {
				return s, f.Match
			}
		}
	}
	panic("the program has no such Service")
}

// A new endpoint is one request, however many other objects there are.
func TestOneEndpoint(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, _ := firstTCP(p)
	all := svc.Pools[0].Backends
	b.once(p)
	b.change(ir.Change{Name: svc.Name, New: withBackends(svc, all[:1]...)})
	b.k.made, b.k.looked = 0, 0
	plan := b.change(ir.Change{Name: svc.Name, New: withBackends(svc, all...)})
	servers := 0
	for _, f := range svc.Frontends {
		if len(f.Routes) > 0 && f.Routes[len(f.Routes)-1].Pool == 0 {
			servers++
		}
	}
	if b.k.made < servers || b.k.made > servers*(len(all)-1)*2 || b.k.looked > 0 {
		t.Errorf("%d requests: %v", b.k.made, operations(plan))
	}
}

// No packet matches a partial Service: an address is bound after everything that serves it,
// including rules, and is removed before any of it.
func TestOrder(t *testing.T) {
	for _, takeover := range []bool{false, true} {
		b := newBench(t)
		p := program()
		r := rules.Lower(p)
		if takeover {
			b.tables.have = iptables.LowerAll(ir.NewPrograms(irtest.Program(ir.ModeIPTables)))
		}
		whole := func(addr netip.Addr) bool {
			s := b.k.families.IPv4
			for _, v := range r.VirtualServers {
				if v.Key.Addr == addr && (s.servers[v.Key] == nil || len(s.servers[v.Key].dests) != len(v.RealServers)) {
					return false
				}
			}
			for _, e := range r.Elements {
				if e.Addr == addr && !s.sets[e.Set].has(e.ElementKey) {
					return false
				}
			}
			return true
		}
		written := false
		b.tables.met = func() {
			written = true
			if takeover && len(b.k.families.IPv4.bound) != len(r.Addresses()) {
				t.Errorf("the old rules go while %d of %d addresses are bound", len(b.k.families.IPv4.bound), len(r.Addresses()))
			}
		}
		b.k.met = func(q *request) {
			switch q.op {
			case addAddress:
				if !whole(q.element.Addr) || written == takeover {
					t.Errorf("takeover %t: %s is bound; rules are written: %t", takeover, q.element.Addr, written)
				}
			case removeAddress:
				if !whole(q.element.Addr) {
					t.Errorf("%s goes after what serves it", q.element.Addr)
				}
			case removeServer, removeElement:
				addr := netip.Addr{}
				if q.server != nil {
					addr = q.server.Key.Addr
				} else {
					addr = q.element.Addr
				}
				if b.k.families.IPv4.bound[addr] {
					t.Errorf("%s goes before its address", q.object())
				}
			}
		}
		b.once(p)
		b.tables.met = nil
		empty := program()
		empty.Services = nil
		b.once(empty)
	}
}

// A removed TCP backend keeps its connections, receives no new ones, and is removed after the last
// one ends. A UDP backend is removed immediately.
func TestDrain(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	all := svc.Pools[0].Backends
	gone := all[0].AddrPort
	b.once(p)
	b.k.connect(key, gone, 3)
	b.change(ir.Change{Name: svc.Name, New: withBackends(svc, all[1:]...)})
	d, there := b.k.families.IPv4.servers[key].dests[gone]
	if !there || d.weight != 0 {
		t.Fatalf("a backend with connections: there %t, %+v", there, d)
	}
	want := []apply.Drain{{Service: svc.Name, Frontend: key, Backend: gone, Since: b.now, Connections: 3}}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	samePort := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := cmp.Diff(want, b.Counters().Draining(), same, samePort); diff != "" {
		t.Errorf("draining (-want +got):\n%s", diff)
	}
	// A draining backend is no difference, and stays until it has no connections.
	if plan, err := applytest.Compare(t.Context(), b.Dataplane); err != nil || !plan.Empty() {
		t.Errorf("compared: %v %v", operations(plan), err)
	}
	b.now = b.now.Add(time.Minute)
	b.k.connect(key, gone, 1)
	if err := b.drains.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := b.Counters().Draining(); len(now) != 1 || now[0].Connections != 1 || !now[0].Since.Equal(want[0].Since) {
		t.Errorf("draining: %+v", now)
	}
	b.k.connect(key, gone, 0)
	if err := b.drains.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, there := b.k.families.IPv4.servers[key].dests[gone]; there || len(b.Counters().Draining()) > 0 {
		t.Errorf("without connections it is there: %t; draining %v", there, b.Counters().Draining())
	}
}

// The virtual servers of node ports go with an address that the node loses. Otherwise they would serve
// again when it returns.
func TestAddressLost(t *testing.T) {
	b := newBench(t)
	p := program()
	b.once(p)
	at := func(addr netip.Addr) (servers int) {
		for key := range b.k.families.IPv4.servers {
			if key.Addr == addr {
				servers++
			}
		}
		return servers
	}
	lost := p.Node.Addrs[len(p.Node.Addrs)-1]
	if at(lost) == 0 {
		t.Fatalf("no node port at %s", lost)
	}
	delete(b.k.families.IPv4.local, lost)
	without := *p
	without.Node.Addrs = slices.DeleteFunc(slices.Clone(p.Node.Addrs), func(a netip.Addr) bool { return a == lost })
	b.once(&without)
	if n := at(lost); n > 0 {
		t.Errorf("%d virtual servers are left at %s", n, lost)
	}
}

// A draining backend that is added again serves again.
func TestDrainEndsWhenWanted(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	all := svc.Pools[0].Backends
	b.once(p)
	b.k.connect(key, all[0].AddrPort, 3)
	b.change(ir.Change{Name: svc.Name, New: withBackends(svc, all[1:]...)})
	b.change(ir.Change{Name: svc.Name, New: svc})
	if d := b.k.families.IPv4.servers[key].dests[all[0].AddrPort]; d.weight != 1 || d.conns != 3 {
		t.Errorf("after it came back: %+v", d)
	}
	if now := b.Counters().Draining(); len(now) > 0 {
		t.Errorf("draining: %v", now)
	}
	b.holds(ir.NewPrograms(p))
}

// A backend whose drain ended while no process ran is no difference for a reader, and is removed by
// a writer.
func TestDrainedUnseen(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	all := svc.Pools[0].Backends
	b.once(p)
	b.k.connect(key, all[0].AddrPort, 3)
	b.change(ir.Change{Name: svc.Name, New: withBackends(svc, all[1:]...)})
	b.k.connect(key, all[0].AddrPort, 0)
	less := program()
	svc, _ = firstTCP(less)
	*svc = *withBackends(svc, all[1:]...)
	families := ir.Families()
	looks := newDataplane(b.k, b.tables, families[:], apply.Options{ReadOnly: true})
	if err := looks.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if plan := looks.Plan(ir.NewPrograms(less)); !plan.Empty() {
		t.Errorf("to who looks: %v", operations(plan))
	}
	b.restart(apply.IPVS{})
	if plan := b.once(less); plan.Empty() {
		t.Error("to who writes there is nothing to do")
	}
	if _, there := b.k.families.IPv4.servers[key].dests[all[0].AddrPort]; there {
		t.Error("it is there still")
	}
}

// A process that starts while backends drain continues the drains, and counts their time from its
// own start.
func TestDrainSurvivesRestart(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	all := svc.Pools[0].Backends
	b.once(p)
	b.k.connect(key, all[0].AddrPort, 3)
	b.change(ir.Change{Name: svc.Name, New: withBackends(svc, all[1:]...)})
	b.now = b.now.Add(time.Hour)
	b.restart(apply.IPVS{DrainDeadline: 10 * time.Minute})
	less := program()
	svc, _ = firstTCP(less)
	*svc = *withBackends(svc, all[1:]...)
	if plan := b.once(less); !plan.Empty() {
		t.Errorf("after a restart: %v", operations(plan))
	}
	if now := b.Counters().Draining(); len(now) != 1 || !now[0].Since.Equal(b.now) {
		t.Errorf("draining: %v", now)
	}
	for _, after := range []time.Duration{9 * time.Minute, time.Minute} {
		if _, there := b.k.families.IPv4.servers[key].dests[all[0].AddrPort]; !there {
			t.Fatalf("gone %s before the deadline", after)
		}
		b.now = b.now.Add(after)
		if err := b.drains.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, there := b.k.families.IPv4.servers[key].dests[all[0].AddrPort]; there {
		t.Error("there after the deadline")
	}
	// A backend whose connections ended while no process ran is removed by the first plan.
	b.k.families.IPv4.servers[key].dests[all[0].AddrPort] = dest{standard: true}
	b.restart(apply.IPVS{})
	if plan := b.once(less); len(operations(plan)) != 1 {
		t.Errorf("a drain that is over: %v", operations(plan))
	}
}

// Virtual servers of other programs are kept, unless manageAll is set. Those in ipvs.excludeCIDRs
// are kept even then.
func TestForeignServers(t *testing.T) {
	for _, all := range []bool{false, true} {
		b := newBench(t)
		b.restart(apply.IPVS{ManageAll: all})
		p := program()
		p.Node.IPVS.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		foreign := ir.Match{Addr: p.Node.Addrs[0], Protocol: ir.TCP, Port: 443}
		excluded := ir.Match{Addr: netip.MustParseAddr("198.51.100.7"), Protocol: ir.TCP, Port: 443}
		for _, key := range []ir.Match{foreign, excluded} {
			b.k.families.IPv4.servers[key] = &server{VirtualServer: rules.VirtualServer{Key: key, Scheduler: "wlc"}, dests: map[netip.AddrPort]dest{}}
		}
		b.once(p)
		p.Services = p.Services[:1]
		b.once(p)
		_, there := b.k.families.IPv4.servers[foreign]
		_, stays := b.k.families.IPv4.servers[excluded]
		if there == all || !stays {
			t.Errorf("manage all %t: foreign is there %t, excluded %t", all, there, stays)
		}
	}
}

// A Service that the kernel rejects is omitted completely, and reported with its reason. The others
// are applied.
func TestQuarantine(t *testing.T) {
	for _, op := range []operation{addElement, addServer, addDest, addAddress} {
		b := newBench(t)
		p := program()
		svc, key := firstTCP(p)
		no := errors.New("address not good enough")
		b.k.refuse = func(r *request) error {
			if r.op == op && r.service() == svc.Name {
				return no
			}
			return nil
		}
		_, result, err := apply.Once(t.Context(), b.Dataplane, ir.NewPrograms(p), func(apply.Plan) bool { return true })
		if err != nil || len(result.Refused) != 1 || result.Refused[0].Service != svc.Name || !errors.Is(result.Refused[0].Reason, no) {
			t.Fatalf("operation %d: refused %v, error %v", op, result.Refused, err)
		}
		if why := result.Refused[0].Reason.Error(); !strings.Contains(why, key.Addr.String()) && op != addDest && op != addElement {
			t.Errorf("operation %d: the reason names nothing: %s", op, why)
		}
		if why := b.k.difference(apply.Without(ir.NewPrograms(p), result.Refused), b.tables); why != "" {
			t.Errorf("operation %d: %s", op, why)
		}
	}
}

// If the kernel rejects many Services, the cause counts as the node's, and what was in force remains.
func TestSharedCause(t *testing.T) {
	for _, op := range []operation{addElement, addServer, addDest, addAddress} {
		b := newBench(t)
		p := program()
		before := *p
		before.Services = p.Services[:1]
		if op == addDest {
			before.Services = slices.Clone(p.Services)
			for i := range before.Services {
				s := before.Services[i]
				s.Pools = slices.Clone(s.Pools)
				for j, pool := range p.Services[i].Pools {
					s.Pools[j].Backends = pool.Backends[:min(1, len(pool.Backends))]
				}
				before.Services[i] = s
			}
		}
		b.once(&before)
		b.k.refuse = func(r *request) error {
			if r.op == op {
				return errors.New("no such scheduler")
			}
			return nil
		}
		_, _, err := apply.Once(t.Context(), b.Dataplane, ir.NewPrograms(p), func(apply.Plan) bool { return true })
		if err == nil || !strings.Contains(err.Error(), "which counts as a failure of the node") {
			t.Errorf("operation %d: %v", op, err)
		}
		for i := range before.Services {
			for _, f := range before.Services[i].Frontends {
				if len(f.Routes) > 0 && f.Match.Addr.IsValid() && b.k.families.IPv4.servers[f.Match] == nil {
					t.Errorf("operation %d: no virtual server for %v", op, f.Match)
				}
			}
		}
	}
}

// A Service that iptables rejects is omitted everywhere else, too.
func TestQuarantineOfRules(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	b.tables.refuse = map[ir.Name]bool{svc.Name: true}
	if err := b.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	result, err := b.Commit(t.Context(), b.Plan(ir.NewPrograms(p)))
	if err != nil || len(result.Refused) != 1 {
		t.Fatalf("refused %v, error %v", result.Refused, err)
	}
	if b.k.families.IPv4.bound[key.Addr] || b.k.families.IPv4.servers[key] != nil {
		t.Error("half of the Service is in force")
	}
	b.tables.refuse = nil
	b.once(p)
}

// After each request that fails, before or after it takes effect, another Read, Plan and Commit
// apply everything.
func TestFaultsAtEachRequest(t *testing.T) {
	injected := errors.New("injected")
	for _, after := range []bool{false, true} {
		for n, fired := 1, true; fired; n++ {
			fired = false
			b := newBench(t)
			p := program()
			svc, key := firstTCP(p)
			before := program()
			before.Services = before.Services[2:]
			b.once(before)
			made := 0
			b.k.request = func(do func() error) error {
				if made++; made != n {
					return do()
				}
				fired = true
				if after {
					if err := do(); err != nil {
						return err
					}
				}
				return injected
			}
			step := func() error {
				if err := b.Read(t.Context(), ir.Programs{}); err != nil {
					return err
				}
				result, err := b.Commit(t.Context(), b.Plan(ir.NewPrograms(p)))
				return errors.Join(err, result.Error())
			}
			for err := step(); err != nil; err = step() {
				if !errors.Is(err, injected) {
					t.Fatalf("request %d, after %t: %v", n, after, err)
				}
			}
			if s := b.k.families.IPv4.servers[key]; s == nil {
				t.Fatalf("request %d: %s of %s lacks", n, key, svc.Name)
			}
			b.holds(ir.NewPrograms(p))
		}
	}
}

// A context that ends stops a commit, and the next one completes it.
func TestCommitEnds(t *testing.T) {
	b := newBench(t)
	p := program()
	ctx, cancel := context.WithCancel(t.Context())
	b.k.met = func(r *request) {
		if r.op == addServer {
			cancel()
		}
	}
	if err := b.Read(ctx, ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(ctx, b.Plan(ir.NewPrograms(p))); !errors.Is(err, context.Canceled) {
		t.Fatalf("commit: %v", err)
	}
	b.k.met = nil
	b.once(p)
}

func TestTimeouts(t *testing.T) {
	b := newBench(t)
	p := program()
	p.Node.IPVS.TCPTimeout, p.Node.IPVS.UDPTimeout = 600*time.Second, 1500*time.Millisecond
	b.once(p)
	if got, want := b.k.families.IPv4.times, (timeouts{600e9, 120e9, 1e9}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.k.families.IPv4.times.tcp = time.Second // changed by another program
	plan, err := applytest.Compare(t.Context(), b.Dataplane)
	if err != nil || !slices.Equal(operations(plan), []string{"change ipvs timeouts"}) {
		t.Errorf("compared: %v %v", operations(plan), err)
	}
}

// A set grows if it is too small.
func TestSetGrows(t *testing.T) {
	b := newBench(t)
	p := program()
	b.once(p)
	b.k.families.IPv4.sets[rules.ClusterIP].max = len(b.k.families.IPv4.sets[rules.ClusterIP].elements)
	if err := b.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	svc, key := firstTCP(p)
	more := *svc
	more.Name.Name = "more"
	more.Frontends = slices.Clone(svc.Frontends[:1])
	more.Frontends[0].Match = ir.Match{Addr: key.Addr.Next(), Protocol: ir.TCP, Port: 4000}
	if _, err := b.Commit(t.Context(), b.Plan(ir.NewPrograms(p))); err != nil {
		t.Fatal(err)
	}
	plan := b.change(ir.Change{Name: more.Name, New: &more})
	if !slices.Contains(operations(plan), "change ipset KUBE-CLUSTER-IP") {
		t.Errorf("the set did not grow: %v", operations(plan))
	}
	p.Services = append(p.Services, more)
	b.holds(ir.NewPrograms(p))
}

// Foreign changes are found, repaired and reported.
func TestDriftIsFound(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	b.once(p)
	s := b.k.families.IPv4
	delete(s.bound, key.Addr)
	delete(s.sets[rules.ClusterIP].elements, rules.ElementKey{Set: rules.ClusterIP, Addr: key.Addr, Protocol: key.Protocol, Number: key.Port})
	to := svc.Pools[0].Backends[0].AddrPort
	s.servers[key].dests[to] = dest{weight: 5, standard: true}
	plan, err := applytest.Compare(t.Context(), b.Dataplane)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"add ipset KUBE-CLUSTER-IP " + key.Addr.String() + ",tcp:" + fmt.Sprint(key.Port),
		"change ipvs " + key.String() + " -> " + to.String(),
		"add kube-ipvs0 " + key.Addr.String(),
	}
	if diff := cmp.Diff(want, operations(plan)); diff != "" {
		t.Errorf("compared (-want +got):\n%s", diff)
	}
	if _, err := b.Commit(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	b.holds(ir.NewPrograms(p))
}

// Any history of changes results in the same state as a full load.
func TestHistories(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 7))
		b := newBench(t)
		all := program()
		now := *all
		now.Services = nil
		b.once(&now)
		in := map[ir.Name]*ir.Service{}
		for range 25 {
			var changes []ir.Change
			for i := range all.Services {
				s := &all.Services[i]
				if random.IntN(3) > 0 {
					continue
				}
				c := ir.Change{Name: s.Name}
				if random.IntN(4) > 0 {
					one := *s
					one.Pools = slices.Clone(s.Pools)
					for j := range one.Pools {
						one.Pools[j].Backends = slices.DeleteFunc(slices.Clone(one.Pools[j].Backends), func(ir.Backend) bool { return random.IntN(3) == 0 })
					}
					c.New = &one
				}
				in[s.Name] = c.New
				changes = append(changes, c)
			}
			// Connections start and end.
			for key, v := range b.k.families.IPv4.servers {
				for to, d := range v.dests {
					if drainable(key.Protocol) && d.weight > 0 {
						b.k.connect(key, to, uint32(random.IntN(2)))
					}
				}
			}
			b.change(changes...)
			now.Services = nil
			for i := range all.Services {
				if s := in[all.Services[i].Name]; s != nil {
					now.Services = append(now.Services, *s)
				}
			}
			b.holds(ir.NewPrograms(&now))
			switch random.IntN(5) {
			case 0:
				b.restart(apply.IPVS{})
				b.once(&now)
			case 1:
				if err := b.drains.sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if plan, err := applytest.Compare(t.Context(), b.Dataplane); err != nil || !plan.Empty() {
				t.Fatalf("seed %d: compared: %v %v", seed, operations(plan), err)
			}
		}
	}
}

// locked is a kernel that checks that only one goroutine uses its connection at a time, while
// holding the lock.
type locked struct {
	*fakeKernel
	t *testing.T
	d *Dataplane
	n int // number of uses
}

func (k *locked) held() {
	k.t.Helper()
	if k.n++; k.d.drains.mu.TryLock() {
		k.d.drains.mu.Unlock()
		k.t.Error("the connection of commits is used without the lock")
	}
}

func (k *locked) read(ctx context.Context, f ir.Family) (*state, error) {
	k.held()
	return k.fakeKernel.read(ctx, f)
}

func (k *locked) dests(ctx context.Context, key ir.Match) (map[netip.AddrPort]dest, error) {
	k.held()
	return k.fakeKernel.dests(ctx, key)
}

func (k *locked) do(ctx context.Context, requests []request) ([]failure, error) {
	k.held()
	return k.fakeKernel.do(ctx, requests)
}

// Read, Commit and the sweep of drains share a connection, and never use it concurrently.
func TestConnectionIsLocked(t *testing.T) {
	k := &locked{fakeKernel: newFakeKernel(), t: t}
	families := ir.Families()
	k.d = newDataplane(k, &fakeTables{}, families[:], apply.Options{})
	k.d.drains.start(ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.TCP, Port: 80}, netip.MustParseAddrPort("10.244.1.5:80"), ir.Name{}, 3)
	if err := k.d.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.d.Commit(t.Context(), k.d.Plan(ir.NewPrograms(program()))); err != nil {
		t.Fatal(err)
	}
	if err := k.d.drains.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k.n < 4 {
		t.Errorf("the kernel is used %d times", k.n)
	}
}
