package watch

import (
	"bytes"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// reduced contains an object that was reduced while it was decoded. The complete object never
// existed.
type reduced struct {
	metav1.TypeMeta
	metav1.ObjectMeta     // namespace, name and resourceVersion
	object            any // the result of a kind's reduce
}

func (r *reduced) DeepCopyObject() runtime.Object {
	out := *r
	out.ObjectMeta = *r.ObjectMeta.DeepCopy()
	return &out
}

func newReduced(object any, name ir.Name, version string) *reduced {
	return &reduced{object: object, ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, ResourceVersion: version}}
}

// reducingCodecs reduce objects while they decode protobuf.
type reducingCodecs struct{ runtime.NegotiatedSerializer }

func (c reducingCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		if info := &all[i]; info.MediaType == runtime.ContentTypeProtobuf {
			info.Serializer = reducing{info.Serializer}
		}
	}
	return all
}

// reducing decodes Services and EndpointSlices in protobuf, one by one as a watch sends them, as
// reduced. Other objects, and unexpected encodings, are passed to the embedded Serializer.
type reducing struct{ runtime.Serializer }

func (r reducing) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if kind, raw, ok := peek(data); ok {
			switch kind {
			case corev1.SchemeGroupVersion.WithKind("Service"):
				if svc, version, ok := snapshot.ServiceFromProto(raw); ok {
					return newReduced(svc, svc.Name, version), &kind, nil
				}
			case discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"):
				if slice, version, ok := snapshot.EndpointSliceFromProto(raw); ok {
					return newReduced(slice, slice.Name, version), &kind, nil
				}
			}
		}
	}
	return r.Serializer.Decode(data, defaults, into)
}

// protoPrefix begins an object in protobuf. An envelope with the kind and a message follows.
var protoPrefix = []byte{'k', '8', 's', 0}

// peek opens an envelope.
func peek(data []byte) (kind schema.GroupVersionKind, raw []byte, ok bool) {
	var envelope runtime.Unknown
	data, ok = bytes.CutPrefix(data, protoPrefix)
	if !ok || envelope.Unmarshal(data) != nil || envelope.ContentEncoding != "" || envelope.ContentType != "" {
		return kind, nil, false
	}
	return schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind), envelope.Raw, true
}
