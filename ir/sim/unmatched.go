package sim

import (
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// noRoute returns the outcome of a packet without a route: rejected if no
// endpoint exists (PKT-8), dropped if only other nodes have one (PKT-9).
func (t *tracer) noRoute(f *ir.Frontend) Outcome {
	if !t.caps.Has(ir.Refuses) {
		t.step(f.FallbackOrigin, "no route: mode %s ignores the packet", t.program.Node.Mode)
		return Outcome{}
	}
	vip := f.Kind == ir.ExternalIP || f.Kind == ir.LoadBalancer
	if vip && t.pkt.FromNode() && !t.caps.Has(ir.EmptyFromNode) && !t.own.Has(t.pkt.Dst) {
		t.step(f.FallbackOrigin, "no route: mode %s ignores packets from the node itself to external addresses", t.program.Node.Mode)
		return Outcome{}
	}
	t.step(f.FallbackOrigin, "no route: %s", f.Fallback)
	if f.Fallback == ir.Drop {
		return Outcome{Fate: Dropped}
	}
	return Outcome{Fate: Rejected}
}

// unclaimed returns the outcome of a packet that matches no frontend. It depends
// on whether its address is an external address (PKT-12), a ClusterIP (PKT-13) or
// an unused address of a ServiceCIDR (PKT-14).
func (t *tracer) unclaimed(local bool) Outcome {
	s, _ := t.vipOwner()
	if s != nil && t.checksHealth() {
		return Outcome{}
	}
	fate := t.unallocated(local)
	if s == nil && fate == NotOurs && t.explain {
		if of := t.program.HealthCheck(t.pkt.Port); of != nil && t.pkt.Protocol == ir.TCP && t.own.Has(t.pkt.Dst) {
			t.step(of.Health.Origin, "port %d is the health check node port of %s: the daemon answers, and nothing is proxied", t.pkt.Port, of.Name)
			return Outcome{}
		}
		t.step(ir.Origin{}, "no Service has %s", ir.Match{Addr: t.pkt.Dst, Protocol: t.pkt.Protocol, Port: t.pkt.Port})
	}
	return Outcome{Fate: fate}
}

// unallocated returns the fate of packets to existing or possible addresses of
// Services, at ports without a frontend.
func (t *tracer) unallocated(local bool) Fate {
	if s, kind := t.vipOwner(); s != nil {
		rejects := t.caps.Has(ir.RejectUndefinedPorts) && !local
		if t.explain {
			t.undefinedPort(s, kind, rejects)
		}
		if rejects {
			return Rejected
		}
		return NotOurs
	}
	if t.caps.Has(ir.DropUnallocated) && !local {
		for _, c := range t.program.Node.ServiceCIDRs {
			if c.Prefix.Contains(t.pkt.Dst) {
				t.step(c.Origin, "%s is in the service network %s and no Service with rules has it: dropped", t.pkt.Dst, c.Prefix)
				return Dropped
			}
		}
	}
	return NotOurs
}

// checksHealth reports whether a packet to an address that the node carries is
// for a health check. Health checks answer at all addresses of the node.
func (t *tracer) checksHealth() bool {
	if !t.caps.Has(ir.CarriesVIPs) || t.pkt.Protocol != ir.TCP {
		return false
	}
	if !t.checks.Has(t.pkt.Port, t.cuts) {
		return false
	}
	t.step(ir.Origin{Object: "config", Field: "mode", Reason: "the node has the address, so it answers there"}, "port %d is a health check port: not proxied", t.pkt.Port)
	return true
}

// undefinedPort adds a step for a port that is undefined at the packet's
// destination, or not available to translated packets.
func (t *tracer) undefinedPort(s *ir.Service, kind ir.Kind, rejects bool) {
	if t.translated {
		if rejects {
			t.step(s.Origin, "%s is the %s of %s, which is not translated a second time: rejected", t.pkt.Dst, kind, s.Name)
		}
		return
	}
	ports := make([]string, 0, len(s.Frontends))
	for _, f := range s.Frontends {
		if f.Match.Addr == t.pkt.Dst {
			ports = append(ports, fmt.Sprintf("%d/%s", f.Match.Port, f.Match.Protocol))
		}
	}
	fate := "not proxied"
	if rejects {
		fate = "rejected"
	}
	t.step(ir.Origin{Object: s.Origin.Object, Field: "spec.ports"}, "%s is the %s of %s, which has only %s: %s", t.pkt.Dst, kind, s.Name, strings.Join(ports, ", "), fate)
}

// vipOwner returns the Service and kind of the packet's destination, for the
// kinds whose undefined ports the mode rejects.
func (t *tracer) vipOwner() (*ir.Service, ir.Kind) {
	of := t.vips[t.pkt.Dst]
	if of.service == nil {
		return nil, 0
	}
	return of.service, of.frontend.Kind
}
