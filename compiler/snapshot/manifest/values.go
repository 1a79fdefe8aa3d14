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

// add adds a finding about a value.
func (v *values) add(code diag.Code, path, want string, got any) {
	if text, is := got.(string); is {
		got = diag.Quote(text)
	}
	*v = append(*v, finding{code: code, path: path, rejected: fmt.Sprintf("must be %s, got %v", want, got)})
}

// isPort reports whether a number is that of a port.
func isPort(n int32) bool { return 1 <= n && n <= 65535 }

// labels adds findings about keys and values of labels.
func (v *values) labels(path string, all map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if len(validation.IsQualifiedName(key)) > 0 {
			v.add(diag.ObjectName, path, "keys of letters, digits, -, _ and ., at most 63, with or without a domain and /", key)
		}
		if len(validation.IsValidLabelValue(all[key])) > 0 {
			v.add(diag.ObjectName, path+"."+key, "letters, digits, -, _ and ., at most 63", all[key])
		}
	}
}

const portName = "lower-case letters, digits and -, at most 15, with a letter"

// checkValues finds the values of a Service that the API server rejects, whether rules depend on them
// or not.
func checkValues(s *corev1.Service) []finding {
	var v values
	spec := &s.Spec
	if len(validation.IsDNS1123Label(s.Name)) > 0 {
		v.add(diag.ObjectName, "metadata.name", "lower-case letters, digits and -, at most 63", s.Name)
	}
	v.labels("metadata.labels", s.Labels)
	v.labels("spec.selector", spec.Selector)
	for i, p := range spec.Ports {
		path := func(field string) string { return fmt.Sprintf("spec.ports[%d].%s", i, field) }
		if !isPort(p.Port) {
			v.add(diag.PortValue, path("port"), "1-65535", p.Port)
		}
		if p.NodePort != 0 && !isPort(p.NodePort) {
			v.add(diag.PortValue, path("nodePort"), "1-65535", p.NodePort)
		}
		if p.Protocol != corev1.ProtocolTCP && p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP {
			v.add(diag.PortValue, path("protocol"), "TCP, UDP or SCTP", string(p.Protocol))
		}
		if name := p.TargetPort.StrVal; p.TargetPort.Type == intstr.String && len(validation.IsValidPortName(name)) > 0 {
			if v.add(diag.PortValue, path("targetPort"), portName, name); numeric(name) != 0 {
				v[len(v)-1].hint = "write " + name + " without quotes: text is the name of a port"
			}
		}
		if name := ptr.Deref(p.AppProtocol, ""); name != "" && len(validation.IsQualifiedName(name)) > 0 {
			v.add(diag.FieldWord, path("appProtocol"), "letters, digits, -, _ and ., with or without a domain and /", name)
		}
	}
	for i, text := range spec.ClusterIPs {
		if _, ok := inet.ParseAddr(text); !ok && (i > 0 || text != corev1.ClusterIPNone) {
			v.add(diag.VIPValue, fmt.Sprintf("spec.clusterIPs[%d]", i), "an IP address", text)
		}
	}
	for i, text := range spec.ExternalIPs {
		want := ""
		if a, ok := inet.ParseAddr(text); !ok {
			want = "an IP address"
		} else if a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() {
			want = "an address that a Service can have"
		}
		if want != "" {
			v.add(diag.VIPValue, fmt.Sprintf("spec.externalIPs[%d]", i), want, text)
		}
	}
	for i, text := range spec.LoadBalancerSourceRanges {
		if _, ok := inet.ParsePrefix(strings.TrimSpace(text)); !ok {
			v.add(diag.RangeValue, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "a CIDR", text)
		}
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		n := *c.ClientIP.TimeoutSeconds
		if n < 1 || n > 24*60*60 {
			v.add(diag.AffinityTimeout, "spec.sessionAffinityConfig.clientIP.timeoutSeconds", "1-86400 seconds", n)
		}
	}
	if n := spec.HealthCheckNodePort; n != 0 && !isPort(n) {
		v.add(diag.PortValue, "spec.healthCheckNodePort", "1-65535", n)
	}
	if class := ptr.Deref(spec.LoadBalancerClass, ""); class != "" && len(validation.IsQualifiedName(class)) > 0 {
		v.add(diag.FieldWord, "spec.loadBalancerClass", "letters, digits, -, _ and ., with or without a domain and /", class)
	}
	if name := strings.TrimSuffix(spec.ExternalName, "."); name != "" && spec.Type == corev1.ServiceTypeExternalName && len(validation.IsDNS1123Subdomain(name)) > 0 {
		v.add(diag.ObjectName, "spec.externalName", "a DNS name in lower case", spec.ExternalName)
	}
	return v
}
