package prove_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

func node(p *ir.Program) prove.Node { return prove.Node{Family: p.Family, Addrs: p.Node.Addrs} }

func compare(t *testing.T, a, b *ir.Program) *prove.Result {
	t.Helper()
	r, err := prove.Compare(t.Context(), node(a), sim.NewEvaluator(a), sim.NewEvaluator(b))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Differences that affect few packets are found, and the class identifies these
// packets.
func TestCompareFinds(t *testing.T) {
	frontend := func(p *ir.Program, has func(*ir.Frontend) bool) *ir.Frontend {
		for i := range p.Services {
			for j := range p.Services[i].Frontends {
				if f := &p.Services[i].Frontends[j]; has(f) {
					return f
				}
			}
		}
		t.Fatal("no such frontend")
		return nil
	}
	tests := []struct {
		name   string
		change func(*ir.Program)
	}{
		{"a source range one bit wider", func(p *ir.Program) {
			f := frontend(p, func(f *ir.Frontend) bool { return len(f.SourceRanges) > 0 })
			r := slices.Clone(f.SourceRanges)
			r[0].Prefix = netip.PrefixFrom(r[0].Prefix.Addr(), r[0].Prefix.Bits()-1).Masked()
			f.SourceRanges = r
		}},
		{"another port", func(p *ir.Program) {
			frontend(p, func(f *ir.Frontend) bool { return f.Kind == ir.ClusterIP }).Match.Port = 81
		}},
		{"a backend lost", func(p *ir.Program) { p.Services[0].Pools[0].Backends = p.Services[0].Pools[0].Backends[1:] }},
		{"the client's address lost", func(p *ir.Program) {
			f := frontend(p, func(f *ir.Frontend) bool { return len(f.Routes) > 0 && !f.Routes[0].SNAT })
			f.Routes = slices.Clone(f.Routes)
			f.Routes[0].SNAT = true
		}},
		{"another network of pods", func(p *ir.Program) {
			p.Node.Detector.Prefix = netip.PrefixFrom(p.Node.Detector.Prefix.Addr(), p.Node.Detector.Prefix.Bits()+1)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, q := irtest.Program(ir.ModeNFTables), irtest.Program(ir.ModeNFTables)
			if r := compare(t, p, q); !r.Equal() {
				t.Fatalf("a Program differs from itself: %+v", r.Differences[0])
			}
			tt.change(q)
			r := compare(t, p, q)
			if len(r.Differences) == 0 {
				t.Fatalf("nothing found in %d classes", r.Classes)
			}
			if again := compare(t, q, p); len(again.Differences) != len(r.Differences) {
				t.Errorf("%d differences, the other way round %d", len(r.Differences), len(again.Differences))
			}
		})
	}
}

// All packets of a class have the outcome of its representative, and every packet
// is in a class.
func TestClassesAreAlike(t *testing.T) {
	for _, mode := range []ir.Mode{ir.ModeIPTables, ir.ModeNFTables, ir.ModeIPVS} {
		p := irtest.Program(mode)
		e := sim.NewEvaluator(p)
		// Compared with a side that rejects everything, every class is a
		// difference.
		r, err := prove.Compare(t.Context(), node(p), e, nothing{})
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 20000 {
			d := r.Differences[rnd.IntN(len(r.Differences))]
			pkt := d.Packet
			if d.Src.First.Compare(pkt.Src) > 0 || d.Src.Last.Compare(pkt.Src) < 0 {
				t.Fatalf("%s: the packet of %+v is not in it", mode, d.Class)
			}
			of := d.Ports()[rnd.IntN(len(d.Ports()))]
			pkt.Port = of.First + uint16(rnd.IntN(int(of.Last-of.First)+1))
			if !pkt.FromNode() {
				pkt.Src = between(rnd, d.Src)
				if slices.Contains(p.Node.Addrs, pkt.Src) || pkt.Src.IsLoopback() {
					continue
				}
			}
			if got := e.Outcome(pkt, nil); !got.Equal(d.A) {
				t.Fatalf("%s: %v is in %+v\n got %s\nwant %s", mode, pkt, d.Class, got, d.A)
			}
		}
	}
}

// Every port is in one class, and all ports of a class have the same outcome,
// whether they are compared with lists, ranges or sets.
func TestPortClasses(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	some := func(most int) (ports []uint16) {
		for range rnd.IntN(most) {
			at := 1 + rnd.Uint32N(65535)
			if rnd.IntN(4) == 0 {
				at = []uint32{1, 2, 65534, 65535}[rnd.IntN(4)]
			}
			for range 1 + rnd.IntN(3) {
				if at <= 65535 {
					ports = append(ports, uint16(at))
				}
				at++
			}
		}
		return ports
	}
	n := prove.Node{Family: ir.IPv4, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for round := range 25 {
		side := byPort{list: some(8), ranges: []sim.Ports{{First: uint16(1 + rnd.IntN(30000)), Last: uint16(30001 + rnd.IntN(35000))}}}
		for range 1 + rnd.IntN(3) {
			side.sets = append(side.sets, sim.NewPortSet(some(300)))
		}
		r, err := prove.Compare(t.Context(), n, side, nothing{})
		if err != nil {
			t.Fatal(err)
		}
		found := map[string][]sim.Outcome{}
		for _, d := range r.Differences {
			key := fmt.Sprint(d.Dst, d.Protocol, d.Packet.In)
			if found[key] == nil {
				found[key] = make([]sim.Outcome, 65536)
			}
			for _, p := range d.Ports() {
				for port := int(p.First); port <= int(p.Last); port++ {
					if found[key][port].Timeout != 0 {
						t.Fatalf("round %d: port %d is in two classes", round, port)
					}
					found[key][port] = d.A
				}
			}
		}
		if len(found) == 0 {
			t.Fatal("no classes")
		}
		for key, ports := range found {
			for port := 1; port <= 65535; port++ {
				if want := side.at(uint16(port), nil); ports[port].Timeout != want.Timeout {
					t.Fatalf("round %d: %s: port %d is in a class of %d, want %d", round, key, port, ports[port].Timeout, want.Timeout)
				}
			}
		}
		if most := 64 * len(found) * (2 + 2*len(side.list)); r.Classes > most {
			t.Errorf("round %d: %d classes, want %d at most: ports of sets count alike", round, r.Classes, most)
		}
	}
}

// byPort distinguishes packets by their ports.
type byPort struct {
	sets   []*sim.PortSet
	list   []uint16
	ranges []sim.Ports
}

// at returns an outcome with a different Timeout for each group of equivalent
// ports, from 1.
func (b byPort) at(port uint16, cuts *sim.Cuts) sim.Outcome {
	id := 1
	for i, s := range b.sets {
		if i == 2 && id%2 == 0 {
			break // the last set is not always consulted
		}
		if s.Has(port, cuts) {
			id += 1 << i
		}
	}
	cuts.PortsOf(b.list)
	if i := slices.Index(b.list, port); i >= 0 {
		id += 8 * (1 + i)
	}
	for _, r := range b.ranges {
		cuts.Range(r.First, r.Last)
		if r.First <= port && port <= r.Last {
			id += 1 << 10
		}
	}
	return sim.Outcome{Timeout: time.Duration(id)}
}

func (b byPort) Outcome(p sim.Packet, cuts *sim.Cuts) sim.Outcome { return b.at(p.Port, cuts) }
func (byPort) Destinations(func(netip.Prefix))                    {}

// nothing is a side without rules.
type nothing struct{}

func (nothing) Outcome(sim.Packet, *sim.Cuts) sim.Outcome { return sim.Outcome{Fate: sim.Fate(99)} }
func (nothing) Destinations(func(netip.Prefix))           {}

// between returns a random address of the range.
func between(r *rand.Rand, a prove.Addrs) netip.Addr {
	if !a.First.Is4() {
		return a.First
	}
	n := func(a netip.Addr) uint32 {
		b := a.As4()
		return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
	at := n(a.First) + uint32(r.Uint64N(uint64(n(a.Last)-n(a.First))+1))
	return netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
}

// Unknown parts of a side never count as equal.
func TestDoubts(t *testing.T) {
	p := irtest.Program(ir.ModeNFTables)
	r, err := prove.Compare(t.Context(), node(p), sim.NewEvaluator(p), doubtful{sim.NewEvaluator(p)})
	if err != nil {
		t.Fatal(err)
	}
	if r.Equal() || len(r.Doubts) == 0 || r.Doubts[0].Unknown[0] != "meta skuid 0" {
		t.Errorf("got %d doubts, equal %v", len(r.Doubts), r.Equal())
	}
}

type doubtful struct{ *sim.Evaluator }

func (d doubtful) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	if pkt.Port == 80 {
		cuts.Doubt("meta skuid 0")
	}
	return d.Evaluator.Outcome(pkt, cuts)
}

func TestCompareEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := irtest.Program(ir.ModeNFTables)
	if _, err := prove.Compare(ctx, node(p), sim.NewEvaluator(p), sim.NewEvaluator(p)); err == nil {
		t.Error("no error of an ended context")
	}
}

// A comparison that is ended stops within a destination. It returns its result so
// far only for a Limit, and the result is then never equal.
func TestCompareEndsWithinDestinations(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := irtest.Program(ir.ModeNFTables)
	for _, cause := range []error{prove.Limit("it takes too long"), errors.New("it is not wanted any more")} {
		ctx, cancel := context.WithCancelCause(t.Context())
		after := 0
		side := stopping{sim.NewEvaluator(p), func(asked int) {
			if asked == 20 {
				cancel(cause)
			} else if asked > 20 {
				after++
			}
		}, new(int)}
		r, err := prove.Compare(ctx, node(p), side, sim.NewEvaluator(p))
		limited := errors.Is(cause, prove.Limit("it takes too long"))
		if after > 0 {
			t.Errorf("%v: %d packets are asked about after the end", cause, after)
		}
		if !limited && (r != nil || err == nil) {
			t.Errorf("%v: %+v, and no error", cause, r)
		}
		if limited && (err != nil || r.Equal() || len(r.Doubts) != 1 || !regexp.MustCompile(`^it takes too long: [0-9]+ of [1-9][0-9]+ destinations are compared$`).MatchString(r.Doubts[0].Unknown[0])) {
			t.Errorf("%v: %v, %+v", cause, err, r)
		}
	}
}

// Expensive destinations are compared last, so that differences of other Services
// are found first. Otherwise the author of a Service could influence the order by
// its address.
func TestCostlyLast(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := irtest.Program(ir.ModeNFTables)
	costly := netip.MustParseAddr("1.0.0.1")
	serve := func(name ir.Name, addr netip.Addr, backends int) ir.Service {
		port := ir.ServicePort{Service: name, Protocol: ir.TCP}
		pool := ir.Pool{Port: port}
		for i := range backends {
			pool.Backends = append(pool.Backends, ir.Backend{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 9, byte(i)}), 8080)})
		}
		return ir.Service{Name: name, Pools: []ir.Pool{pool}, Frontends: []ir.Frontend{{Kind: ir.ExternalIP, Port: port, Policy: ir.Cluster,
			Match: ir.Match{Addr: addr, Protocol: ir.TCP, Port: 80}, Routes: []ir.Route{{From: ir.Any}}}}}
	}
	p.Services = []ir.Service{
		serve(ir.Name{Namespace: "aaa", Name: "big"}, costly, 50),
		serve(ir.Name{Namespace: "victim", Name: "web"}, netip.MustParseAddr("203.0.113.10"), 2),
	}
	faulty := *p
	faulty.Services = p.Services[:1]
	ctx, cancel := context.WithCancelCause(t.Context())
	side := meeting{sim.NewEvaluator(p), func(pkt sim.Packet) {
		if pkt.Dst == costly {
			cancel(prove.Limit("it takes too long"))
		}
	}}
	r, err := prove.Compare(ctx, prove.NodeOf(p), side, sim.NewEvaluator(&faulty))
	if err != nil {
		t.Fatal(err)
	}
	var done, all int
	if len(r.Doubts) != 1 {
		t.Fatalf("%d doubts", len(r.Doubts))
	}
	if _, err := fmt.Sscanf(r.Doubts[0].Unknown[0], "it takes too long: %d of %d destinations", &done, &all); err != nil || done != all-1 {
		t.Errorf("%q: must be all but one", r.Doubts[0].Unknown[0])
	}
	if len(r.Differences) == 0 || r.Differences[0].Dst.First.String() != "203.0.113.10" {
		t.Errorf("got %d differences: must be the other Service's", len(r.Differences))
	}
}

type meeting struct {
	*sim.Evaluator
	meet func(sim.Packet)
}

func (m meeting) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	m.meet(pkt)
	return m.Evaluator.Outcome(pkt, cuts)
}

type stopping struct {
	*sim.Evaluator
	ask   func(asked int)
	asked *int
}

func (s stopping) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	*s.asked++
	s.ask(*s.asked)
	return s.Evaluator.Outcome(pkt, cuts)
}
