package ipvs

import (
	"cmp"
	"context"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// meter counts the connections that ip_vs gives to real servers. It counts no others. The kernel adds them up
// every two seconds, so those of the last two seconds of a virtual server are lost.
type meter struct {
	*apply.Meter[ir.Match] // of virtual servers
	kernel                 kernel
	families               []ir.Family
	applied                *apply.Applied
}

// traffic implements apply.Counters.
func (m *meter) traffic(ctx context.Context) (map[ir.ServicePort]apply.Traffic, error) {
	return m.Read(ctx, func(ctx context.Context) (apply.Reading[ir.Match], error) { return m.counters(ctx, m.applied.Programs) })
}

func (m *meter) counters(ctx context.Context, programs func() ir.Programs) (r apply.Reading[ir.Match], err error) {
	for _, f := range m.families {
		values, err := m.kernel.counted(ctx, f)
		if err != nil {
			return r, err
		}
		r.Values = append(r.Values, values...)
	}
	frontends := render.FrontendsIn(programs)
	r.Of = func(key ir.Match) (render.Counted, bool) {
		of := frontends(ir.FamilyOf(key.Addr))
		// A node port has a virtual server for each address of the node.
		f := cmp.Or(of[key], of[ir.Match{Protocol: key.Protocol, Port: key.Port}])
		if f == nil {
			return render.Counted{}, false
		}
		return render.Count(f, true, render.Admitted), true
	}
	return r, nil
}

// measured commits a Plan, and counts what the virtual servers counted that it removes.
func (m *meter) measured(ctx context.Context, p *Plan, c *commit) (err error) {
	gone := map[ir.Match]bool{}
	for _, r := range p.remove {
		if r.op == removeServer {
			gone[r.server.Key] = true
		}
	}
	if m == nil || len(gone) == 0 {
		return c.run(ctx, p)
	}
	m.Around(func() (apply.Reading[ir.Match], error) {
		return m.counters(ctx, func() ir.Programs { return p.desired.Before(m.applied) })
	}, func(key ir.Match) bool { return gone[key] }, func() bool {
		err = c.run(ctx, p)
		return err == nil && len(c.refused) == 0
	})
	return err
}
