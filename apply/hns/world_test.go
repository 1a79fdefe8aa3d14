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
	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/ir"
)

const hostMAC = "00:15:5d:aa:bb:cc"

var (
	nodeIP    = netip.MustParseAddr("192.0.2.11")
	sourceVIP = netip.MustParseAddr("10.244.1.254")
)

// machine is a Windows host and a Dataplane on it.
type machine struct {
	*hns.Dataplane
	*hnstest.Service
	t        *testing.T
	network  string
	overlay  bool            // with direct server return, as recommended for overlays
	noMAC    bool            // no interface has the node's address
	failures []string        // of all commits
	refusals []string        // after the last commit
	remains  map[string]bool // refused removals, and those that they use
}

// newMachine returns a host with some pods, and objects of another program.
func newMachine(t *testing.T, v hns.Version, overlay bool) *machine {
	t.Helper()
	s := hnstest.New(v)
	kind, policies := "L2Bridge", []hnstest.Policy(nil)
	if overlay {
		kind, policies = "Overlay", []hnstest.Policy{hnstest.RemoteSubnet("10.244.2.0/24", "192.0.2.12")}
	}
	m := &machine{Service: s, t: t, overlay: overlay}
	m.network = s.AddNetwork(hnstest.Network{Name: "l2", Type: kind, Policies: policies, Ipams: hnstest.Subnets("10.244.1.0/24", "fd00:10:244:1::/64")})
	for i := range localPods {
		m.pod(i)
	}
	s.Rename(s.AddPod(m.network, netip.MustParseAddr("10.244.1.2")), "cbr0")
	if hns.FeaturesOf(v).API {
		m.foreign("203.0.113.250", 80)
	}
	m.restart()
	return m
}

// restart creates a new Dataplane without state.
func (m *machine) restart() { m.start(hns.Options{}) }

// start creates a new Dataplane with the options of the machine.
func (m *machine) start(o hns.Options) {
	o.Network, o.RootEndpoint = "l2", "cbr0"
	o.HostMACs = func() (map[netip.Addr]string, error) {
		if m.noMAC {
			return nil, nil
		}
		return map[netip.Addr]string{nodeIP: hostMAC}, nil
	}
	d, err := hns.New(hnstest.Host{Service: m.Service}, o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Dataplane = d
}

// pod starts pod i of the node.
func (m *machine) pod(i int) {
	addrs := []netip.Addr{localPod(ir.IPv4, i)}
	if !m.overlay {
		addrs = append(addrs, localPod(ir.IPv6, i))
	}
	m.AddPod(m.network, addrs...)
}

// foreign creates a load balancer in another program's network.
func (m *machine) foreign(vip string, port int) {
	m.t.Helper()
	other := m.AddNetwork(hnstest.Network{Name: "docker", Type: "NAT", Ipams: hnstest.Subnets("172.16.0.0/24")})
	e := m.AddPod(other, netip.MustParseAddr("172.16.0.5"))
	text := fmt.Sprintf(`{"HostComputeEndpoints":[%q],"FrontendVIPs":[%q],"PortMappings":[{"Protocol":6,"InternalPort":80,"ExternalPort":%d}],"SchemaVersion":{"Major":2}}`, e, vip, port)
	if result, h, _ := m.Call(hnstest.Call{Name: "CreateLoadBalancer", Text: text}); result != 0 {
		m.t.Fatalf("foreign load balancer: %#x", result)
	} else {
		m.Call(hnstest.Call{Name: "CloseLoadBalancer", Handle: h})
	}
}

// foreignLine is the one created by newMachine.
const foreignLine = "203.0.113.250 6 80->80 flags 0 distribution 0 flags 0 source - -> 172.16.0.5"

const localPods = 6

func localPod(f ir.Family, i int) netip.Addr {
	if f == ir.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%x", 16+i))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", 16+i))
}

func remotePod(f ir.Family, i int) netip.Addr {
	if f == ir.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:244:2::%x", 16+i))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.244.2.%d", 16+i))
}

// world contains Services by number.
type world map[int]*service

// service is a short description of a Service.
type service struct {
	local, remote []int // pods
	kinds         []ir.Kind
	localOnly     bool
	sticky        bool
	noOptimize    bool
	vip           int // last byte of its ClusterIP; 0 for its own
}

func (w world) programs(overlay bool) ir.Programs {
	all := ir.NewPrograms(w.program(ir.IPv4, overlay))
	if !overlay {
		all.IPv6 = w.program(ir.IPv6, overlay)
	}
	return all
}

func (w world) program(f ir.Family, overlay bool) *ir.Program {
	p := &ir.Program{Family: f, Node: ir.Node{Name: "node1", Mode: ir.ModeKernelspace, IP: nodeIP,
		HNS: &ir.HNS{NetworkName: "l2", NetworkType: "L2Bridge", RootEndpoint: "cbr0"}}}
	if f == ir.IPv6 {
		p.Node.IP = netip.MustParseAddr("2001:db8::11")
	}
	if overlay {
		p.Node.HNS.SourceVIP, p.Node.HNS.EnableDSR = sourceVIP, true
	}
	for i, s := range w {
		p.Services = append(p.Services, s.compile(f, i))
	}
	slices.SortFunc(p.Services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
	return p
}

func (s *service) compile(f ir.Family, i int) ir.Service {
	out := ir.Service{Name: ir.Name{Namespace: "ns", Name: fmt.Sprintf("s%03d", i)},
		HNS: &ir.HNSService{ExternalLocal: s.localOnly, NoOptimize: s.noOptimize}}
	port := ir.ServicePort{Service: out.Name, Port: "p", Protocol: ir.TCP}
	origin := ir.Origin{Object: "Service " + out.Name.String()}
	all, near := ir.Pool{Port: port, Origin: origin}, ir.Pool{Port: port, Policy: ir.Local, Origin: origin}
	if s.sticky {
		all.Affinity = &ir.Affinity{Origin: origin}
		near.Affinity = all.Affinity
	}
	for _, n := range s.local {
		b := ir.Backend{AddrPort: netip.AddrPortFrom(localPod(f, n), 8080), Local: true, Origin: origin}
		all.Backends, near.Backends = append(all.Backends, b), append(near.Backends, b)
	}
	for _, n := range s.remote {
		all.Backends = append(all.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(remotePod(f, n), 8080), Origin: origin})
	}
	out.Pools = []ir.Pool{all, near}
	vip := s.vip
	if vip == 0 {
		vip = i + 10
	}
	for _, kind := range append([]ir.Kind{ir.ClusterIP}, s.kinds...) {
		fr := ir.Frontend{Kind: kind, Match: ir.Match{Protocol: ir.TCP, Port: 80}, Port: port, Origin: origin}
		switch kind {
		case ir.NodePort:
			fr.Match.Port = uint16(30000 + i)
		case ir.ClusterIP:
			fr.Match.Addr = vipOf(f, "10.96", "fd00:96", vip)
		default:
			fr.Match.Addr = vipOf(f, "203.0", "2001:db8:203", vip)
		}
		pool := 0
		if s.localOnly && kind != ir.ClusterIP {
			pool = 1
		}
		if len(out.Pools[pool].Backends) > 0 {
			fr.Routes = []ir.Route{{From: ir.Any, Pool: pool, Origin: origin}}
		}
		out.Frontends = append(out.Frontends, fr)
	}
	return out
}

func vipOf(f ir.Family, four, six string, n int) netip.Addr {
	if f == ir.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("%s::%x", six, n))
	}
	return netip.MustParseAddr(fmt.Sprintf("%s.%d.%d", four, n/250, n%250+1))
}

// random generates Services.
type random struct{ *rand.Rand }

func (r random) pods(n int) (some []int) {
	for i := range n {
		if r.IntN(3) == 0 {
			some = append(some, i)
		}
	}
	return some
}

func (r random) service() *service {
	s := &service{local: r.pods(localPods), remote: r.pods(12), localOnly: r.IntN(4) == 0, sticky: r.IntN(5) == 0, noOptimize: r.IntN(6) == 0}
	if r.IntN(2) == 0 {
		s.kinds = append(s.kinds, ir.NodePort)
	}
	if r.IntN(3) == 0 {
		s.kinds = append(s.kinds, ir.LoadBalancer)
	}
	return s
}

// change changes some Services.
func (r random) change(w world) {
	for range 1 + r.IntN(2) {
		i := r.IntN(12)
		switch s := w[i]; {
		case s == nil || r.IntN(4) == 0:
			w[i] = r.service()
		case r.IntN(4) == 0:
			delete(w, i)
		default:
			next := *s
			next.remote, next.local = r.pods(12), r.pods(localPods)
			w[i] = &next
		}
	}
	if r.IntN(5) == 0 { // a ClusterIP moves to another Service
		if a, b := w[0], w[1]; a != nil && b != nil {
			x, y := *a, *b
			x.vip, y.vip = y.vip, x.vip
			if x.vip == 0 {
				x.vip = 11
			}
			if y.vip == 0 {
				y.vip = 10
			}
			if x.vip != y.vip {
				w[0], w[1] = &x, &y
			}
		}
	}
}

// settle applies Programs like the daemon: by changes while the state is known, otherwise after a
// read. It returns the refused Services.
func (m *machine) settle(now, next ir.Programs, known bool) (refused []apply.Refusal, ok bool) {
	m.t.Helper()
	ctx := context.Background()
	if known {
		var changes ir.Changes
		for f, p := range ir.Present(next) {
			*changes.At(f) = ir.Diff(now.Of(f), p)
		}
		result, err := m.commit(m.PlanChanges(m.Applied().From(changes)))
		if err == nil && len(result.Refused) == 0 {
			return nil, true
		}
	}
	for range 5 {
		if err := m.Read(ctx, ir.Programs{}); err != nil {
			return refused, false
		}
		result, err := m.commit(m.Plan(apply.Without(next, refused)))
		if err != nil {
			continue
		}
		if len(result.Refused) == 0 {
			return refused, true
		}
		refused = append(refused, result.Refused...)
	}
	return refused, false
}

// commit executes a Plan, and checks that this does not change it.
func (m *machine) commit(p apply.Plan) (apply.Result, error) {
	m.t.Helper()
	planned := slices.Collect(p.Differences)
	result, err := m.Commit(context.Background(), p)
	m.refusals, m.remains = nil, apply.RefusedObjects(result.RefusedRemovals)
	for i := range result.RefusedRemovals {
		m.refusals = append(m.refusals, result.RefusedRemovals[i].Error())
	}
	for _, f := range result.Balancers {
		m.failures = append(m.failures, strings.Join([]string{f.Verb.String(), f.Family.String(), f.Type, f.Cause}, " "))
	}
	if diff := cmp.Diff(planned, slices.Collect(p.Differences)); diff != "" {
		m.t.Errorf("Commit changed the Plan (-before +after):\n%s", diff)
	}
	return result, err
}

// check compares the host with a new one that receives the same Services.
func (m *machine) check(w world, label string) {
	m.t.Helper()
	fresh := newMachine(m.t, m.version(), m.overlay)
	if refused, ok := fresh.settle(ir.Programs{}, w.programs(m.overlay), false); !ok || len(refused) > 0 {
		m.t.Fatalf("%s: a new host: %v, refused %v", label, ok, refused)
	}
	wantL, wantE := fresh.State(hostMAC)
	gotL, gotE := m.State(hostMAC)
	if diff := cmp.Diff(wantL, gotL); diff != "" {
		m.t.Fatalf("%s: load balancers (-new host +this):\n%s", label, diff)
	}
	if !slices.Contains(gotL, foreignLine) {
		m.t.Fatalf("%s: somebody else's load balancer is gone: %q", label, gotL)
	}
	if diff := cmp.Diff(wantE, gotE); diff != "" {
		m.t.Fatalf("%s: endpoints (-new host +this):\n%s", label, diff)
	}
}

func (m *machine) version() hns.Version {
	v, err := hnstest.Host{Service: m.Service}.Version()
	if err != nil {
		m.t.Fatal(err)
	}
	return v
}
