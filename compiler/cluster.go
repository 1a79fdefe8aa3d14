package compiler

import (
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// cluster is the part of the input that all nodes share.
type cluster struct {
	snap *snapshot.Snapshot
	mode ir.Mode
	caps ir.Capability
	// externalIPs is feature gate AllowServiceExternalIPs, which enables
	// spec.externalIPs (SNAP-22).
	externalIPs bool
	// masqueradeAll is the path of the field that masquerades every client.
	masqueradeAll string

	names fieldNames
}

// fieldNames are paths of list elements, for Origins. They are built once.
type fieldNames struct {
	clusterIPs, externals, ingresses, ranges list // of a Service
	ports, portNumbers, nodePorts, protocols list
	endpoints, slicePorts                    list // of an EndpointSlice
	addresses                                list // of a subset of v1 Endpoints
}

// Numbers of prepared names. Most Services have few ports and addresses, and most
// slices at most 100 endpoints, the EndpointSlice controller's default.
const (
	clusterIPs     = 2 // one for each family
	namedFields    = 16
	namedEndpoints = 100
)

func newCluster(cfg *config.Config, snap *snapshot.Snapshot) *cluster {
	mode := cfg.ProxyMode()
	allowed, set := cfg.FeatureGates["AllowServiceExternalIPs"]
	return &cluster{
		snap: snap, mode: mode, caps: mode.Capabilities(), externalIPs: allowed || !set, masqueradeAll: cfg.MasqueradeAllField(),
		names: newFieldNames(),
	}
}

func newFieldNames() fieldNames {
	return fieldNames{
		clusterIPs:  newList("spec.clusterIPs[", "]", clusterIPs),
		externals:   newList("spec.externalIPs[", "]", namedFields),
		ingresses:   newList("status.loadBalancer.ingress[", "].ip", namedFields),
		ranges:      newList("spec.loadBalancerSourceRanges[", "]", namedFields),
		ports:       newList("spec.ports[", "]", namedFields),
		portNumbers: newList("spec.ports[", "].port", namedFields),
		nodePorts:   newList("spec.ports[", "].nodePort", namedFields),
		protocols:   newList("spec.ports[", "].protocol", namedFields),
		endpoints:   newList("endpoints[", "]", namedEndpoints),
		addresses:   newList("addresses[", "]", namedFields),
		slicePorts:  newList("ports[", "]", namedFields),
	}
}
