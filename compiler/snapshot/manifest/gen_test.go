package manifest

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cluster returns the objects of a cluster as printed by `kubectl get -A`.
func cluster(services, endpoints, nodes int) []any {
	var out []any
	for i := range nodes {
		out = append(out, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i+1), Labels: map[string]string{corev1.LabelTopologyZone: zone(i)}},
			Spec:       corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 64+i/256, i%256)},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nth("192.0.2.11", i)}}},
		})
	}
	for i := range services {
		out = append(out, service(i), endpointSlice(i, endpoints, nodes))
	}
	return out
}

func service(i int) *corev1.Service {
	ip, internal := nth("10.96.0.10", i), corev1.ServiceInternalTrafficPolicyCluster
	name := fmt.Sprintf("svc-%05d", i)
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: fmt.Sprintf("ns-%02d", i%50)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{
				{Name: "p0", Protocol: corev1.ProtocolTCP, Port: 80},
				{Name: "p1", Protocol: corev1.ProtocolTCP, Port: 443},
			},
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: &internal, Selector: map[string]string{"app": name},
		},
	}
}

func endpointSlice(i, endpoints, nodes int) *discoveryv1.EndpointSlice {
	name, ns := fmt.Sprintf("svc-%05d", i), fmt.Sprintf("ns-%02d", i%50)
	yes, no := true, false
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: name + "-abcde", Namespace: ns, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for p, port := range []int32{8080, 8443} {
		portName, tcp := fmt.Sprintf("p%d", p), corev1.ProtocolTCP
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &portName, Protocol: &tcp, Port: &port})
	}
	for e := range endpoints {
		pod := i*endpoints + e
		node, z := fmt.Sprintf("node%d", pod%nodes+1), zone(pod%nodes)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{nth("10.128.0.1", pod)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &z,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("%s-%d", name, e), Namespace: ns},
		})
	}
	return slice
}

func zone(node int) string { return fmt.Sprintf("z%d", node%3) }

// nth returns the address i after base.
func nth(base string, i int) string {
	b := netip.MustParseAddr(base).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrFrom4(b).String()
}
