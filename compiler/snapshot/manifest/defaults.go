package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// The API server's processing of an object before it stores it: defaulting and
// validation. Objects from files may not have passed it.

// A finding is a problem of a field.
type finding struct {
	severity  diag.Severity
	code      diag.Code
	path, msg string
	hint      string
	// rejected is the part of msg because of which the API server rejects the object, "" if it accepts
	// it. A finding with no msg is not reported by itself: no rule depends on it.
	rejected string
	// ofType reports that the API server drops the field instead, if only the type of the Service
	// changes.
	ofType bool
}

// rejects returns a finding about a fault for which the API server rejects an object, with the effect
// of the fault.
func rejects(code diag.Code, path, fault, effect string) finding {
	return finding{severity: diag.Warning, code: code, path: path, rejected: fault, msg: fault + ": " + effect}
}

// defaultNamespace sets the namespace of an object without one; "" is default.
func defaultNamespace(m *metav1.ObjectMeta, namespace string) {
	m.Namespace = cmp.Or(m.Namespace, namespace, metav1.NamespaceDefault)
}

// defaultService sets the defaults of type, cluster IPs, families, protocols and
// target ports. The families are those of all clusterIPs, so that a hand-written
// Service with two addresses is in both. The compiler sets the affinity timeout,
// and records that it is a default.
func defaultService(s *corev1.Service, namespace string) {
	defaultNamespace(&s.ObjectMeta, namespace)
	spec := &s.Spec
	spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = familiesOf(spec.ClusterIPs)
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == (intstr.IntOrString{}) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
}

func familiesOf(ips []string) []corev1.IPFamily {
	var out []corev1.IPFamily
	for _, ip := range ips {
		addr, ok := inet.ParseAddr(ip)
		switch {
		case !ok: // None or invalid: the compiler reports it
			return nil
		case addr.Unmap().Is4():
			out = append(out, corev1.IPv4Protocol)
		default:
			out = append(out, corev1.IPv6Protocol)
		}
	}
	return out
}

// defaultEndpointPorts sets the defaults of protocols and names. A name that is
// explicitly null remains null and disables the port (SNAP-41). Decoding yields
// nil for both null and missing names, so the text decides.
func defaultEndpointPorts(ports []discoveryv1.EndpointPort, text []byte) {
	var null []bool
	for i := range ports {
		p := &ports[i]
		if p.Protocol == nil {
			tcp := corev1.ProtocolTCP
			p.Protocol = &tcp
		}
		if p.Name != nil {
			continue
		}
		if null == nil {
			null = nullNames(text, len(ports))
		}
		if !null[i] {
			empty := ""
			p.Name = &empty
		}
	}
}

// nullNames reports for each of the first n ports whether its name is explicitly
// null.
func nullNames(text []byte, n int) []bool {
	var slice struct {
		Ports []map[string]json.RawMessage `json:"ports"`
	}
	out := make([]bool, n)
	if json.Unmarshal(text, &slice) != nil {
		return out
	}
	for i, p := range slice.Ports[:min(n, len(slice.Ports))] {
		out[i] = string(p["name"]) == "null"
	}
	return out
}

// defaultNode sets podCIDRs from the older field.
func defaultNode(n *corev1.Node) {
	n.Namespace = ""
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	}
}

func checkService(s *corev1.Service) []finding {
	out := checkMeta(&s.ObjectMeta)
	for i, p := range s.Spec.Ports {
		out = append(out, checkPortName(fmt.Sprintf("spec.ports[%d].name", i), p.Name)...)
	}
	if len(out) == 0 {
		out = checkServed(&s.Spec)
	}
	return slices.Concat(out, checkEnums(s), checkUnused(&s.Spec), checkExclusive(&s.Spec), checkValues(s))
}

// exclusive are fields of a Service that the API server rejects beside others.
var exclusive = [...]struct {
	wrong       func(*corev1.ServiceSpec) bool
	code        diag.Code
	path, fault string
	hint        string
}{
	{func(s *corev1.ServiceSpec) bool {
		return s.ExternalTrafficPolicy != "" && !exposed(s) && (len(s.ExternalIPs) == 0 || s.Type != corev1.ServiceTypeClusterIP)
	}, diag.FieldWord, "spec.externalTrafficPolicy", "must not be set without type NodePort or LoadBalancer", "set spec.type, or remove it"},
	{func(s *corev1.ServiceSpec) bool {
		return s.HealthCheckNodePort != 0 && !(balanced(s) && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal)
	}, diag.PortValue, "spec.healthCheckNodePort", "must not be set without type LoadBalancer and externalTrafficPolicy Local", "remove it"},
	{func(s *corev1.ServiceSpec) bool { return s.LoadBalancerClass != nil && !balanced(s) },
		diag.FieldWord, "spec.loadBalancerClass", withoutBalancer, setBalancer},
	{func(s *corev1.ServiceSpec) bool { return s.AllocateLoadBalancerNodePorts != nil && !balanced(s) },
		diag.FieldWord, "spec.allocateLoadBalancerNodePorts", withoutBalancer, setBalancer},
	{func(s *corev1.ServiceSpec) bool { return len(s.LoadBalancerSourceRanges) > 0 && !balanced(s) },
		diag.CIDRValue, "spec.loadBalancerSourceRanges", withoutBalancer, setBalancer},
	{func(s *corev1.ServiceSpec) bool { return s.ClusterIP == corev1.ClusterIPNone && exposed(s) },
		diag.VIPValue, "spec.clusterIP", "must not be None with type NodePort or LoadBalancer", "set spec.type: ClusterIP, or remove it"},
	{func(s *corev1.ServiceSpec) bool { return s.ClusterIP != "" && s.Type == corev1.ServiceTypeExternalName },
		diag.VIPValue, "spec.clusterIP", "must not be set with type ExternalName", "remove it"},
	{func(s *corev1.ServiceSpec) bool {
		return s.IPFamilyPolicy != nil && s.Type == corev1.ServiceTypeExternalName
	},
		diag.FieldWord, "spec.ipFamilyPolicy", "must not be set with type ExternalName", "remove it"},
	{func(s *corev1.ServiceSpec) bool {
		return len(s.IPFamilies) > 0 && s.Type == corev1.ServiceTypeExternalName
	},
		diag.FieldWord, "spec.ipFamilies", "must not be set with type ExternalName", "remove it"},
}

const (
	withoutBalancer = "must not be set without type LoadBalancer"
	setBalancer     = "set spec.type: LoadBalancer, or remove it"
)

func balanced(s *corev1.ServiceSpec) bool { return s.Type == corev1.ServiceTypeLoadBalancer }

func exposed(s *corev1.ServiceSpec) bool { return balanced(s) || s.Type == corev1.ServiceTypeNodePort }

// checkExclusive finds fields that the API server rejects beside others. No rule depends on it.
func checkExclusive(spec *corev1.ServiceSpec) (out []finding) {
	for i := range exclusive {
		if x := &exclusive[i]; x.wrong(spec) {
			out = append(out, finding{code: x.code, path: x.path, rejected: x.fault, ofType: true, hint: x.hint})
		}
	}
	for i, p := range spec.Ports {
		repeats := func(same func(corev1.ServicePort) bool) bool { return slices.ContainsFunc(spec.Ports[:i], same) }
		if p.Name != "" && repeats(func(o corev1.ServicePort) bool { return p.Name == o.Name }) {
			out = append(out, finding{code: diag.PortDuplicate, path: fmt.Sprintf("spec.ports[%d].name", i), rejected: "must be unique in the Service, got " + diag.Quote(p.Name), hint: "use another name"})
		}
		if repeats(func(o corev1.ServicePort) bool { return p.Port == o.Port && p.Protocol == o.Protocol }) {
			out = append(out, finding{code: diag.PortDuplicate, path: fmt.Sprintf("spec.ports[%d].port", i), rejected: fmt.Sprintf("must be unique in the Service for protocol %s, got %d", p.Protocol, p.Port), hint: "use another port, or remove it"})
		}
		if p.NodePort != 0 && repeats(func(o corev1.ServicePort) bool { return p.NodePort == o.NodePort && p.Protocol == o.Protocol }) {
			out = append(out, finding{code: diag.PortDuplicate, path: fmt.Sprintf("spec.ports[%d].nodePort", i), rejected: fmt.Sprintf("must be unique in the Service, got %d", p.NodePort), hint: "use another port, or remove it"})
		}
	}
	return out
}

// checkUnused reports fields that the API server rejects and that do not affect
// any rule.
func checkUnused(spec *corev1.ServiceSpec) []finding {
	var out []finding
	if spec.Type == corev1.ServiceTypeExternalName && spec.ExternalName == "" {
		out = append(out, rejects(diag.ObjectName, "spec.externalName", "must be set with type ExternalName", "the API server rejects the Service, and no rule is written for it"))
	}
	if a, ok := inet.ParseAddr(spec.ExternalName); ok && a.Is4() && spec.Type == corev1.ServiceTypeExternalName { // the API server rejects an IPv6 address
		out = append(out, finding{severity: diag.Warning, code: diag.ExternalNameIP, path: "spec.externalName", msg: "must be the name of a host, got " + spec.ExternalName + ": DNS has no record for the Service",
			hint: "use a headless Service without selector, and an EndpointSlice with the address"})
	}
	if ips := spec.ClusterIPs; len(ips) > 0 && spec.ClusterIP != ips[0] {
		fault := fmt.Sprintf("must be spec.clusterIPs[0], which is %q, got %s", ips[0], diag.Quote(spec.ClusterIP))
		out = append(out, rejects(diag.VIPValue, "spec.clusterIP", fault, "spec.clusterIPs is used"))
	}
	for i, p := range spec.Ports {
		path := fmt.Sprintf("spec.ports[%d]", i)
		if p.Name == "" && len(spec.Ports) > 1 {
			out = append(out, rejects(diag.ObjectName, path+".name", "must be set if there are several ports", "the API server rejects the Service"))
		}
		if p.NodePort != 0 && spec.Type == corev1.ServiceTypeClusterIP {
			f := rejects(diag.PortValue, path+".nodePort", fmt.Sprintf("must not be set with type ClusterIP, got %d", p.NodePort), "the API server rejects the Service; here the port is served, as in kube-proxy")
			f.ofType, f.hint = true, "set spec.type: NodePort, or remove it"
			out = append(out, f)
		}
		if n := p.TargetPort.IntVal; p.TargetPort.Type == intstr.Int && n != p.Port && !isPort(n) {
			out = append(out, rejects(diag.PortValue, path+".targetPort", fmt.Sprintf("must be 1-65535, got %d", n), "the ports of the EndpointSlices are used"))
		}
	}
	return out
}

// checkServed reports a Service that cannot be served because a field is missing.
func checkServed(spec *corev1.ServiceSpec) []finding {
	switch {
	case spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone:
		return nil
	case len(spec.Ports) == 0:
		return []finding{{severity: diag.Error, code: diag.PortsMissing, path: "spec.ports", msg: "must have a port, unless spec.clusterIP is None"}}
	case spec.ClusterIP == "":
		return []finding{{severity: diag.Warning, code: diag.NoClusterIP, path: "spec.clusterIP", msg: "is not set: the Service has no rules",
			hint: "the API server allocates it: save the Service from there, or set an address"}}
	}
	return nil
}

// checkEnums reports invalid enumeration values. kube-proxy compares them only
// with certain values and treats all others alike.
func checkEnums(s *corev1.Service) []finding {
	var out []finding
	check := func(path, got, effect string, allowed ...string) {
		if got != "" && !slices.Contains(allowed, got) {
			f := rejects(diag.FieldWord, path, fmt.Sprintf("must be %s, got %s", strings.Join(allowed, " or "), diag.Quote(got)), effect)
			f.hint = diag.DidYouMean(got, allowed)
			if strings.HasPrefix(path, "status.") { // kubectl apply ignores it
				f.rejected = ""
			}
			out = append(out, f)
		}
	}
	spec := &s.Spec
	check("spec.type", string(spec.Type), "ClusterIP is used", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
	check("spec.sessionAffinity", string(spec.SessionAffinity), "None is used", "None", "ClientIP")
	check("spec.externalTrafficPolicy", string(spec.ExternalTrafficPolicy), "Cluster is used", "Cluster", "Local")
	if p := spec.InternalTrafficPolicy; p != nil {
		check("spec.internalTrafficPolicy", string(*p), "Cluster is used", "Cluster", "Local")
	}
	if p := spec.IPFamilyPolicy; p != nil {
		check("spec.ipFamilyPolicy", string(*p), "spec.ipFamilies is used", "SingleStack", "PreferDualStack", "RequireDualStack")
	}
	if p := spec.IPFamilyPolicy; p != nil && *p == corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) > 1 {
		f := rejects(diag.FieldWord, "spec.ipFamilyPolicy", "must be PreferDualStack or RequireDualStack with two ipFamilies, got SingleStack", "the API server rejects the Service")
		f.ofType = true
		out = append(out, f)
	}
	if d := spec.TrafficDistribution; d != nil {
		check("spec.trafficDistribution", *d, "the hints of the EndpointSlices are used", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
	}
	for i, f := range spec.IPFamilies {
		check(fmt.Sprintf("spec.ipFamilies[%d]", i), string(f), "its address is ignored", "IPv4", "IPv6")
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IPMode != nil {
			check(fmt.Sprintf("status.loadBalancer.ingress[%d].ipMode", i), string(*in.IPMode), "Proxy is used", "VIP", "Proxy")
		}
	}
	return out
}

func checkSlice(s *discoveryv1.EndpointSlice) []finding {
	out := checkMeta(&s.ObjectMeta)
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	default:
		out = append(out, finding{severity: diag.Error, code: diag.SliceAddressType, path: "addressType", msg: fmt.Sprintf("must be IPv4, IPv6 or FQDN, got %s", diag.Quote(string(s.AddressType)))})
	}
	if s.Labels[discoveryv1.LabelServiceName] == "" {
		out = append(out, finding{severity: diag.Warning, code: diag.SliceNoService, path: "metadata.labels", msg: "label " + discoveryv1.LabelServiceName + " is missing: the slice serves no Service"})
	}
	for i, p := range s.Ports {
		if p.Name != nil {
			out = append(out, checkPortName(fmt.Sprintf("ports[%d].name", i), *p.Name)...)
		}
	}
	for i := range s.Endpoints {
		if all := s.Endpoints[i].Addresses; len(all) > 1 {
			out = append(out, finding{severity: diag.Warning, code: diag.EndpointAddress, path: fmt.Sprintf("endpoints[%d].addresses[1]", i),
				msg: "is ignored: rules use only the first address of an endpoint", hint: "write an endpoint for " + diag.Quote(all[1])})
		}
	}
	return out
}

func checkEndpoints(e *corev1.Endpoints) []finding {
	out := checkMeta(&e.ObjectMeta)
	for i, s := range e.Subsets {
		for j, p := range s.Ports {
			out = append(out, checkPortName(fmt.Sprintf("subsets[%d].ports[%d].name", i, j), p.Name)...)
		}
	}
	return out
}

func checkNode(n *corev1.Node) []finding {
	out := append(checkMeta(&n.ObjectMeta), checkCIDRs("spec.podCIDRs", n.Spec.PodCIDRs)...)
	known := []string{"InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"}
	for i, a := range n.Status.Addresses {
		if !inet.IsAddr(a.Address) && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			out = append(out, finding{severity: diag.Warning, code: diag.NodeAddress, path: fmt.Sprintf("status.addresses[%d].address", i),
				msg: fmt.Sprintf("must be an IP address, got %s: it is not used", diag.Quote(a.Address))})
		}
		if !slices.Contains(known, string(a.Type)) {
			out = append(out, finding{severity: diag.Warning, code: diag.FieldWord, path: fmt.Sprintf("status.addresses[%d].type", i),
				msg:  fmt.Sprintf("must be %s, got %s: the address is not used", strings.Join(known, " or "), diag.Quote(string(a.Type))),
				hint: diag.DidYouMean(string(a.Type), known)})
		}
	}
	return out
}

func checkServiceCIDR(c *networkingv1.ServiceCIDR) []finding {
	return append(checkMeta(&c.ObjectMeta), checkCIDRs("spec.cidrs", c.Spec.CIDRs)...)
}

func checkCIDRs(path string, texts []string) []finding {
	var out []finding
	for i, text := range texts {
		if !inet.IsPrefix(text) {
			out = append(out, finding{severity: diag.Error, code: diag.CIDRValue, path: fmt.Sprintf("%s[%d]", path, i), msg: fmt.Sprintf("must be a CIDR such as 10.0.0.0/24, got %s", diag.Quote(text))})
		}
	}
	return out
}

// checkMeta checks names by the rules of the API. Names are used in chain names
// and comments, where a quote or a line break could inject a rule.
func checkMeta(m *metav1.ObjectMeta) []finding {
	var out []finding
	switch {
	case m.Name == "":
		out = append(out, finding{severity: diag.Error, code: diag.ObjectName, path: "metadata.name", msg: "must be set"})
	case len(validation.IsDNS1123Subdomain(m.Name)) > 0:
		out = append(out, finding{severity: diag.Error, code: diag.ObjectName, path: "metadata.name", msg: fmt.Sprintf("must be lower-case letters, digits, - and ., at most 253, got %s", diag.Quote(m.Name))})
	}
	if m.Namespace != "" && len(validation.IsDNS1123Label(m.Namespace)) > 0 {
		out = append(out, finding{severity: diag.Error, code: diag.ObjectName, path: "metadata.namespace", msg: fmt.Sprintf("must be lower-case letters, digits and -, at most 63, got %s", diag.Quote(m.Namespace))})
	}
	return append(out, checkAnnotations(m.Annotations)...)
}

// annotationPrefix is the prefix of all annotations of proxyc.
const annotationPrefix = "proxyc.dev/"

// checkAnnotations reports unknown annotations with proxyc's prefix. The API
// accepts any key, and no other program uses these.
func checkAnnotations(all map[string]string) []finding {
	var out []finding
	known := []string{snapshot.AnnotationBalance, snapshot.AnnotationIgnore}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		n := min(len(key), len(annotationPrefix))
		if path := "metadata.annotations." + key; strings.EqualFold(key[:n], annotationPrefix) && key != snapshot.AnnotationOnlyNode && !slices.Contains(known, key) {
			out = append(out, finding{severity: diag.Warning, code: diag.AnnotationKey, path: path, msg: "must be " + strings.Join(known, " or ") + ": this one has no effect", hint: nearestAnnotation(key[n:], known)})
		} else if key == snapshot.AnnotationBalance && all[key] == "" {
			out = append(out, finding{severity: diag.Warning, code: diag.BalanceNoEffect, path: path, msg: "has no effect: it is empty"})
		}
	}
	return out
}

// nearestAnnotation returns a hint with the known annotation that is nearest to
// name. Both are compared without the prefix.
func nearestAnnotation(name string, known []string) string {
	names := make([]string, len(known))
	for i, key := range known {
		names[i] = strings.TrimPrefix(key, annotationPrefix)
	}
	if near := diag.Nearest(name, names); near != "" {
		return "did you mean " + annotationPrefix + near + "?"
	}
	return ""
}

func checkPortName(path, name string) []finding {
	if name == "" || len(validation.IsDNS1123Label(name)) == 0 {
		return nil
	}
	return []finding{{severity: diag.Error, code: diag.ObjectName, path: path, msg: fmt.Sprintf("must be lower-case letters, digits and -, at most 63, got %s", diag.Quote(name))}}
}
