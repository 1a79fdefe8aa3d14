package watch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// brokenAnnotation is an annotation on the replacement of an object that cannot be decoded. Its
// value is the error.
const brokenAnnotation = "proxyc.dev/broken"

// lenientCodecs decode object by object if a whole list cannot be decoded. A single broken object
// would otherwise block all objects of its kind: the list fails, and the watch ends and restarts
// with the same object.
type lenientCodecs struct{ runtime.NegotiatedSerializer }

func (c lenientCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		switch all[i].MediaType {
		case runtime.ContentTypeJSON:
			all[i].Serializer = lenient{all[i].Serializer, jsonForm{}}
		case runtime.ContentTypeProtobuf:
			all[i].Serializer = lenient{all[i].Serializer, protoForm{}}
		}
	}
	return all
}

// lenient decodes a broken object, alone or in a list, as one with only its name and
// brokenAnnotation.
type lenient struct {
	runtime.Serializer
	form form
}

// form is an encoding of objects.
type form interface {
	// split returns the encoded objects of a list, and a function that encodes the list with other
	// objects.
	split(data []byte, of schema.GroupVersionKind) (items [][]byte, join func([][]byte) []byte, err error)
	// name decodes namespace, name and resourceVersion as far as possible.
	name(data []byte) metav1.ObjectMeta
	write(*metav1.PartialObjectMetadata) []byte
}

func (l lenient) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := l.Serializer.Decode(data, defaults, into)
	if err == nil || kind == nil {
		return obj, kind, err
	}
	mended, ok := l.repair(data, *kind, err)
	if !ok {
		return obj, kind, err
	}
	if into != nil { // discard the result of the first attempt
		reflect.ValueOf(into).Elem().SetZero()
	}
	return l.Serializer.Decode(mended, defaults, into)
}

// repair replaces the broken objects in data. It returns false if that does not help.
func (l lenient) repair(data []byte, kind schema.GroupVersionKind, cause error) ([]byte, bool) {
	of, list := strings.CutSuffix(kind.Kind, "List")
	if !list {
		return l.stub(data, kind, cause), true
	}
	kind.Kind = of
	items, join, err := l.form.split(data, kind)
	if err != nil {
		return nil, false
	}
	found := false
	for i, item := range items {
		if _, _, err := l.Serializer.Decode(item, &kind, nil); err != nil {
			items[i], found = l.stub(item, kind, err), true
		}
	}
	return join(items), found
}

// stub returns the replacement of a broken object.
func (l lenient) stub(data []byte, kind schema.GroupVersionKind, cause error) []byte {
	is := l.form.name(data)
	return l.form.write(&metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: is.Namespace, Name: is.Name, ResourceVersion: is.ResourceVersion,
			Annotations: map[string]string{brokenAnnotation: reason(cause)}},
	})
}

// reason returns the error with the field that cannot be decoded, if known.
func reason(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s: must be %s, got %s", cmp.Or(wrong.Field, "the object"), wrong.Type, wrong.Value)
	}
	return err.Error()
}

// jsonForm is the JSON encoding.
type jsonForm struct{}

func (jsonForm) split(data []byte, _ schema.GroupVersionKind) ([][]byte, func([][]byte) []byte, error) {
	var doc map[string]json.RawMessage
	var raw []json.RawMessage
	if err := cmp.Or(json.Unmarshal(data, &doc), json.Unmarshal(doc["items"], &raw)); err != nil {
		return nil, nil, err
	}
	items := make([][]byte, len(raw))
	for i := range raw {
		items[i] = raw[i]
	}
	return items, func(items [][]byte) []byte {
		for i := range items {
			raw[i] = items[i]
		}
		doc["items"] = must(json.Marshal(raw))
		return must(json.Marshal(doc))
	}, nil
}

func (jsonForm) name(data []byte) (is metav1.ObjectMeta) {
	var doc struct{ Metadata map[string]any }
	json.Unmarshal(data, &doc) // errors are ignored: decode as much as possible
	for field, to := range map[string]*string{"namespace": &is.Namespace, "name": &is.Name, "resourceVersion": &is.ResourceVersion} {
		*to, _ = doc.Metadata[field].(string)
	}
	return is
}

func (jsonForm) write(obj *metav1.PartialObjectMetadata) []byte { return must(json.Marshal(obj)) }

// must is for encodings that cannot fail, since the input is strings or was decoded before.
func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}
