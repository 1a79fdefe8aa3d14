package watch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// brokenMark is the annotation, on what stands for an object that cannot be
// decoded, which tells why.
const brokenMark = "proxyc.dev/broken"

// lenientCodecs decode JSON object by object where the whole cannot be. A
// single broken object would otherwise keep all of its kind from being read:
// a list fails, and a watch ends and begins with the same object again.
// (Protobuf has no wrong types; what is not protobuf at all is an error of the
// connection.)
type lenientCodecs struct{ runtime.NegotiatedSerializer }

func (c lenientCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		if all[i].MediaType == runtime.ContentTypeJSON {
			all[i].Serializer = lenient{all[i].Serializer}
		}
	}
	return all
}

// lenient decodes an object that is broken as one that has its name and the
// brokenMark alone, also within a list.
type lenient struct{ runtime.Serializer }

func (l lenient) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := l.Serializer.Decode(data, defaults, into)
	if err == nil || kind == nil {
		return obj, kind, err
	}
	mended, ok := l.mend(data, *kind, err)
	if !ok {
		return obj, kind, err
	}
	if into != nil { // what the first attempt left
		reflect.ValueOf(into).Elem().SetZero()
	}
	return l.Serializer.Decode(mended, defaults, into)
}

// mend replaces what is broken. It gives false where that does not help.
func (l lenient) mend(data []byte, kind schema.GroupVersionKind, cause error) ([]byte, bool) {
	of, list := strings.CutSuffix(kind.Kind, "List")
	if !list {
		return stub(data, kind, cause), true
	}
	var doc map[string]json.RawMessage
	var items []json.RawMessage
	if json.Unmarshal(data, &doc) != nil || json.Unmarshal(doc["items"], &items) != nil {
		return nil, false
	}
	kind.Kind = of
	found := false
	for i, item := range items {
		if _, _, err := l.Serializer.Decode(item, &kind, nil); err != nil {
			items[i], found = stub(item, kind, err), true
		}
	}
	doc["items"] = mustMarshal(items)
	return mustMarshal(doc), found
}

// stub gives what stands for a broken object.
func stub(data []byte, kind schema.GroupVersionKind, cause error) []byte {
	var doc struct{ Metadata map[string]any }
	json.Unmarshal(data, &doc) // as far as it goes
	meta := map[string]any{"annotations": map[string]string{brokenMark: reason(cause)}}
	for _, field := range []string{"namespace", "name", "resourceVersion"} {
		if text, ok := doc.Metadata[field].(string); ok {
			meta[field] = text
		}
	}
	return mustMarshal(map[string]any{"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind, "metadata": meta})
}

// reason names the field that cannot be decoded, where that is known.
func reason(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s: must be %s, got %s", cmp.Or(wrong.Field, "the object"), wrong.Type, wrong.Value)
	}
	return err.Error()
}

// mustMarshal is for what is made of strings and of JSON that was read.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
