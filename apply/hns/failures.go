package hns

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// failed records a failed call about a load balancer.
func (c *commit) failed(verb apply.Verb, k key, kind rules.Kind, err error) {
	c.failures = append(c.failures, apply.BalancerFailure{Verb: verb, Family: k.family, Type: typeLabels[kind], Cause: cause(err)})
}

// refusedRemoval is a load balancer that HNS refuses to remove. HNS stores neither the Service nor the kind,
// which are unknown to later commits.
type refusedRemoval struct {
	service ir.Name
	kind    rules.Kind
	reason  error
}

// deleteBalancer deletes a load balancer, and records a failure.
func (c *commit) deleteBalancer(k key, have *LoadBalancer) error {
	err := c.delete(c.host.DeleteLoadBalancer, have.ID)
	if _, ok := errors.AsType[*Error](err); !ok {
		return err
	}
	known := c.unremoved[have.ID]
	if known == nil {
		known = c.describe(k, have)
	}
	known.reason = err
	if isRefused(err) { // otherwise HNS is unreachable
		c.unremoved[have.ID] = known
	}
	c.failed(apply.Remove, k, known.kind, err)
	return err
}

// describe returns the kind of an existing load balancer and its Service: the one that requires it,
// or required it before this commit. If no Service did, an external IP stands for all external
// addresses.
func (c *commit) describe(k key, l *LoadBalancer) *refusedRemoval {
	claims := c.w.balancers[k]
	if len(claims) == 0 {
		claims = c.before().balancers[k]
	}
	switch {
	case len(claims) > 0:
		return &refusedRemoval{service: claims[0].service, kind: claims[0].Kind}
	case k.match.IsNodePort():
		return &refusedRemoval{kind: rules.NodePort}
	case l.PortMappings[0].Flags&rules.VipExternalIP != 0:
		return &refusedRemoval{kind: rules.ExternalIP}
	}
	return &refusedRemoval{kind: rules.ClusterIP}
}

// refusedRemovals returns the load balancers that no Service needs and that HNS did not remove.
func (c *commit) refusedRemovals() (all []apply.Refusal) {
	for _, l := range c.s.obsoleteBalancers {
		if s := c.unremoved[l.ID]; s != nil {
			k, _ := keyOf(l)
			one := apply.Refusal{Object: k.object(), Service: s.service, Reason: s.reason}
			for _, id := range l.HostComputeEndpoints {
				if e := c.s.byID[strings.ToLower(id)]; e != nil {
					one.Uses = append(one.Uses, endpointObject(e.Addrs[0]))
				}
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b apply.Refusal) int { return strings.Compare(a.Object, b.Object) })
	return all
}

// forgetRemoved forgets refused load balancers that no longer exist.
func (d *Dataplane) forgetRemoved() {
	maps.DeleteFunc(d.unremoved, func(id string, _ *refusedRemoval) bool {
		return !slices.ContainsFunc(d.state.obsoleteBalancers, func(l *LoadBalancer) bool { return l.ID == id })
	})
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
