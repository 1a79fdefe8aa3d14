package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
)

// values collects the values of an object that the API server rejects.
type values []finding

// wrong adds a finding about a value if is holds. path is formatted with at.
func (v *values) wrong(is bool, code diag.Code, want string, got any, path string, at ...any) {
	if !is {
		return
	}
	if text, quoted := got.(string); quoted {
		got = diag.Quote(text)
	}
	*v = append(*v, finding{code: code, path: fmt.Sprintf(path, at...), rejected: fmt.Sprintf("must be %s, got %v", want, got)})
}

// isPort reports whether a number is that of a port.
func isPort(n int32) bool { return 1 <= n && n <= 65535 }

// labels adds findings about keys and values of labels.
func (v *values) labels(path string, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		v.wrong(len(validation.IsQualifiedName(key)) > 0, diag.ObjectName, "keys of letters, digits, -, _ and ., at most 63, with or without a domain and /", key, "%s", path)
		v.wrong(len(validation.IsValidLabelValue(all[key])) > 0, diag.ObjectName, "letters, digits, -, _ and ., at most 63", all[key], "%s.%s", path, key)
	}
}

const (
	portName  = "lower-case letters, digits and -, at most 15, with a letter"
	qualified = "letters, digits, -, _ and ., with or without a domain and /"
)

// checkValues finds the values of a Service that the API server rejects, whether rules depend on them
// or not.
func checkValues(s *corev1.Service) []finding {
	var v values
	spec := &s.Spec
	v.wrong(len(validation.IsDNS1123Label(s.Name)) > 0, diag.ObjectName, "lower-case letters, digits and -, at most 63", s.Name, "metadata.name")
	v.labels("metadata.labels", s.Labels)
	v.labels("spec.selector", spec.Selector)
	for i := range spec.Ports {
		v.port(i, &spec.Ports[i])
	}
	v.addrs(spec)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		n := *c.ClientIP.TimeoutSeconds
		v.wrong(n < 1 || n > 24*60*60, diag.AffinityTimeout, "1-86400 seconds", n, "spec.sessionAffinityConfig.clientIP.timeoutSeconds")
	}
	n := spec.HealthCheckNodePort
	v.wrong(n != 0 && !isPort(n), diag.PortValue, "1-65535", n, "spec.healthCheckNodePort")
	class := ptr.Deref(spec.LoadBalancerClass, "")
	v.wrong(class != "" && len(validation.IsQualifiedName(class)) > 0, diag.FieldWord, qualified, class, "spec.loadBalancerClass")
	name := strings.TrimSuffix(spec.ExternalName, ".")
	v.wrong(name != "" && spec.Type == corev1.ServiceTypeExternalName && len(validation.IsDNS1123Subdomain(name)) > 0,
		diag.ObjectName, "a DNS name in lower case", spec.ExternalName, "spec.externalName")
	return v
}

// port adds findings about port i of a Service.
func (v *values) port(i int, p *corev1.ServicePort) {
	v.wrong(!isPort(p.Port), diag.PortValue, "1-65535", p.Port, "spec.ports[%d].port", i)
	v.wrong(p.NodePort != 0 && !isPort(p.NodePort), diag.PortValue, "1-65535", p.NodePort, "spec.ports[%d].nodePort", i)
	v.wrong(p.Protocol != corev1.ProtocolTCP && p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP,
		diag.PortValue, "TCP, UDP or SCTP", string(p.Protocol), "spec.ports[%d].protocol", i)
	if name := p.TargetPort.StrVal; p.TargetPort.Type == intstr.String && len(validation.IsValidPortName(name)) > 0 {
		if v.wrong(true, diag.PortValue, portName, name, "spec.ports[%d].targetPort", i); numeric(name) != 0 {
			(*v)[len(*v)-1].hint = "write " + name + " without quotes: text is the name of a port"
		}
	}
	app := ptr.Deref(p.AppProtocol, "")
	v.wrong(app != "" && len(validation.IsQualifiedName(app)) > 0, diag.FieldWord, qualified, app, "spec.ports[%d].appProtocol", i)
}

// addrs adds findings about the addresses and ranges of a Service.
func (v *values) addrs(spec *corev1.ServiceSpec) {
	for i, text := range spec.ClusterIPs {
		v.wrong(!inet.IsAddr(text) && (i > 0 || text != corev1.ClusterIPNone), diag.VIPValue, "an IP address", text, "spec.clusterIPs[%d]", i)
	}
	for i, text := range spec.ExternalIPs {
		a, ok := inet.ParseAddr(text)
		v.wrong(!ok, diag.VIPValue, "an IP address", text, "spec.externalIPs[%d]", i)
		v.wrong(ok && inet.Unusable(a) != "", diag.VIPValue, "an address that a Service can have", text, "spec.externalIPs[%d]", i)
	}
	for i, text := range spec.LoadBalancerSourceRanges {
		v.wrong(!inet.IsPrefix(strings.TrimSpace(text)), diag.RangeValue, "a CIDR", text, "spec.loadBalancerSourceRanges[%d]", i)
	}
}
