package flow

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Reach returns the clients and backends of all frontends of a Program, by
// Service. The result is that of Compare with an empty Program, without ports
// that have no frontend.
func Reach(ctx context.Context, where Network, p *ir.Program) ([]Service, error) {
	nothing := orEmpty(nil, p)
	d := newDescriber(where, NodeOf(nothing, p), nothing, p)
	r, services, err := d.compare(ctx, d.sides[0], newFrontends(p), anywhere)
	if err != nil {
		return nil, err
	}
	if len(r.Doubts) > 0 { // Programs cause no doubts, except for too many classes
		return nil, fmt.Errorf("node %s: cannot be evaluated, because of %s", p.Node.Name, r.Doubts[0].Unknown[0])
	}
	for _, s := range services {
		for _, f := range s.Flows {
			for i := range f.To {
				f.To[i].Open = false // nothing changes
			}
		}
	}
	return services, nil
}

// frontends is a side that implements a Program at the ports of its frontends,
// and does nothing at others. A frontend thus costs the same in every mode.
type frontends struct {
	*sim.Evaluator
	node  *ir.Node
	has   map[ir.Match]bool
	ports map[ir.Match][]uint16 // by address and protocol; node ports without an address
}

func newFrontends(p *ir.Program) *frontends {
	s := &frontends{sim.NewEvaluator(p), &p.Node, map[ir.Match]bool{}, map[ir.Match][]uint16{}}
	for _, f := range p.Frontends() {
		s.has[f.Match] = true
		at := f.Match
		at.Port = 0
		s.ports[at] = append(s.ports[at], f.Match.Port)
	}
	return s
}

func (s *frontends) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	asked := []ir.Match{{Addr: pkt.Dst, Protocol: pkt.Protocol}}
	if s.node.HasAddr(pkt.Dst) || s.node.NodePorts.Has(pkt.Dst, false) {
		asked = append(asked, ir.Match{Protocol: pkt.Protocol})
	}
	has := false
	for _, m := range asked {
		cuts.PortsOf(s.ports[m])
		m.Port = pkt.Port
		has = has || s.has[m]
	}
	if !has {
		return sim.Outcome{}
	}
	all := sim.Cuts{SplitHairpins: cuts.SplitHairpins}
	out := s.Evaluator.Outcome(pkt, &all)
	cuts.Sources = append(cuts.Sources, all.Sources...)
	cuts.SourceLists = append(cuts.SourceLists, all.SourceLists...)
	cuts.Hairpins = append(cuts.Hairpins, all.Hairpins...)
	cuts.Interfaces = append(cuts.Interfaces, all.Interfaces...)
	return out
}
