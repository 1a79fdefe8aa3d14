package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects are the API objects for a Snapshot, reduced to the fields that decide
// about packets, or that reviews check or compare. They contain no managed fields,
// and only the names of pods.
type Objects struct {
	Services     []*corev1.Service
	Slices       []*discoveryv1.EndpointSlice
	Endpoints    []*corev1.Endpoints
	Nodes        []*corev1.Node
	ServiceCIDRs []*networkingv1.ServiceCIDR
	// Versions are the resourceVersions of the API server's lists, by kind
	// ("Service"). A kind without a list has no entry.
	Versions map[string]string
}

// Counts returns the number of objects of each kind, with their version.
func (o *Objects) Counts() string {
	var words []string
	for _, k := range []struct {
		kind string
		n    int
	}{{"Service", len(o.Services)}, {"EndpointSlice", len(o.Slices)}, {"Endpoints", len(o.Endpoints)}, {"Node", len(o.Nodes)}, {"ServiceCIDR", len(o.ServiceCIDRs)}} {
		version := o.Versions[k.kind]
		if k.n == 0 && version == "" {
			continue // the API server does not serve them
		}
		word := fmt.Sprintf("%d %ss", k.n, strings.TrimSuffix(k.kind, "s"))
		if version != "" {
			word += " at resourceVersion " + version
		}
		words = append(words, word)
	}
	return cmp.Or(strings.Join(words, ", "), "no objects")
}

// Trim returns a copy of an API object with the fields of Objects, or nil for
// kinds that a Snapshot does not use.
func Trim(obj any) any {
	switch in := obj.(type) {
	case *corev1.Service:
		out := FromService(in).api()
		out.UID = in.UID
		for key, value := range in.Annotations {
			if key != corev1.LastAppliedConfigAnnotation {
				metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
			}
		}
		for key, value := range in.Labels {
			metav1.SetMetaDataLabel(&out.ObjectMeta, key, value)
		}
		out.Spec.Selector, out.Spec.IPFamilyPolicy = in.Spec.Selector, in.Spec.IPFamilyPolicy
		out.Spec.AllocateLoadBalancerNodePorts, out.Spec.TrafficDistribution = in.Spec.AllocateLoadBalancerNodePorts, in.Spec.TrafficDistribution
		out.Spec.LoadBalancerClass, out.Spec.PublishNotReadyAddresses = in.Spec.LoadBalancerClass, in.Spec.PublishNotReadyAddresses
		out.Spec.ExternalName, out.Spec.LoadBalancerIP = in.Spec.ExternalName, in.Spec.LoadBalancerIP
		for i := range in.Spec.Ports {
			out.Spec.Ports[i].TargetPort = in.Spec.Ports[i].TargetPort
		}
		return out
	case *discoveryv1.EndpointSlice:
		out := FromEndpointSlice(in).api()
		keepIgnore(&out.ObjectMeta, &in.ObjectMeta)
		return out
	case *corev1.Node:
		out := FromNode(in).api()
		keepIgnore(&out.ObjectMeta, &in.ObjectMeta)
		out.Status.NodeInfo.KernelVersion, out.Spec.Taints = in.Status.NodeInfo.KernelVersion, in.Spec.Taints
		out.Status.NodeInfo.KubeletVersion = in.Status.NodeInfo.KubeletVersion
		return out
	case *networkingv1.ServiceCIDR:
		out := FromServiceCIDR(in).api()
		keepIgnore(&out.ObjectMeta, &in.ObjectMeta)
		return out
	}
	return nil
}

// WithoutSettings removes from a Service what affects no packet and no finding, but programs of a cluster
// read. It has no UID then, so that a comparison does not miss them.
func WithoutSettings(s *corev1.Service) {
	out := FromService(s).api()
	keepIgnore(&out.ObjectMeta, &s.ObjectMeta)
	s.UID, s.Annotations, s.Spec.ExternalName, s.Spec.LoadBalancerIP = "", out.Annotations, "", ""
}

func keepIgnore(out, in *metav1.ObjectMeta) {
	if text, ok := in.Annotations[AnnotationIgnore]; ok {
		metav1.SetMetaDataAnnotation(out, AnnotationIgnore, text)
	}
}

// Add adds an object that Trim returned.
func (o *Objects) Add(obj any) {
	switch obj := obj.(type) {
	case *corev1.Service:
		o.Services = append(o.Services, obj)
	case *discoveryv1.EndpointSlice:
		o.Slices = append(o.Slices, obj)
	case *corev1.Node:
		o.Nodes = append(o.Nodes, obj)
	case *networkingv1.ServiceCIDR:
		o.ServiceCIDRs = append(o.ServiceCIDRs, obj)
	}
}

// Objects returns API objects that yield the Document's Snapshot.
func (d *Document) Objects() *Objects {
	out := new(Objects)
	for _, svc := range d.Services {
		out.Services = append(out.Services, svc.api())
	}
	legacy := map[string]*corev1.Endpoints{}
	for _, slice := range d.Slices {
		if !slice.FromEndpoints {
			out.Slices = append(out.Slices, slice.api())
			continue
		}
		e := legacy[slice.Object]
		if e == nil {
			e = &corev1.Endpoints{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}, ObjectMeta: slice.meta()}
			legacy[slice.Object] = e
			out.Endpoints = append(out.Endpoints, e)
		}
		slice.addTo(e)
	}
	for _, n := range d.Nodes {
		out.Nodes = append(out.Nodes, n.api())
	}
	for _, c := range d.ServiceCIDRs {
		out.ServiceCIDRs = append(out.ServiceCIDRs, c.api())
	}
	return out
}

// setIf sets a label or an annotation if is holds.
func setIf(is bool, set func(m *metav1.ObjectMeta, key, value string), m *metav1.ObjectMeta, key, value string) {
	if is {
		set(m, key, value)
	}
}

// optional returns a pointer to a value if it is set.
func optional[T any](is bool, value T) *T {
	if !is {
		return nil
	}
	return &value
}

// api is the inverse of FromService.
func (s *Service) api() *corev1.Service {
	out := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name, CreationTimestamp: metav1.NewTime(s.Created)},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceType(s.Type), ClusterIP: s.ClusterIP, ClusterIPs: clone(s.ClusterIPs),
			ExternalIPs: clone(s.ExternalIPs), LoadBalancerSourceRanges: clone(s.SourceRanges), HealthCheckNodePort: s.HealthPort}}
	spec := &out.Spec
	setIf(s.ProxyName, metav1.SetMetaDataLabel, &out.ObjectMeta, LabelProxyName, "other")
	setIf(s.PreserveDIP, metav1.SetMetaDataAnnotation, &out.ObjectMeta, annotationPreserveDIP, "true")
	setIf(s.NoOptimize, metav1.SetMetaDataAnnotation, &out.ObjectMeta, annotationNoOptimize, "DISABLED")
	setIf(s.Balance != "", metav1.SetMetaDataAnnotation, &out.ObjectMeta, AnnotationBalance, s.Balance)
	for _, f := range s.IPFamilies {
		spec.IPFamilies = append(spec.IPFamilies, corev1.IPFamily(f))
	}
	if s.AffinityIP {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if s.AffinitySecs != 0 {
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(s.AffinitySecs)}}
	}
	spec.InternalTrafficPolicy = optional(s.InternalLocal, corev1.ServiceInternalTrafficPolicyLocal)
	if s.ExternalLocal {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	for _, p := range s.Ports {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: corev1.Protocol(p.Protocol), Port: p.Port, NodePort: p.NodePort})
	}
	for _, in := range s.LoadBalancer {
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: in.IP, IPMode: optional(in.IPMode != "", corev1.LoadBalancerIPMode(in.IPMode))})
	}
	return out
}

func (s *EndpointSlice) meta() metav1.ObjectMeta {
	out := metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name}
	setIf(s.Headless, metav1.SetMetaDataLabel, &out, corev1.IsHeadlessService, "")
	return out
}

// api is the inverse of FromEndpointSlice, except for a null port name, which an
// API server never returns.
func (s *EndpointSlice) api() *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: s.meta(), AddressType: discoveryv1.AddressType(s.AddressType)}
	setIf(s.Service.Name != "", metav1.SetMetaDataLabel, &out.ObjectMeta, discoveryv1.LabelServiceName, s.Service.Name)
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: optional(p.HasName, p.Name), Port: optional(p.HasPort, p.Port),
			Protocol: optional(p.Protocol != "", corev1.Protocol(p.Protocol))})
	}
	for i := range s.Endpoints {
		out.Endpoints = append(out.Endpoints, s.Endpoints[i].api())
	}
	return out
}

func (e *Endpoint) api() discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{TargetRef: podReference(e.Pod), NodeName: optional(e.NodeName != "", e.NodeName), Conditions: discoveryv1.EndpointConditions{
		Ready: new(e.Ready), Serving: new(e.Serving), Terminating: new(e.Terminating)}}
	if e.Address != "" {
		out.Addresses = []string{e.Address}
	}
	if len(e.ZoneHints())+len(e.NodeHints()) > 0 {
		out.Hints = new(discoveryv1.EndpointHints)
	}
	for _, z := range e.ZoneHints() {
		out.Hints.ForZones = append(out.Hints.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range e.NodeHints() {
		out.Hints.ForNodes = append(out.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return out
}

func podReference(pod string) *corev1.ObjectReference {
	return optional(pod != "", corev1.ObjectReference{Kind: "Pod", Name: pod})
}

// addTo adds the endpoints to the subset of v1 Endpoints from which they were
// made.
func (s *EndpointSlice) addTo(e *corev1.Endpoints) {
	for len(e.Subsets) <= s.Subset {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{})
	}
	subset := &e.Subsets[s.Subset]
	if len(subset.Ports) == 0 { // unless the other family has added them
		for _, p := range s.Ports {
			subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: p.Name, Protocol: corev1.Protocol(p.Protocol), Port: p.Port})
		}
	}
	for i := range s.Endpoints {
		for len(subset.Addresses) <= s.Addresses[i] {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{})
		}
		of := &s.Endpoints[i]
		subset.Addresses[s.Addresses[i]] = corev1.EndpointAddress{IP: of.Address, TargetRef: podReference(of.Pod), NodeName: optional(of.NodeName != "", of.NodeName)}
	}
}

// api is the inverse of FromNode.
func (n *Node) api() *corev1.Node {
	out := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec: corev1.NodeSpec{PodCIDRs: texts(n.PodCIDRs)}}
	setIf(n.Zone != "", metav1.SetMetaDataLabel, &out.ObjectMeta, corev1.LabelTopologyZone, n.Zone)
	setIf(n.Only, metav1.SetMetaDataAnnotation, &out.ObjectMeta, AnnotationOnlyNode, "true")
	for _, a := range n.Addresses {
		out.Status.Addresses = append(out.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(a.Type), Address: a.Address})
	}
	return out
}

// api is the inverse of FromServiceCIDR.
func (c *ServiceCIDR) api() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: texts(c.CIDRs)}}
}

func texts(prefixes []netip.Prefix) (out []string) {
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// Write writes the objects as one JSON List with a List of each kind and its
// resourceVersion. Each object is on its own line, sorted by kind, namespace and
// name, so that equal objects yield equal bytes.
func (o *Objects) Write(w io.Writer) error {
	var out bytes.Buffer
	out.WriteString(`{"apiVersion":"v1","kind":"List","items":[` + "\n")
	err := cmp.Or(
		writeList(&out, o, "v1", "Service", o.Services, false),
		writeList(&out, o, "discovery.k8s.io/v1", "EndpointSlice", o.Slices, false),
		writeList(&out, o, "v1", "Endpoints", o.Endpoints, true),
		writeList(&out, o, "v1", "Node", o.Nodes, false),
		writeList(&out, o, "networking.k8s.io/v1", "ServiceCIDR", o.ServiceCIDRs, true))
	if err != nil {
		return err
	}
	out.Truncate(out.Len() - len(",\n"))
	out.WriteString("\n]}\n")
	_, err = out.WriteTo(w)
	return err
}

// writeList writes a List of one kind. It omits an optional list without items
// and version.
func writeList[T metav1.Object](out *bytes.Buffer, o *Objects, apiVersion, kind string, items []T, optional bool) error {
	version, given := o.Versions[kind]
	if optional && !given && len(items) == 0 {
		return nil
	}
	head, err := json.Marshal(struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
	}{apiVersion, kind + "List", map[string]string{"resourceVersion": version}})
	if err != nil {
		return err
	}
	out.Write(head[:len(head)-1])
	out.WriteString(`,"items":[`)
	slices.SortFunc(items, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	for i, item := range items {
		text, err := Line(item)
		if err != nil {
			return err
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
		out.Write(text)
	}
	out.WriteString("]},\n")
	return nil
}

// Line returns the JSON of an API object on one line, without empty fields and with sorted names.
func Line(obj any) ([]byte, error) {
	text, err := json.Marshal(obj, json.OmitZeroStructFields(true))
	if err != nil {
		return nil, err
	}
	line := jsontext.Value(text)
	err = line.Canonicalize()
	return line, err
}
