// Package cluster generates clusters for benchmarks. Equal arguments give equal objects on every
// machine.
package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math/big"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Cluster is a generated cluster. Service i and its endpoints do not depend on the number of
// others.
type Cluster struct {
	Services  int
	Endpoints int // of each Service, in each family
	// Mixed gives Service i only the first 1 + i modulo Endpoints of its endpoints.
	Mixed bool
	// Plain makes each Service a ClusterIP with one TCP port. Otherwise, of each 20 Services, 14 are
	// such, 2 are NodePorts, 1 is a LoadBalancer, 1 is a LoadBalancer with externalTrafficPolicy Local
	// and source ranges, 1 has session affinity, and 1 is headless. Every fifth has two ports, and
	// every tenth UDP as well.
	Plain bool
	// DualStack adds IPv6 to all Services.
	DualStack bool
	// SameEndpoints gives all Services the endpoints of the first.
	SameEndpoints bool
	// Each, if set, modifies Service i.
	Each func(s *corev1.Service, i int)
}

// Kinds of Services by their number modulo period.
const (
	period           = 20
	nodePort         = 14
	nodePort2        = 15 // with two ports
	loadBalancer     = 16
	loadBalancerNear = 17 // externalTrafficPolicy: Local
	sticky           = 18
	headless         = 19
)

const (
	nodes          = 100
	inSlice        = 100 // maximum endpoints
	firstNodePort  = 30000
	lastNodePort   = 32767
	nodePortsOfAll = 6 // per period
)

// nodePortOffset is the offset of a Service's node ports within those of its period.
var nodePortOffset = map[int]int{nodePort: 0, nodePort2: 1, loadBalancer: 3, loadBalancerNear: 4}

// Nodes returns the nodes of the endpoints; the first is node1.
func (c Cluster) Nodes() []*corev1.Node {
	all := make([]*corev1.Node, nodes)
	for i := range all {
		n := &corev1.Node{TypeMeta: typeMeta("v1", "Node")}
		n.Name = nodeName(i)
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone(i)}
		for _, base := range c.bases("192.0.2.11", "2001:db8::11") {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: nth(base, i)})
		}
		all[i] = n
	}
	return all
}

// Service returns Service i, which may be one more than the cluster has.
func (c Cluster) Service(i int) *corev1.Service {
	s := &corev1.Service{TypeMeta: typeMeta("v1", "Service"), ObjectMeta: meta(i)}
	single := corev1.IPFamilyPolicySingleStack
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		IPFamilyPolicy: &single, Selector: map[string]string{"app": s.Name}, Ports: c.ports(i)}
	if c.DualStack {
		dual := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = append(s.Spec.IPFamilies, corev1.IPv6Protocol), &dual
	}
	for _, base := range c.bases("10.96.0.10", "fd00:10:96::10") {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, nth(base, i))
	}
	if !c.Plain {
		c.vary(s, i)
	}
	if c.Each != nil {
		c.Each(s, i)
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	return s
}

func (c Cluster) ports(i int) []corev1.ServicePort {
	ports := []corev1.ServicePort{{Name: "p0", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}}
	if !c.Plain && i%5 == 0 {
		ports = append(ports, corev1.ServicePort{Name: "p1", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(8443)})
	}
	if !c.Plain && i%10 == 0 {
		ports = append(ports, corev1.ServicePort{Name: "p2", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(5353)})
	}
	return ports
}

// vary makes a Service one of its kind. When the node ports are used up, Services with node ports
// are plain instead.
func (c Cluster) vary(s *corev1.Service, i int) {
	switch kind := i % period; kind {
	case nodePort, nodePort2, loadBalancer, loadBalancerNear:
		first := firstNodePort + i/period*nodePortsOfAll + nodePortOffset[kind]
		if first+len(s.Spec.Ports) > lastNodePort {
			return
		}
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyCluster
		for j := range s.Spec.Ports {
			s.Spec.Ports[j].NodePort = int32(first + j)
		}
		if kind == nodePort || kind == nodePort2 {
			return
		}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, base := range c.bases("203.0.112.1", "2001:db8:203::1") {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: nth(base, i)})
		}
		if kind == loadBalancerNear {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = int32(first + len(s.Spec.Ports))
			s.Spec.LoadBalancerSourceRanges = c.bases("192.0.2.0/24", "2001:db8::/64")
		}
	case sticky:
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		seconds := corev1.DefaultClientIPServiceAffinitySeconds
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	case headless:
		s.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	}
}

// Slices returns the EndpointSlices of Service i. Endpoint j is on node (i*Endpoints+j) modulo
// their number.
func (c Cluster) Slices(i int) (all []*discoveryv1.EndpointSlice) {
	types := []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	service, number := c.Service(i), c.Endpoints
	if c.Mixed {
		number = 1 + i%c.Endpoints
	}
	for f, base := range c.bases("10.128.0.1", "fd00:10:128::1") {
		for low := 0; low < number; low += inSlice {
			s := &discoveryv1.EndpointSlice{TypeMeta: typeMeta("discovery.k8s.io/v1", "EndpointSlice"),
				ObjectMeta: meta(i), AddressType: types[f]}
			s.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name,
				discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
			if service.Spec.ClusterIPs[0] == corev1.ClusterIPNone {
				s.Labels[corev1.IsHeadlessService] = ""
			}
			s.Name = fmt.Sprintf("%s-%s-%03d", s.Name, strings.ToLower(string(types[f])), low/inSlice)
			for _, p := range service.Spec.Ports {
				port := p.TargetPort.IntVal
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
			}
			for j := low; j < min(low+inSlice, number); j++ {
				s.Endpoints = append(s.Endpoints, c.endpoint(base, i, j))
			}
			all = append(all, s)
		}
	}
	return all
}

func (c Cluster) endpoint(base string, i, j int) discoveryv1.Endpoint {
	pod := j
	if !c.SameEndpoints {
		pod += i * c.Endpoints
	}
	yes, no := true, false
	onNode, inZone, service := nodeName(pod%nodes), zone(pod%nodes), meta(i)
	return discoveryv1.Endpoint{
		Addresses:  []string{nth(base, pod)},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		NodeName:   &onNode, Zone: &inZone,
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: service.Namespace, Name: fmt.Sprintf("%s-%d", service.Name, j)},
	}
}

// Objects returns all objects: Nodes, and then each Service before its slices.
func (c Cluster) Objects() iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, n := range c.Nodes() {
			if !yield(n) {
				return
			}
		}
		for i := range c.Services {
			if !yield(c.Service(i)) {
				return
			}
			for _, s := range c.Slices(i) {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// WriteList writes objects as one v1 List, each on its own line.
func WriteList(w io.Writer, objects iter.Seq[any]) error {
	before := `{"apiVersion":"v1","kind":"List","items":[` + "\n"
	for o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s%s", before, data); err != nil {
			return err
		}
		before = ",\n"
	}
	_, err := io.WriteString(w, "]}\n")
	return err
}

// bases returns the base addresses of the families that the cluster has.
func (c Cluster) bases(v4, v6 string) []string {
	if c.DualStack {
		return []string{v4, v6}
	}
	return []string{v4}
}

// nth returns the n-th address after base.
func nth(base string, n int) string {
	b := netip.MustParseAddr(base).AsSlice()
	sum := new(big.Int).Add(new(big.Int).SetBytes(b), big.NewInt(int64(n)))
	a, _ := netip.AddrFromSlice(sum.FillBytes(b))
	return a.String()
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func meta(i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%02d", i%50), Name: fmt.Sprintf("svc-%05d", i)}
}

func nodeName(i int) string { return fmt.Sprintf("node%d", i+1) }

func zone(i int) string { return fmt.Sprintf("zone%d", i%3) }
