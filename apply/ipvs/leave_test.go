package ipvs

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// When the mode is left, virtual servers with connections and their addresses stay, without new
// connections. Returning to the mode restores their weights.
func TestLeave(t *testing.T) {
	b := newBench(t)
	p := program()
	svc, key := firstTCP(p)
	to := svc.Pools[0].Backends[0].AddrPort
	b.once(p)
	b.k.connect(key, to, 3)
	s := b.k.families.IPv4
	all := func() (servers []*server, bound []netip.Addr) {
		for _, v := range s.servers {
			servers = append(servers, v)
		}
		for a := range s.bound {
			bound = append(bound, a)
		}
		return servers, bound
	}
	leave := leaving{}
	for range 2 { // the second time there is nothing to do
		servers, bound := all()
		n, err := leave.ease(t.Context(), b.k, servers)
		if err != nil || n != 3 || leave.connections() != 3 {
			t.Fatalf("%d connections, %v", n, err)
		}
		if err := leave.unbind(t.Context(), b.k, bound); err != nil {
			t.Fatal(err)
		}
		if len(s.servers) != 1 || !s.servers[key].draining() || len(s.bound) != 1 || !s.bound[key.Addr] {
			t.Fatalf("left: %v at %v", s.servers, s.bound)
		}
	}
	if d := s.servers[key].dests[to]; d.conns != 3 {
		t.Errorf("the connections: %+v", d)
	}

	b.once(p) // back to mode ipvs
	if s.servers[key].draining() || len(s.bound) < 2 {
		t.Errorf("back: %v at %v", s.servers[key], s.bound)
	}

	servers, _ := all()
	s.servers[key].dests[to] = dest{standard: true}
	refused := errors.New("no")
	b.k.refuse = func(r *request) error {
		if r.op == removeServer && r.server.Key == key {
			return refused
		}
		return nil
	}
	if _, err := leave.ease(t.Context(), b.k, servers); !errors.Is(err, refused) {
		t.Errorf("an error of the kernel: got %v", err)
	}
	b.k.refuse = nil
	if n, err := leave.ease(t.Context(), b.k, servers); n != 0 || err != nil || len(s.servers) > 0 || leave.connections() > 0 {
		t.Errorf("without connections: %d, %v, left %v", n, err, s.servers)
	}
}

// UDP has no connections: ip_vs counts clients of the last minutes.
func TestLeaveUDP(t *testing.T) {
	k := newFakeKernel()
	key := ir.Match{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: ir.UDP, Port: 53}
	v := &server{dests: map[netip.AddrPort]dest{netip.MustParseAddrPort("10.244.1.1:53"): {weight: 1, conns: 7, standard: true}}}
	v.Key = key
	k.families.IPv4.servers[key] = v
	if n, err := (&leaving{}).ease(t.Context(), k, []*server{v}); n != 0 || err != nil || len(k.families.IPv4.servers) > 0 {
		t.Errorf("%d, %v, left %v", n, err, k.families.IPv4.servers)
	}
}
