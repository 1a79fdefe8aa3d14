package compiler

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// wantsHealth reports whether healthCheckNodePort applies to a Service: only with
// type LoadBalancer and externalTrafficPolicy Local (SNAP-28).
func (s *service) wantsHealth() bool {
	_, ok := number(s.HealthPort)
	return ok && s.Type == "LoadBalancer" && s.ExternalLocal
}

// checkHealth reports a Service without the health check port that it requires.
func (s *service) checkHealth() {
	if s.Type == "LoadBalancer" && s.ExternalLocal && !s.wantsHealth() {
		s.report(diag.HealthPortMissing, "spec.healthCheckNodePort", "must be 1-65535 with externalTrafficPolicy Local, got "+strconv.Itoa(int(s.HealthPort)))
	}
}

// healthPass counts the distinct addresses of ready endpoints on this node over
// all ports. Terminating endpoints do not count, so that the load balancer leaves
// while they still serve (SNAP-60).
func (t *nodeTarget) healthPass(s *service, v *view) *ir.HealthCheck {
	if !s.wantsHealth() || !t.caps.Has(ir.HealthPorts) {
		return nil
	}
	var addrs []netip.Addr
	for _, list := range v.endpoints {
		for i := range list {
			if e := &list[i]; e.Ready && t.isLocal(e) {
				addrs = append(addrs, e.addrPort.Addr())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return &ir.HealthCheck{
		Port:   uint16(s.HealthPort),
		Local:  len(slices.Compact(addrs)),
		Origin: ir.Origin{Object: s.object, Field: "spec.healthCheckNodePort"},
	}
}
