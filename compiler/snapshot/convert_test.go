package snapshot

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/ir"
)

var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func TestFromService(t *testing.T) {
	created := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	in := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "shop", CreationTimestamp: metav1.NewTime(created),
			Labels:      map[string]string{"service.kubernetes.io/service-proxy-name": ""},
			Annotations: map[string]string{"preserve-destination": "true", "winProxyOptimization": "disabled"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
			IPFamilies:  []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ExternalIPs: []string{"192.0.2.1"}, LoadBalancerSourceRanges: []string{" 10.0.0.0/8"},
			SessionAffinity:       corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}},
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort:   31000,
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080, TargetPort: intstr.FromInt32(8080)},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromString("dns")},
			},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "203.0.113.1", IPMode: new(corev1.LoadBalancerIPModeProxy)}, {IP: "203.0.113.2"}, {Hostname: "lb.example"},
		}}},
	}
	want := &Service{
		Name: ir.Name{Namespace: "shop", Name: "web"}, Object: "Service shop/web", Created: created, ProxyName: true,
		Type: "LoadBalancer", ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"}, IPFamilies: []string{"IPv4", "IPv6"},
		ExternalIPs: []string{"192.0.2.1"}, SourceRanges: []string{" 10.0.0.0/8"}, AffinityIP: true, AffinitySecs: 60,
		InternalLocal: true, ExternalLocal: true, HealthPort: 31000, PreserveDIP: true, NoOptimize: true,
		Ports: []ServicePort{
			{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080},
			{Name: "dns", Protocol: "UDP", Port: 53},
		},
		LoadBalancer: []Ingress{{IP: "203.0.113.1", IPMode: "Proxy"}, {IP: "203.0.113.2"}, {}},
	}
	if diff := cmp.Diff(want, FromService(in), compare); diff != "" {
		t.Errorf("full Service (-want +got)\n%s", diff)
	}
	bare := &Service{Name: ir.Name{Name: "a"}, Object: "Service a"}
	if diff := cmp.Diff(bare, FromService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"}}), compare); diff != "" {
		t.Errorf("bare Service (-want +got)\n%s", diff)
	}
}

func TestFromEndpointSlice(t *testing.T) {
	trigger := time.Date(2024, 5, 6, 7, 8, 9, 123, time.UTC)
	meta := metav1.ObjectMeta{Name: "web-1", Namespace: "shop",
		Labels:      map[string]string{"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""},
		Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": trigger.Format(time.RFC3339Nano)}}
	in := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(80))}, {Name: new(""), Port: new(int32(0))}, {}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1", "10.0.0.2"}, NodeName: new("a"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z1"}, {Name: "z2"}}, ForNodes: []discoveryv1.ForNode{{Name: "a"}}}},
			{Addresses: []string{"x"}, TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "p"}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z1"}}}},
			{Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}},
			{Addresses: []string{"fe80::1%eth0"}, Hints: &discoveryv1.EndpointHints{}},
		},
	}
	want := &EndpointSlice{
		Name: ir.Name{Namespace: "shop", Name: "web-1"}, Object: "EndpointSlice shop/web-1", Service: ir.Name{Namespace: "shop", Name: "web"},
		Headless: true, AddressType: "IPv4", Triggered: trigger,
		Ports: []EndpointPort{
			{Name: "http", Protocol: "TCP", Port: 80, HasName: true, HasPort: true},
			{HasName: true, HasPort: true},
			{}, // null is not zero (SNAP-41)
		},
		Endpoints: []Endpoint{
			{Address: "10.0.0.1", Addr: netip.MustParseAddr("10.0.0.1"), NodeName: "a", Pod: "p", Hints: &Hints{Zones: []string{"z1", "z2"}, Nodes: []string{"a"}}, Ready: true, Serving: true},
			{Address: "x", Hints: &Hints{Zones: []string{"z1"}}, Ready: true, Serving: true},
			{Terminating: true},
			{Address: "fe80::1%eth0", Ready: true, Serving: true},
		},
	}
	if diff := cmp.Diff(want, FromEndpointSlice(in), compare); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestHintsAreShared(t *testing.T) {
	zone := func(name string) *discoveryv1.EndpointHints {
		return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
	}
	got := FromEndpointSlice(&discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Hints: zone("a")}, {Hints: zone("a")}, {Hints: zone("b")}}})
	a, b, c := got.Endpoints[0].ZoneHints(), got.Endpoints[1].ZoneHints(), got.Endpoints[2].ZoneHints()
	if &a[0] != &b[0] {
		t.Error("equal hints of neighbours do not share memory")
	}
	if a[0] != "a" || c[0] != "b" {
		t.Errorf("got hints %v and %v, want a and b", a, c)
	}
}

func TestFromEndpoints(t *testing.T) {
	in := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Labels: map[string]string{"service.kubernetes.io/headless": ""}},
		Subsets: []corev1.EndpointSubset{
			{
				Addresses:         []corev1.EndpointAddress{{IP: "10.0.0.1", NodeName: new("a"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"}}, {IP: "fd00::1"}, {IP: "10.0.0.2"}, {IP: "ten"}},
				NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.3"}},
				Ports:             []corev1.EndpointPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}, {Port: 81}},
			},
			{NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.4"}}, Ports: []corev1.EndpointPort{{Port: 1}}},
		},
	}
	slice := func(family string, addresses []int, endpoints ...Endpoint) *EndpointSlice {
		return &EndpointSlice{
			Addresses: addresses,
			Name:      ir.Name{Namespace: "shop", Name: "web"}, Object: "Endpoints shop/web", Service: ir.Name{Namespace: "shop", Name: "web"},
			Headless: true, AddressType: family, FromEndpoints: true, Endpoints: endpoints,
			Ports: []EndpointPort{{Name: "http", Protocol: "TCP", Port: 80, HasName: true, HasPort: true}, {Port: 81, HasName: true, HasPort: true}},
		}
	}
	want := []*EndpointSlice{
		slice("IPv4", []int{0, 2, 3},
			Endpoint{Address: "10.0.0.1", Addr: netip.MustParseAddr("10.0.0.1"), NodeName: "a", Pod: "p", Ready: true, Serving: true},
			Endpoint{Address: "10.0.0.2", Addr: netip.MustParseAddr("10.0.0.2"), Ready: true, Serving: true},
			Endpoint{Address: "ten", Ready: true, Serving: true}),
		slice("IPv6", []int{1}, Endpoint{Address: "fd00::1", Addr: netip.MustParseAddr("fd00::1"), Ready: true, Serving: true}),
	}
	if diff := cmp.Diff(want, FromEndpoints(in), compare); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFromNode(t *testing.T) {
	in := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"topology.kubernetes.io/zone": "z"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.7/24", "bad", "fd00::/64"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "a"}}},
	}
	want := &Node{
		Name: "a", Zone: "z", Addresses: []NodeAddress{{"InternalIP", "192.0.2.1"}, {"Hostname", "a"}},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")},
	}
	if diff := cmp.Diff(want, FromNode(in), compare); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFromServiceCIDR(t *testing.T) {
	in := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00::/112"}}}
	want := &ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")}}
	if diff := cmp.Diff(want, FromServiceCIDR(in), compare); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
