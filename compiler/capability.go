package compiler

import (
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// checkCapabilities warns of fields of a Service that the mode does not support.
// They are ignored, as in kube-proxy. SCTP ports are checked with the ports.
func (c *cluster) checkCapabilities(s *service) {
	for _, f := range [...]struct {
		asked  bool
		need   ir.Capability
		code   diag.Code
		field  string
		effect string
	}{
		{s.InternalLocal, ir.TrafficPolicies, diag.ModePolicies, "spec.internalTrafficPolicy", "does not support traffic policies: Local is treated as Cluster"},
		{s.ExternalLocal, ir.TrafficPolicies, diag.ModePolicies, "spec.externalTrafficPolicy", "does not support traffic policies: Local is treated as Cluster"},
		{len(s.SourceRanges) > 0, ir.SourceRanges, diag.ModeSources, "spec.loadBalancerSourceRanges", "does not filter sources: all clients are admitted"},
		{s.wantsHealth(), ir.HealthPorts, diag.ModeHealth, "spec.healthCheckNodePort", "does not serve health check ports"},
	} {
		if f.asked && !c.caps.Has(f.need) {
			s.warn(f.code, f.field, "mode "+string(c.mode)+" "+f.effect)
		}
	}
	s.checkAffinity()
	if c.caps.Has(ir.HealthPorts) {
		s.checkHealth()
	}
	if !c.caps.Has(ir.AffinityTimeout) && s.AffinityIP && s.affinityValid() && s.AffinitySecs != defaultAffinity {
		s.warn(diag.ModeAffinity, affinityField, "mode "+string(c.mode)+" uses the timeout of Windows")
	}
}
