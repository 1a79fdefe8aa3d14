package snapshot

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// fullService and fullSlice have a value in every field that an API server
// returns.
func fullService() *corev1.Service {
	s := &corev1.Service{ObjectMeta: fullMeta("web")}
	s.Spec = corev1.ServiceSpec{
		Ports: []corev1.ServicePort{
			{Name: "http", Protocol: corev1.ProtocolTCP, AppProtocol: new("h2c"), Port: 80, TargetPort: intstr.FromString("web"), NodePort: 30080},
			{Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(5353)}, {},
		},
		Selector: map[string]string{"app": "web"}, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
		Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"192.0.2.1", ""}, SessionAffinity: corev1.ServiceAffinityClientIP,
		LoadBalancerIP: "192.0.2.7", LoadBalancerSourceRanges: []string{"192.0.2.0/24"}, ExternalName: "x",
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30999, PublishNotReadyAddresses: true,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(7))}},
		IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		AllocateLoadBalancerNodePorts: new(true), LoadBalancerClass: new("c"), InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal),
		TrafficDistribution: new("PreferSameZone"),
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "192.0.2.8", IPMode: new(corev1.LoadBalancerIPModeProxy), Ports: []corev1.PortStatus{{Port: 1, Protocol: "TCP", Error: new("e")}}}, {Hostname: "h"}}
	s.Status.Conditions = []metav1.Condition{{Type: "T", Status: "True"}}
	return s
}

func fullMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, GenerateName: "g", Namespace: "ns", UID: "u", ResourceVersion: "4711", Generation: 3,
		CreationTimestamp: metav1.Unix(1_700_000_000, 0), DeletionTimestamp: new(metav1.Unix(1_700_000_001, 0)),
		Labels: map[string]string{"a": "b", discoveryv1.LabelServiceName: "web", LabelProxyName: "", corev1.IsHeadlessService: ""},
		Annotations: map[string]string{"c": "d", corev1.EndpointsLastChangeTriggerTime: "2024-01-02T03:04:05.6Z",
			annotationPreserveDIP: "true", annotationNoOptimize: "disabled"},
		OwnerReferences: []metav1.OwnerReference{{Name: "o", Controller: new(true)}}, Finalizers: []string{"f"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}}}
}

func fullSlice() *discoveryv1.EndpointSlice {
	hints := func(zones, nodes []string) *discoveryv1.EndpointHints {
		out := &discoveryv1.EndpointHints{}
		for _, z := range zones {
			out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: z})
		}
		for _, n := range nodes {
			out.ForNodes = append(out.ForNodes, discoveryv1.ForNode{Name: n})
		}
		return out
	}
	return &discoveryv1.EndpointSlice{ObjectMeta: fullMeta("web-1"), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080)), AppProtocol: new("h2c")}, {}, {Name: new(""), Port: new(int32(0))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1", "10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)},
				Hostname: new("h"), NodeName: new("a"), Zone: new("z"), Hints: hints([]string{"z1", "z2"}, []string{"a"}), DeprecatedTopology: map[string]string{"k": "v"},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "web-0", UID: "u"}},
			{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Serving: new(false)}, Hints: hints([]string{"z1", "z2"}, []string{"b"}),
				TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "n"}},
			{Addresses: []string{"example.com"}, NodeName: new(""), Hints: &discoveryv1.EndpointHints{}}, {},
		}}
}

// Decoding a message yields the same as decoding and reducing the object: with
// all fields, with none, and for each object in the test data.
func TestFromProto(t *testing.T) {
	services := []*corev1.Service{fullService(), {}}
	endpointSlices := []*discoveryv1.EndpointSlice{fullSlice(), {}}
	between := regexp.MustCompile(`(?m)^--- *.*$|^-- .* --$`)
	err := filepath.WalkDir("../../testdata", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err != nil || d.IsDir() || ext != ".txtar" && ext != ".yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		for _, text := range between.Split(string(data), -1) {
			var is metav1.TypeMeta
			svc, slice := &corev1.Service{}, &discoveryv1.EndpointSlice{}
			switch yaml.Unmarshal([]byte(text), &is); is.Kind {
			case "Service":
				if yaml.Unmarshal([]byte(text), svc) == nil {
					services = append(services, svc)
				}
			case "EndpointSlice":
				if yaml.Unmarshal([]byte(text), slice) == nil {
					endpointSlices = append(endpointSlices, slice)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(services) < 200 || len(endpointSlices) < 200 {
		t.Errorf("the test data have %d Services and %d EndpointSlices, want hundreds", len(services), len(endpointSlices))
	}
	for _, svc := range services {
		data, err := svc.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !checkProto(t, data, nil) {
			t.Errorf("Service %s/%s: the message is taken for an odd one", svc.Namespace, svc.Name)
		}
		if _, version, _ := ServiceFromProto(data); version != svc.ResourceVersion {
			t.Errorf("version %q, want %q", version, svc.ResourceVersion)
		}
	}
	for _, slice := range endpointSlices {
		data, err := slice.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !checkProto(t, nil, data) {
			t.Errorf("EndpointSlice %s/%s: the message is taken for an odd one", slice.Namespace, slice.Name)
		}
		if _, version, _ := EndpointSliceFromProto(data); version != slice.ResourceVersion {
			t.Errorf("version %q, want %q", version, slice.ResourceVersion)
		}
	}
}

// checkProto compares the direct decoders with the objects' own decoders, and
// reports whether the message was read. Errors in skipped fields are ignored.
func checkProto(t *testing.T, service, slice []byte) (read bool) {
	t.Helper()
	if service != nil {
		var in corev1.Service
		got, version, ok := ServiceFromProto(service)
		if ok && in.Unmarshal(service) == nil {
			if diff := cmp.Diff(FromService(&in), got, sameTimes, sameAddrs); diff != "" || version != in.ResourceVersion {
				t.Errorf("Service %x at version %q, want %q (-want +got)\n%s", service, version, in.ResourceVersion, diff)
			}
		}
		read = ok
	}
	if slice != nil {
		var in discoveryv1.EndpointSlice
		got, version, ok := EndpointSliceFromProto(slice)
		if ok && in.Unmarshal(slice) == nil {
			if diff := cmp.Diff(FromEndpointSlice(&in), got, sameTimes, sameAddrs); diff != "" || version != in.ResourceVersion {
				t.Errorf("EndpointSlice %x at version %q, want %q (-want +got)\n%s", slice, version, in.ResourceVersion, diff)
			}
		}
		read = ok
	}
	return read
}

// The marker for the end of the initial list, and malformed messages, require the
// object's own decoder.
func TestOddProto(t *testing.T) {
	mark := metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	svc, err := (&corev1.Service{ObjectMeta: mark}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{svc, {0x0a}, {0x0a, 0x05, 'x'}, {0x08, 0x01}, {0x00}, {0x0b}, {0x12, 0x02, 0x18, 0x01}} {
		if _, _, ok := ServiceFromProto(data); ok {
			t.Errorf("Service %x is read", data)
		}
	}
	for _, data := range [][]byte{svc, {0x12}, {0x12, 0x02, 0x08, 0x01}, {0x12, 0x04, 0x12, 0x02, 0x0a, 0x00}} {
		if _, _, ok := EndpointSliceFromProto(data); ok {
			t.Errorf("EndpointSlice %x is read", data)
		}
	}
}

// FuzzProto compares the direct decoders with the objects' own decoders.
func FuzzProto(f *testing.F) {
	svc, err := fullService().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	slice, err := fullSlice().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(svc)
	f.Add(slice)
	f.Add(append(svc[:len(svc):len(svc)], svc...)) // all fields twice
	f.Add(append(slice[:len(slice):len(slice)], slice...))
	f.Fuzz(func(t *testing.T, data []byte) { checkProto(t, data, data) })
}

var sameAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

var sameTimes = cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) && a.Location() == b.Location() })
