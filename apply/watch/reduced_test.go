package watch

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Objects in protobuf are reduced while they are decoded; all others are decoded completely.
func TestReducing(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: "7"}
	mark := metav1.ObjectMeta{ResourceVersion: "8", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	svc := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta, AddressType: "IPv4"}
	codecs := reducingCodecs{newCodecs()}
	in := func(contentType string) runtime.SerializerInfo {
		info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), contentType)
		if !ok {
			t.Fatalf("no %s", contentType)
		}
		return info
	}
	for _, c := range []struct {
		name, form string
		obj        runtime.Object
		want       any // the reduced object; nil if it is decoded completely
	}{
		{"Service", runtime.ContentTypeProtobuf, svc, snapshot.FromService(svc)},
		{"EndpointSlice", runtime.ContentTypeProtobuf, slice, snapshot.FromEndpointSlice(slice)},
		{"JSON", runtime.ContentTypeJSON, svc, nil},
		{"Node", runtime.ContentTypeProtobuf, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: meta}, nil},
		{"end of the first objects", runtime.ContentTypeProtobuf, &corev1.Service{TypeMeta: svc.TypeMeta, ObjectMeta: mark}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			info := in(c.form)
			var text bytes.Buffer
			if err := info.Serializer.Encode(c.obj, &text); err != nil {
				t.Fatal(err)
			}
			got, kind, err := info.Serializer.Decode(text.Bytes(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := c.obj.GetObjectKind().GroupVersionKind(); *kind != want {
				t.Errorf("kind %v, want %v", *kind, want)
			}
			r, ok := got.(*reduced)
			switch {
			case c.want == nil && reflect.TypeOf(got) != reflect.TypeOf(c.obj):
				t.Errorf("is decoded as %T, want %T", got, c.obj)
			case c.want == nil:
			case !ok:
				t.Errorf("is decoded as %T", got)
			default:
				if diff := cmp.Diff(c.want, r.object); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				if diff := cmp.Diff(meta, r.ObjectMeta); diff != "" {
					t.Errorf("metadata (-want +got)\n%s", diff)
				}
			}
		})
	}
}
