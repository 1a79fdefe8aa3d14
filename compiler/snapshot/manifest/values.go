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

// require adds a finding about a value that is not ok.
func (v *values) require(ok bool, code diag.Code, path, want string, got any) {
	if ok {
		return
	}
	if text, is := got.(string); is {
		got = diag.Quote(text)
	}
	*v = append(*v, finding{code: code, path: path, rejected: fmt.Sprintf("must be %s, got %v", want, got)})
}

// port requires the number of a port, or 0 if it may be missing.
func (v *values) port(path string, n int32, optional bool) {
	v.require(optional && n == 0 || len(validation.IsValidPortNum(int(n))) == 0, diag.PortValue, path, "1-65535", n)
}

// labels requires valid keys and values.
func (v *values) labels(path string, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		v.require(len(validation.IsQualifiedName(key)) == 0, diag.ObjectName, path, "keys of letters, digits, -, _ and ., at most 63, with or without a domain and /", key)
		v.require(len(validation.IsValidLabelValue(all[key])) == 0, diag.ObjectName, path+"."+key, "letters, digits, -, _ and ., at most 63", all[key])
	}
}

const portName = "lower-case letters, digits and -, at most 15, with a letter"

// checkValues finds the values of a Service that the API server rejects, whether rules depend on them
// or not.
func checkValues(s *corev1.Service) []finding {
	var v values
	spec := &s.Spec
	v.require(len(validation.IsDNS1123Label(s.Name)) == 0, diag.ObjectName, "metadata.name", "lower-case letters, digits and -, at most 63", s.Name)
	v.labels("metadata.labels", s.Labels)
	v.labels("spec.selector", spec.Selector)
	for i, p := range spec.Ports {
		path := fmt.Sprintf("spec.ports[%d].", i)
		v.port(path+"port", p.Port, false)
		v.port(path+"nodePort", p.NodePort, true)
		v.require(p.Protocol == corev1.ProtocolTCP || p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolSCTP, diag.PortValue, path+"protocol", "TCP, UDP or SCTP", string(p.Protocol))
		if name := p.TargetPort.StrVal; p.TargetPort.Type == intstr.String {
			n := len(v)
			v.require(len(validation.IsValidPortName(name)) == 0, diag.PortValue, path+"targetPort", portName, name)
			if len(v) > n && numeric(name) != 0 {
				v[n].hint = "write " + name + " without quotes: text is the name of a port"
			}
		}
		if name := ptr.Deref(p.AppProtocol, ""); name != "" {
			v.require(len(validation.IsQualifiedName(name)) == 0, diag.FieldWord, path+"appProtocol", "letters, digits, -, _ and ., with or without a domain and /", name)
		}
	}
	for i, text := range spec.ClusterIPs {
		_, ok := inet.ParseAddr(text)
		v.require(ok || i == 0 && text == corev1.ClusterIPNone, diag.VIPValue, fmt.Sprintf("spec.clusterIPs[%d]", i), "an IP address", text)
	}
	for i, text := range spec.ExternalIPs {
		a, ok := inet.ParseAddr(text)
		path := fmt.Sprintf("spec.externalIPs[%d]", i)
		v.require(ok, diag.VIPValue, path, "an IP address", text)
		v.require(!ok || !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast(), diag.VIPValue, path, "an address that a Service can have", text)
	}
	for i, text := range spec.LoadBalancerSourceRanges {
		_, ok := inet.ParsePrefix(strings.TrimSpace(text))
		v.require(ok, diag.RangeValue, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "a CIDR", text)
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		n := *c.ClientIP.TimeoutSeconds
		v.require(1 <= n && n <= 24*60*60, diag.AffinityTimeout, "spec.sessionAffinityConfig.clientIP.timeoutSeconds", "1-86400 seconds", n)
	}
	v.port("spec.healthCheckNodePort", spec.HealthCheckNodePort, true)
	if class := ptr.Deref(spec.LoadBalancerClass, ""); class != "" {
		v.require(len(validation.IsQualifiedName(class)) == 0, diag.FieldWord, "spec.loadBalancerClass", "letters, digits, -, _ and ., with or without a domain and /", class)
	}
	if name := strings.TrimSuffix(spec.ExternalName, "."); name != "" && spec.Type == corev1.ServiceTypeExternalName {
		v.require(len(validation.IsDNS1123Subdomain(name)) == 0, diag.ObjectName, "spec.externalName", "a DNS name in lower case", spec.ExternalName)
	}
	return v
}
