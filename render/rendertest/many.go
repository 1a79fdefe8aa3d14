package rendertest

import (
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// ManyServices replaces a Program's Services by n Services, each with a
// ClusterIP, the given routes and five backends, one of them on the node.
func ManyServices(p *ir.Program, n int, routes ...ir.Route) *ir.Program {
	p.Services = nil
	for i := range n {
		name := ir.Name{Namespace: "default", Name: fmt.Sprintf("svc-%05d", i)}
		port := ir.ServicePort{Service: name, Protocol: ir.TCP}
		s := ir.Service{Name: name, Pools: []ir.Pool{{Port: port}}, Frontends: []ir.Frontend{{
			Match:  ir.Match{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Protocol: ir.TCP, Port: 80},
			Port:   port,
			Routes: routes,
		}}}
		for j := range 5 {
			addr := netip.AddrFrom4([4]byte{10, byte(128 + j), byte(i >> 8), byte(i)})
			s.Pools[0].Backends = append(s.Pools[0].Backends, ir.Backend{AddrPort: netip.AddrPortFrom(addr, 8080), Local: j == 0})
		}
		p.Services = append(p.Services, s)
	}
	return p
}

// BenchmarkWrite measures the time to write all texts of a lowered Program.
func BenchmarkWrite(b *testing.B, lower func(ir.Programs) render.Rendered, p *ir.Program) {
	x := lower(ir.NewPrograms(p))
	b.ReportAllocs()
	for b.Loop() {
		for _, o := range x.Outputs() {
			if err := o.Write(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	}
}
