package flow

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Reach returns who is led where by the frontends of a Program, by Service: what Compare
// tells of it beside a Program that does nothing, but for ports that no frontend has.
func Reach(ctx context.Context, where Network, p *ir.Program) ([]Service, error) {
	nothing := orEmpty(nil, p)
	node := NodeOf(nothing, p)
	r, err := prove.CompareAt(ctx, node, sim.NewEvaluator(nothing), newFrontends(p), anywhere, nil)
	if err != nil {
		return nil, err
	}
	if len(r.Doubts) > 0 { // Programs have none, but too many classes are one
		return nil, fmt.Errorf("node %s: cannot be told, because of %s", p.Node.Name, r.Doubts[0].Unknown[0])
	}
	return Describe(where, node, nothing, p, r.Differences), nil
}

// frontends are a side that does what a Program means at the ports of its frontends, and
// nothing at others. So a frontend costs the same in every mode.
type frontends struct {
	*sim.Evaluator
	node  *ir.Node
	has   map[ir.Match]bool
	ports map[ir.Match][]uint16 // by address and protocol; of node ports by no address
}

func newFrontends(p *ir.Program) *frontends {
	s := &frontends{sim.NewEvaluator(p), &p.Node, map[ir.Match]bool{}, map[ir.Match][]uint16{}}
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			m := p.Services[i].Frontends[j].Match
			s.has[m] = true
			port := m.Port
			m.Port = 0
			s.ports[m] = append(s.ports[m], port)
		}
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
	all := sim.Cuts{TellSelves: cuts.TellSelves}
	out := s.Evaluator.Outcome(pkt, &all)
	cuts.Sources = append(cuts.Sources, all.Sources...)
	cuts.SourceLists = append(cuts.SourceLists, all.SourceLists...)
	cuts.Selves = append(cuts.Selves, all.Selves...)
	cuts.Interfaces = append(cuts.Interfaces, all.Interfaces...)
	return out
}
