package proxy

import (
	"net"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/proxy/tape"
)

type tapeObject struct {
	Name   string `json:"name"`
	Node   string `json:"node,omitempty"`   // whose endpoints are local
	Object any    `json:"object,omitempty"` // missing: deleted
}

func tapeService(previous, current *v1.Service) {
	switch {
	case current != nil:
		current = current.DeepCopy()
		slices.Sort(current.Spec.ExternalIPs) // the order is irrelevant, and in some tests is that of a set
		tape.Say("service", tapeObject{Name: current.Namespace + "/" + current.Name, Object: current})
	case previous != nil:
		tape.Say("service", tapeObject{Name: previous.Namespace + "/" + previous.Name})
	}
}

func tapeSlice(cache *EndpointSliceCache, slice *discovery.EndpointSlice, remove bool) {
	o := tapeObject{Name: slice.Namespace + "/" + slice.Name, Node: cache.nodeName}
	if !remove {
		o.Object = slice
	}
	tape.Say("slice", o)
}

// tapeChanges records the current endpoints of the Services whose slices changed.
func tapeChanges(changes map[types.NamespacedName]*endpointsChange) {
	var of []string
	all := EndpointsMap{}
	for name, c := range changes {
		of = append(of, name.String())
		all.merge(c.current)
	}
	slices.Sort(of)
	if len(of) > 0 {
		tape.Say("changedPools", map[string]any{"of": of, "pools": tapePools(all)})
	}
}

// tapeName returns "ns/name:port/TCP".
func tapeName(name ServicePortName) string { return name.String() + "/" + string(name.Protocol) }

// tapePort is kube-proxy's view of one port of a Service.
type tapePort struct {
	Port          string   `json:"port"`
	Address       string   `json:"address"` // ClusterIP, port and protocol
	NodePort      int      `json:"nodePort,omitempty"`
	ExternalIPs   []string `json:"externalIPs,omitempty"`
	LoadBalancers []string `json:"loadBalancers,omitempty"`
	SourceRanges  []string `json:"sourceRanges,omitempty"`
	Affinity      int      `json:"affinity,omitempty"`
	HealthCheck   int      `json:"healthCheck,omitempty"`
	ExternalLocal bool     `json:"externalLocal,omitempty"`
	InternalLocal bool     `json:"internalLocal,omitempty"`
}

func tapePorts(m ServicePortMap) []tapePort {
	out := []tapePort{}
	for name, p := range m {
		t := tapePort{Port: tapeName(name), Address: p.String(), NodePort: p.NodePort(),
			ExternalIPs: tapeIPs(p.ExternalIPs()), LoadBalancers: tapeIPs(p.LoadBalancerVIPs()),
			HealthCheck: p.HealthCheckNodePort(), ExternalLocal: p.ExternalPolicyLocal(), InternalLocal: p.InternalPolicyLocal()}
		for _, r := range p.LoadBalancerSourceRanges() {
			t.SourceRanges = append(t.SourceRanges, r.String())
		}
		if p.SessionAffinityType() == v1.ServiceAffinityClientIP {
			t.Affinity = p.StickyMaxAgeSeconds()
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b tapePort) int {
		return strings.Compare(a.Port+a.Address, b.Port+b.Address)
	})
	return out
}

func tapeIPs(ips []net.IP) []string {
	var out []string
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

// tapeEndpoint is one endpoint in kube-proxy's state.
type tapeEndpoint struct {
	Endpoint    string   `json:"endpoint"`
	Local       bool     `json:"local,omitempty"`
	Ready       bool     `json:"ready,omitempty"`
	Serving     bool     `json:"serving,omitempty"`
	Terminating bool     `json:"terminating,omitempty"`
	ZoneHints   []string `json:"zoneHints,omitempty"`
	NodeHints   []string `json:"nodeHints,omitempty"`
}

func tapeEndpoints(eps []Endpoint) []tapeEndpoint {
	out := []tapeEndpoint{}
	for _, e := range eps {
		out = append(out, tapeEndpoint{e.String(), e.IsLocal(), e.IsReady(), e.IsServing(), e.IsTerminating(),
			sets.List(e.ZoneHints()), sets.List(e.NodeHints())})
	}
	return out
}

// tapePool contains the endpoints of a service port in kube-proxy's state, and those that it
// would use under each traffic policy.
type tapePool struct {
	Port      string         `json:"port"`
	Endpoints []tapeEndpoint `json:"endpoints"`
	Cluster   []string       `json:"cluster"`
	Local     []string       `json:"local"`
}

var tapeQuiet bool

func tapePools(m EndpointsMap) []tapePool {
	tapeQuiet = true
	defer func() { tapeQuiet = false }()
	out := []tapePool{}
	for name, eps := range m {
		cluster, _, _, _ := CategorizeEndpoints(eps, &BaseServicePortInfo{}, "", nil)
		_, local, _, _ := CategorizeEndpoints(eps, &BaseServicePortInfo{internalPolicyLocal: true}, "", nil)
		out = append(out, tapePool{tapeName(name), tapeEndpoints(eps), tapeNames(cluster), tapeNames(local)})
	}
	slices.SortFunc(out, func(a, b tapePool) int { return strings.Compare(a.Port, b.Port) })
	return out
}

func tapeNames(eps []Endpoint) []string {
	out := []string{}
	for _, e := range eps {
		out = append(out, e.String())
	}
	slices.Sort(out)
	return out
}

func tapeLocalReady(m EndpointsMap) map[string]int {
	out := map[string]int{}
	for name, n := range m.LocalReadyEndpoints() {
		out[name.String()] = n
	}
	return out
}

func tapeCategorize(endpoints []Endpoint, port ServicePort, node string, labels map[string]string, cluster, local, all []Endpoint, some bool) {
	if tapeQuiet {
		return
	}
	p, ok := port.(*BaseServicePortInfo)
	if !ok {
		return
	}
	tape.Say("categorize", map[string]any{
		"node": node, "labels": labels, "preferSameNode": utilfeature.DefaultFeatureGate.Enabled(features.PreferSameTrafficDistribution),
		"internalLocal": p.internalPolicyLocal, "externalLocal": p.externalPolicyLocal, "nodePort": p.nodePort,
		"endpoints":   tapeEndpoints(endpoints),
		"usesCluster": p.UsesClusterEndpoints(), "usesLocal": p.UsesLocalEndpoints(),
		"cluster": tapeNames(cluster), "local": tapeNames(local), "all": tapeNames(all), "any": some,
	})
}
