package lint

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/diag"
)

// headless reports fields of a headless Service that no proxy uses, and that DNS does not replace.
func headless(c *cluster, s *service) {
	if s.ClusterIP != "None" || s.ProxyName {
		return
	}
	for _, f := range [...]struct {
		set          bool
		path, effect string
	}{
		{s.AffinityIP, "spec.sessionAffinity", "clients choose a pod for each connection"},
		{s.InternalLocal, "spec.internalTrafficPolicy", "clients connect to pods of all nodes"},
		{s.written.Distribution != "", "spec.trafficDistribution", "clients connect to pods of all zones"},
		{len(s.ExternalIPs) > 0, "spec.externalIPs", "the Service does not answer at these addresses"},
	} {
		if f.set {
			c.warn(s, diag.HeadlessNoEffect, f.path, "has no effect in a headless Service: "+f.effect)
		}
	}
	if len(s.written.Selector) > 0 {
		headlessPorts(c, s)
	}
}

// headlessPorts reports ports that differ from those of the pods, which nothing translates.
func headlessPorts(c *cluster, s *service) {
	selected := c.workloads.Select(s.Name.Namespace, s.written.Selector)
	for i, target := range s.written.TargetPorts {
		if i >= len(s.Ports) {
			break
		}
		port, listens := s.Ports[i].Port, target.IntVal
		declared, severity := false, diag.Info // some container may listen at the port
		for _, w := range selected {
			declared = declared || slices.Contains(w.Numbers, port)
			for _, has := range w.Ports {
				declared = declared || has.ContainerPort == port
				if target.Type == intstr.String && has.Name == target.StrVal {
					listens = has.ContainerPort
				}
				if has.ContainerPort == listens {
					severity = diag.Warning
				}
			}
		}
		if listens != 0 && listens != port && !declared {
			c.addService(s, severity, diag.HeadlessNoEffect, at("spec.ports", i)+".port", fmt.Sprintf("has no effect in a headless Service: the pods serve targetPort %d, and nothing translates port %d", listens, port))
		}
	}
}
