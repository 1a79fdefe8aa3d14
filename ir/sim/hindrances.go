package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Hindrance is one condition that prevents a packet from being accepted.
type Hindrance struct {
	Step
	// Frontend is the frontend without endpoints; nil for other hindrances.
	Frontend *ir.Frontend `json:"-"`
}

// Hindrances returns everything that prevents a packet from reaching the backends
// of its intended frontend. Each hindrance alone is sufficient, and all are
// listed, while Explain ends at the first. The result is empty for an accepted
// packet, and for a destination that resembles nothing in the Program. The cost
// is linear in the Program.
func (e *Evaluator) Hindrances(pkt Packet) []Hindrance {
	p := e.program
	t := tracer{Evaluator: e, pkt: pkt}
	if t.trace().Fate == Accepted || !p.Family.Has(pkt.Dst) {
		return nil
	}
	h := hindrances{tracer: &t}
	for _, r := range t.refused {
		h.add(nil, r.backend.Origin, "endpoint %s must be at an address where packets are not %s", r.backend.AddrPort, r.fate)
	}
	if len(h.found) > 0 {
		return h.found
	}
	_, f := t.find(ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port})
	_, port := t.find(ir.Match{Protocol: pkt.Protocol, Port: pkt.Port})
	local := t.own.Has(pkt.Dst)
	switch {
	case f != nil:
		h.frontend(f)
	case port != nil && local:
		h.nodePort(port)
	case !h.near() && port != nil:
		h.add(nil, ir.Origin{Object: "Node " + p.Node.Name, Field: "status.addresses"}, "%s must be an address of node %s, for the NodePort of %s", pkt.Dst, p.Node.Name, port.Port)
		h.nodePort(port)
	}
	return h.found
}

type hindrances struct {
	*tracer
	found []Hindrance
}

func (h *hindrances) add(f *ir.Frontend, o ir.Origin, format string, args ...any) {
	h.found = append(h.found, Hindrance{Step{fmt.Sprintf(format, args...), o}, f})
}

// frontend adds all hindrances of a frontend.
func (h *hindrances) frontend(f *ir.Frontend) {
	if len(f.SourceRanges) > 0 && !h.admitted(f) {
		ranges := make([]string, len(f.SourceRanges))
		for i, r := range f.SourceRanges {
			ranges[i] = r.Prefix.String()
		}
		h.add(nil, ir.Origin{Object: f.SourceRanges[0].Origin.Object, Field: "spec.loadBalancerSourceRanges"},
			"the source ranges must contain %s; they are %s", h.pkt.Src, strings.Join(ranges, ", "))
	}
	if slices.ContainsFunc(f.Routes, func(r ir.Route) bool { return h.matches(r.From) }) {
		return
	}
	where := ""
	if f.Policy == ir.Local {
		where = " on node " + h.program.Node.Name
		if f.Fallback == ir.Drop {
			where += ", or the traffic policy Cluster"
		}
	}
	h.add(f, f.FallbackOrigin, "%s must have a ready endpoint%s", f.Port, where)
}

// nodePort adds all hindrances of a node port.
func (h *hindrances) nodePort(f *ir.Frontend) {
	if ports := &h.program.Node.NodePorts; !ports.Has(h.pkt.Dst, true) {
		h.add(nil, ports.Origin, "node ports must answer on %s, for the NodePort of %s", h.pkt.Dst, f.Port)
	}
	h.frontend(f)
}

// near adds what exists at the packet's destination instead of its port. It
// reports whether the destination belongs to the Program.
func (h *hindrances) near() bool {
	ports := map[string][]string{}
	var of []*ir.Frontend
	for i := range h.program.Services {
		s := &h.program.Services[i]
		for j := range s.Frontends {
			if f := &s.Frontends[j]; f.Match.Addr == h.pkt.Dst {
				if name := s.Name.String(); ports[name] == nil {
					of = append(of, f)
				}
				ports[s.Name.String()] = append(ports[s.Name.String()], fmt.Sprintf("%d/%s", f.Match.Port, f.Match.Protocol))
			}
		}
	}
	for _, f := range of {
		has := ports[f.Port.Service.String()]
		h.add(nil, ir.Origin{Object: f.Origin.Object, Field: "spec.ports"}, "%s must have port %d/%s at its %s; it has %s",
			f.Port.Service, h.pkt.Port, h.pkt.Protocol, f.Kind, strings.Join(slices.Compact(has), ", "))
	}
	if len(of) > 0 {
		return true
	}
	for _, c := range h.program.Node.ServiceCIDRs {
		if c.Prefix.Contains(h.pkt.Dst) {
			h.add(nil, c.Origin, "a Service with rules must have %s, an address of the service network %s", h.pkt.Dst, c.Prefix)
			return true
		}
	}
	return false
}
