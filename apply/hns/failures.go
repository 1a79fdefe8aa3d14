package hns

import (
	"errors"

	"github.com/proxyc/proxyc/apply"
	rules "github.com/proxyc/proxyc/render/hns"
)

// failed records a failed call about a load balancer.
func (c *commit) failed(verb apply.Verb, k key, kind rules.Kind, err error) {
	c.failures = append(c.failures, apply.BalancerFailure{Verb: verb, Family: k.family, Type: typeLabels[kind], Cause: cause(err)})
}

// deleteBalancer deletes a load balancer. If HNS rejects this, it records the failure and the kind
// for later attempts: HNS does not store the kind, and the Service may be unknown by then.
func (c *commit) deleteBalancer(k key, have *LoadBalancer) error {
	err := c.delete(c.host.DeleteLoadBalancer, have.ID)
	if _, ok := errors.AsType[*Error](err); !ok {
		delete(c.stuck, have.ID)
		return err
	}
	kind, known := c.stuck[have.ID]
	if !known {
		kind = c.kindOf(k, have)
		c.stuck[have.ID] = kind
	}
	c.failed(apply.Remove, k, kind, err)
	return err
}

// kindOf returns the kind of an existing load balancer: that of the Service that requires it, or
// required it before this commit. If no Service did, an external IP stands for all external
// addresses. It lowers all Services, and is called only for the first failure of a load balancer.
func (c *commit) kindOf(k key, l *LoadBalancer) rules.Kind {
	for _, w := range []*desired{c.w, newDesired(c.applied.Programs(), &c.s.network, c.s.can)} {
		if claims := w.balancers[k]; len(claims) > 0 {
			return claims[0].Kind
		}
	}
	switch {
	case k.match.IsNodePort():
		return rules.NodePort
	case l.PortMappings[0].Flags&rules.VipExternalIP != 0:
		return rules.ExternalIP
	}
	return rules.ClusterIP
}

// typeLabels are kube-proxy's names of the kinds in metrics.
var typeLabels = [...]string{rules.ClusterIP: "clusterip", rules.NodePort: "nodeport", rules.ExternalIP: "externalip",
	rules.Ingress: "ingressip", rules.HealthCheck: "healthcheck"}

// cause returns kube-proxy's name of an error in metrics.
func cause(err error) string {
	switch {
	case hasCode(err, PortAlreadyExists):
		return "port_already_exists"
	case hasCode(err, NetworkNotFound):
		return "network_not_found"
	case hasCode(err, NotImplemented):
		return "not_implemented"
	case hasCode(err, InvalidIP):
		return "invalid_ip"
	}
	return "other"
}
