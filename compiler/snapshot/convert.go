package snapshot

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Labels and annotations that the API packages do not define.
const (
	LabelProxyName        = "service.kubernetes.io/service-proxy-name"
	annotationPreserveDIP = "preserve-destination"
	annotationNoOptimize  = "winProxyOptimization"
)

// AnnotationIgnore lists the codes of suppressed findings about an object,
// separated by commas.
const AnnotationIgnore = "proxyc.dev/lint-ignore"

// AnnotationOnlyNode marks the Node of a daemon's snapshot (Node.Only).
const AnnotationOnlyNode = "proxyc.dev/only-node"

// AnnotationBalance selects how a Service balances among its backends.
const AnnotationBalance = "proxyc.dev/balance"

// FromService reduces a v1 Service. It does not set the API server's defaults;
// the caller does.
func FromService(in *corev1.Service) *Service {
	spec := &in.Spec
	out := &Service{
		Name:          NameOf(&in.ObjectMeta),
		Object:        ObjectName("Service", NameOf(&in.ObjectMeta)),
		Created:       in.CreationTimestamp.Time,
		ProxyName:     has(in.Labels, LabelProxyName),
		Type:          intern(string(spec.Type)),
		ClusterIP:     spec.ClusterIP,
		ClusterIPs:    clone(spec.ClusterIPs),
		ExternalIPs:   clone(spec.ExternalIPs),
		SourceRanges:  clone(spec.LoadBalancerSourceRanges),
		AffinityIP:    spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		InternalLocal: spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		HealthPort:    spec.HealthCheckNodePort,
		PreserveDIP:   in.Annotations[annotationPreserveDIP] == "true",
		NoOptimize:    strings.EqualFold(in.Annotations[annotationNoOptimize], "DISABLED"),
		Balance:       intern(in.Annotations[AnnotationBalance]),
	}
	for _, f := range spec.IPFamilies {
		out.IPFamilies = append(out.IPFamilies, intern(string(f)))
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		out.AffinitySecs = *c.ClientIP.TimeoutSeconds
	}
	out.Ports = make([]ServicePort, len(spec.Ports))
	for i, p := range spec.Ports {
		out.Ports[i] = ServicePort{Name: intern(p.Name), Protocol: intern(string(p.Protocol)), Port: p.Port, NodePort: p.NodePort}
	}
	for _, g := range in.Status.LoadBalancer.Ingress {
		out.LoadBalancer = append(out.LoadBalancer, Ingress{IP: g.IP, IPMode: intern(string(ptr.Deref(g.IPMode, "")))})
	}
	return out
}

// FromEndpointSlice reduces a discovery.k8s.io/v1 EndpointSlice.
func FromEndpointSlice(in *discoveryv1.EndpointSlice) *EndpointSlice {
	out := &EndpointSlice{
		Name:        NameOf(&in.ObjectMeta),
		Object:      ObjectName("EndpointSlice", NameOf(&in.ObjectMeta)),
		Headless:    has(in.Labels, corev1.IsHeadlessService),
		AddressType: intern(string(in.AddressType)),
		Ports:       make([]EndpointPort, len(in.Ports)),
		Endpoints:   make([]Endpoint, len(in.Endpoints)),
		Triggered:   triggered(in.Annotations[corev1.EndpointsLastChangeTriggerTime]),
	}
	if service := in.Labels[discoveryv1.LabelServiceName]; service != "" {
		out.Service = ir.Name{Namespace: out.Name.Namespace, Name: intern(service)}
	}
	for i, p := range in.Ports {
		out.Ports[i] = EndpointPort{Name: intern(ptr.Deref(p.Name, "")), HasName: p.Name != nil, Port: ptr.Deref(p.Port, 0), HasPort: p.Port != nil,
			Protocol: intern(string(ptr.Deref(p.Protocol, "")))}
	}
	var shared hints
	for i := range in.Endpoints {
		out.Endpoints[i] = fromEndpoint(&in.Endpoints[i], &shared)
	}
	return out
}

func fromEndpoint(in *discoveryv1.Endpoint, shared *hints) Endpoint {
	out := Endpoint{
		Ready:       ptr.Deref(in.Conditions.Ready, true),
		Serving:     ptr.Deref(in.Conditions.Serving, true),
		Terminating: ptr.Deref(in.Conditions.Terminating, false),
		NodeName:    intern(ptr.Deref(in.NodeName, "")),
		Pod:         podOf(in.TargetRef),
	}
	if len(in.Addresses) > 0 {
		out.Address, out.Addr = in.Addresses[0], address(in.Addresses[0])
	}
	if in.Hints != nil {
		out.Hints = shared.of(in.Hints)
	}
	return out
}

// podOf returns the name of the Pod that an endpoint refers to, or "".
func podOf(target *corev1.ObjectReference) string {
	if target == nil || target.Kind != "Pod" {
		return ""
	}
	return target.Name
}

// hints keeps the hints of the previous endpoint. Most endpoints of a slice have
// equal hints and then share the memory.
type hints struct{ last *Hints }

func (h *hints) of(in *discoveryv1.EndpointHints) *Hints {
	if len(in.ForZones)+len(in.ForNodes) == 0 {
		return nil
	}
	same := h.last != nil &&
		slices.EqualFunc(in.ForZones, h.last.Zones, func(z discoveryv1.ForZone, name string) bool { return z.Name == name }) &&
		slices.EqualFunc(in.ForNodes, h.last.Nodes, func(n discoveryv1.ForNode, name string) bool { return n.Name == name })
	if !same {
		h.last = &Hints{}
		for _, z := range in.ForZones {
			h.last.Zones = append(h.last.Zones, intern(z.Name))
		}
		for _, n := range in.ForNodes {
			h.last.Nodes = append(h.last.Nodes, intern(n.Name))
		}
	}
	return h.last
}

// FromEndpoints converts v1 Endpoints to slices: one for each subset and family
// with ready addresses. It ignores addresses that are not ready, as kube-proxy
// did when it used Endpoints (SNAP-62).
func FromEndpoints(in *corev1.Endpoints) []*EndpointSlice {
	var out []*EndpointSlice
	for i := range in.Subsets {
		for _, family := range ir.Families() {
			if endpoints, addresses := readyAddresses(&in.Subsets[i], family); endpoints != nil {
				out = append(out, &EndpointSlice{
					Name:          NameOf(&in.ObjectMeta),
					Object:        ObjectName("Endpoints", NameOf(&in.ObjectMeta)),
					Service:       NameOf(&in.ObjectMeta),
					Headless:      has(in.Labels, corev1.IsHeadlessService),
					AddressType:   family.String(),
					Ports:         subsetPorts(&in.Subsets[i]),
					Endpoints:     endpoints,
					FromEndpoints: true,
					Subset:        i,
					Addresses:     addresses,
					Triggered:     triggered(in.Annotations[corev1.EndpointsLastChangeTriggerTime]),
				})
			}
		}
	}
	return out
}

// readyAddresses returns the ready addresses of a family and their indexes.
// Invalid addresses are returned for IPv4, so that the compiler reports them.
func readyAddresses(in *corev1.EndpointSubset, family ir.Family) (out []Endpoint, indexes []int) {
	for i, a := range in.Addresses {
		addr := address(a.IP)
		if addr.IsValid() && !family.Has(addr) || !addr.IsValid() && family != ir.IPv4 {
			continue
		}
		e := Endpoint{Address: a.IP, Addr: addr, Pod: podOf(a.TargetRef), NodeName: intern(ptr.Deref(a.NodeName, "")), Ready: true, Serving: true}
		out, indexes = append(out, e), append(indexes, i)
	}
	return out, indexes
}

func subsetPorts(in *corev1.EndpointSubset) []EndpointPort {
	out := make([]EndpointPort, len(in.Ports))
	for i, p := range in.Ports {
		out[i] = EndpointPort{Name: intern(p.Name), Protocol: intern(string(p.Protocol)), Port: p.Port, HasName: true, HasPort: true}
	}
	return out
}

// FromNode reduces a v1 Node. It omits invalid pod CIDRs.
func FromNode(in *corev1.Node) *Node {
	out := &Node{Name: intern(in.Name), Zone: intern(in.Labels[corev1.LabelTopologyZone]), Only: in.Annotations[AnnotationOnlyNode] == "true"}
	for _, a := range in.Status.Addresses {
		out.Addresses = append(out.Addresses, NodeAddress{Type: intern(string(a.Type)), Address: a.Address})
	}
	out.PodCIDRs = prefixes(in.Spec.PodCIDRs)
	return out
}

// FromServiceCIDR reduces a networking.k8s.io/v1 ServiceCIDR; v1beta1 has the
// same fields. It omits invalid CIDRs.
func FromServiceCIDR(in *networkingv1.ServiceCIDR) *ServiceCIDR {
	return &ServiceCIDR{Name: in.Name, CIDRs: prefixes(in.Spec.CIDRs)}
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, ok := inet.ParsePrefix(text); ok {
			out = append(out, p)
		}
	}
	return out
}

// address parses an IP address without a zone. It returns the zero Addr for other
// texts.
func address(text string) netip.Addr {
	if addr, ok := inet.ParseAddr(text); ok {
		return addr
	}
	return netip.Addr{}
}

// NameOf returns the namespace and name of an API object, interned.
func NameOf(m *metav1.ObjectMeta) ir.Name {
	return ir.Name{Namespace: intern(m.Namespace), Name: intern(m.Name)}
}

// ObjectName returns "Service ns/web", "Node a" without a namespace, or only the
// kind without a name.
func ObjectName(kind string, n ir.Name) string {
	switch {
	case n.Name == "":
		return kind
	case n.Namespace == "":
		return kind + " " + n.Name
	}
	return kind + " " + n.Namespace + "/" + n.Name
}

// ParseObject returns the kind and the name in an ObjectName.
func ParseObject(object string) (kind string, n ir.Name) {
	kind, n.Name, _ = strings.Cut(object, " ")
	if namespace, name, ok := strings.Cut(n.Name, "/"); ok {
		n = ir.Name{Namespace: namespace, Name: name}
	}
	return kind, n
}

// triggered parses the annotation with the time of the change that caused this
// version of the object (SNAP-47). It returns the zero time if the text is
// invalid.
func triggered(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text)
	return t
}

// intern returns the shared copy of a string that many objects contain: names of
// nodes, zones, namespaces, Services and ports, and enumerations.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

func clone(in []string) []string { return append([]string(nil), in...) }

func has(m map[string]string, key string) bool {
	_, ok := m[key]
	return ok
}
