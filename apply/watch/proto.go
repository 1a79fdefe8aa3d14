package watch

import (
	"bytes"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// protoForm is Kubernetes' protobuf encoding: a prefix, then an envelope (runtime.Unknown) with the
// kind and a message. Field 1 of the message is the metadata. Field 2 of a list contains its items,
// without envelopes.
type protoForm struct{}

var protoPrefix = []byte{'k', '8', 's', 0}

// Field numbers of a list.
const (
	metaField protowire.Number = 1
	itemField protowire.Number = 2
)

func (f protoForm) split(data []byte, of schema.GroupVersionKind) (items [][]byte, join func([][]byte) []byte, err error) {
	list, err := open(data)
	if err != nil {
		return nil, nil, err
	}
	var meta []byte
	for rest := list.Raw; len(rest) > 0; {
		var number protowire.Number
		var value []byte
		if number, value, rest, err = field(rest); err != nil {
			return nil, nil, err
		}
		switch number {
		case metaField:
			meta = value
		case itemField:
			items = append(items, envelope(of, value))
		}
	}
	return items, func(items [][]byte) []byte {
		raw := appendField(nil, metaField, meta)
		for _, item := range items {
			one, err := open(item)
			raw = appendField(raw, itemField, must(one.Raw, err))
		}
		return envelope(schema.FromAPIVersionAndKind(list.APIVersion, list.Kind), raw)
	}, nil
}

func (protoForm) name(data []byte) metav1.ObjectMeta {
	var obj metav1.PartialObjectMetadata
	if u, err := open(data); err == nil {
		obj.Unmarshal(u.Raw) // errors are ignored: decode as much as possible
	}
	return obj.ObjectMeta
}

func (protoForm) write(obj *metav1.PartialObjectMetadata) []byte {
	return envelope(obj.GroupVersionKind(), must(obj.Marshal()))
}

// envelope wraps a message in an envelope.
func envelope(kind schema.GroupVersionKind, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}, Raw: raw}
	return append(bytes.Clone(protoPrefix), must(u.Marshal())...)
}

// open returns the envelope of a message.
func open(data []byte) (u runtime.Unknown, err error) {
	return u, u.Unmarshal(bytes.TrimPrefix(data, protoPrefix))
}

// errProto is the error for data that is no such message.
var errProto = errors.New("must be a protobuf message of length-delimited fields")

// field reads a length-delimited field.
func field(data []byte) (number protowire.Number, value, rest []byte, err error) {
	number, wire, n := protowire.ConsumeTag(data)
	if n < 0 || wire != protowire.BytesType {
		return 0, nil, nil, errProto
	}
	value, size := protowire.ConsumeBytes(data[n:])
	if size < 0 {
		return 0, nil, nil, errProto
	}
	return number, value, data[n+size:], nil
}

func appendField(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}
