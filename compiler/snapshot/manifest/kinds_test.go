package manifest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	appsv1beta1 "k8s.io/api/apps/v1beta1"
	appsv1beta2 "k8s.io/api/apps/v1beta2"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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

// The versions that are removed, and no others, are those that Kubernetes' own tables remove.
func TestRemoved(t *testing.T) {
	type removable interface{ APILifecycleRemoved() (major, minor int) }
	const newest = 37 // the minor version of the modules
	read := map[string]bool{"extensions Ingress": true, "networking.k8s.io Ingress": true}
	for _, k := range readKinds {
		read[k.group+" "+k.kind] = true
	}
	for _, k := range workloadGroups {
		read[k.group+" "+k.kind] = true
	}
	want := map[string]int{}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, appsv1beta1.AddToScheme, appsv1beta2.AddToScheme, extensionsv1beta1.AddToScheme,
		batchv1.AddToScheme, batchv1beta1.AddToScheme, discoveryv1.AddToScheme, discoveryv1beta1.AddToScheme, networkingv1.AddToScheme, networkingv1beta1.AddToScheme} {
		scheme := runtime.NewScheme()
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
		for kind := range scheme.AllKnownTypes() {
			obj, err := scheme.New(kind)
			if r, is := obj.(removable); is && err == nil && read[kind.Group+" "+kind.Kind] {
				if _, minor := r.APILifecycleRemoved(); minor <= newest {
					want[kind.GroupVersion().String()+" "+kind.Kind] = minor
				}
			}
		}
	}
	got := map[string]int{}
	for _, r := range removed {
		for _, kind := range strings.Fields(r.kinds) {
			got[r.apiVersion+" "+kind] = r.minor
			if decoderOf(r.apiVersion, kind) == nil || decoderOf(r.instead, kind) == nil {
				t.Errorf("%s %s: is not read, or its replacement %s is not", r.apiVersion, kind, r.instead)
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
