package manifest

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

var equate = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func TestSliceFromV1beta1(t *testing.T) {
	in := &discoveryv1beta1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Namespace: "shop", Labels: map[string]string{"kubernetes.io/service-name": "web"}},
		AddressType: discoveryv1beta1.AddressTypeIPv6,
		Ports:       []discoveryv1beta1.EndpointPort{{Name: new("http"), Port: new(int32(80))}},
		Endpoints: []discoveryv1beta1.Endpoint{
			{Addresses: []string{"fd00::1"}, Topology: map[string]string{"kubernetes.io/hostname": "a", "topology.kubernetes.io/zone": "z"}},
			{Addresses: []string{"fd00::2"}, Topology: map[string]string{"kubernetes.io/hostname": "a"}, NodeName: new("b"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"},
				Hints:     &discoveryv1beta1.EndpointHints{ForZones: []discoveryv1beta1.ForZone{{Name: "z"}}, ForNodes: []discoveryv1beta1.ForNode{{Name: "n"}}}},
			{Conditions: discoveryv1beta1.EndpointConditions{Ready: new(false)}},
		},
	}
	want := &snapshot.EndpointSlice{
		Name: ir.Name{Namespace: "shop", Name: "web-1"}, Object: "EndpointSlice shop/web-1", Service: ir.Name{Namespace: "shop", Name: "web"},
		AddressType: "IPv6", Ports: []snapshot.EndpointPort{{Name: "http", Port: 80, HasName: true, HasPort: true}},
		Endpoints: []snapshot.Endpoint{
			{Address: "fd00::1", Addr: netip.MustParseAddr("fd00::1"), NodeName: "a", Ready: true, Serving: true},
			{Address: "fd00::2", Addr: netip.MustParseAddr("fd00::2"), NodeName: "b", Pod: "p", Hints: &snapshot.Hints{Zones: []string{"z"}, Nodes: []string{"n"}}, Ready: true, Serving: true},
			{Serving: true},
		},
	}
	if diff := cmp.Diff(want, snapshot.FromEndpointSlice(sliceFromV1beta1(in)), equate); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
