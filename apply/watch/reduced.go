package watch

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
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
		if info := &all[i]; info.MediaType == runtime.ContentTypeProtobuf && info.StreamSerializer != nil {
			stream := *info.StreamSerializer
			stream.Serializer = inPlace{stream.Serializer}
			info.Serializer, info.StreamSerializer = reducing{info.Serializer}, &stream
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

// protoPrefix begins an object in protobuf. An envelope (runtime.Unknown) with the kind and a message
// follows.
var protoPrefix = []byte{'k', '8', 's', 0}

// field reads a length-delimited field of a message. It returns false if there is none.
func field(data []byte) (number protowire.Number, value, rest []byte, ok bool) {
	number, wire, n := protowire.ConsumeTag(data)
	if n < 0 || wire != protowire.BytesType {
		return 0, nil, nil, false
	}
	value, size := protowire.ConsumeBytes(data[n:])
	if size < 0 {
		return 0, nil, nil, false
	}
	return number, value, data[n+size:], true
}

// peek opens an envelope without copying its content.
func peek(data []byte) (kind schema.GroupVersionKind, raw []byte, ok bool) {
	rest, ok := bytes.CutPrefix(data, protoPrefix)
	var version, name []byte
	for ok && len(rest) > 0 {
		number, value, after, valid := field(rest)
		rest = after
		switch {
		case !valid:
			return kind, nil, false
		case number == typeField:
			for len(value) > 0 {
				var text []byte
				if number, text, value, ok = field(value); !ok {
					return kind, nil, false
				}
				switch number {
				case versionField:
					version = text
				case kindField:
					name = text
				}
			}
		case number == rawField:
			raw = value
		case len(value) > 0: // content encoding or content type
			return kind, nil, false
		}
	}
	return schema.FromAPIVersionAndKind(string(version), string(name)), raw, ok
}

// Field numbers of an envelope and of the TypeMeta in it.
const (
	typeField    protowire.Number = 1
	rawField     protowire.Number = 2
	versionField protowire.Number = 1
	kindField    protowire.Number = 2
)

// inPlace decodes watch events in protobuf without copying the object. The object is decoded before
// the next event is read.
type inPlace struct{ runtime.Serializer }

func (s inPlace) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if e, ok := into.(*metav1.WatchEvent); ok && readEvent(data, e) {
		return e, defaults, nil
	}
	return s.Serializer.Decode(data, defaults, into)
}

// readEvent decodes an event, and returns false if data contains anything else.
func readEvent(data []byte, e *metav1.WatchEvent) bool {
	var what, raw []byte
	for len(data) > 0 {
		number, value, rest, ok := field(data)
		if !ok {
			return false
		}
		data = rest
		switch number {
		case eventTypeField:
			what = value
		case eventObjectField:
			if number, raw, rest, ok = field(value); !ok || number != objectRawField || len(rest) > 0 {
				return false
			}
		default:
			return false
		}
	}
	e.Type, e.Object.Raw = string(what), raw
	return true
}

// Field numbers of an event and of the object in it.
const (
	eventTypeField   protowire.Number = 1
	eventObjectField protowire.Number = 2
	objectRawField   protowire.Number = 1
)
