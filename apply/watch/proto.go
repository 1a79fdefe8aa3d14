package watch

import (
	"bytes"
	"encoding/binary"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// protoForm is Kubernetes' protobuf: a prefix, and in an envelope that names
// the kind a message whose field 1 is the metadata. Field 2 of a list are its
// items, without envelopes.
type protoForm struct{}

var protoPrefix = []byte{'k', '8', 's', 0}

// Tags of fields 1 and 2 of messages: number, and 2 for "has a length".
const (
	metaTag = 1<<3 | 2
	itemTag = 2<<3 | 2
)

func (f protoForm) split(data []byte, of schema.GroupVersionKind) (items [][]byte, join func([][]byte) []byte, err error) {
	list, err := open(data)
	if err != nil {
		return nil, nil, err
	}
	var meta []byte
	for rest := list.Raw; len(rest) > 0; {
		var tag uint64
		var value []byte
		if tag, value, rest, err = field(rest); err != nil {
			return nil, nil, err
		}
		switch tag {
		case metaTag:
			meta = value
		case itemTag:
			items = append(items, envelope(of, value))
		}
	}
	return items, func(items [][]byte) []byte {
		raw := appendField(nil, metaTag, meta)
		for _, item := range items {
			one, err := open(item)
			raw = appendField(raw, itemTag, must(one.Raw, err))
		}
		return envelope(schema.FromAPIVersionAndKind(list.APIVersion, list.Kind), raw)
	}, nil
}

func (protoForm) name(data []byte) metav1.ObjectMeta {
	var obj metav1.PartialObjectMetadata
	if u, err := open(data); err == nil {
		obj.Unmarshal(u.Raw) // as far as it goes
	}
	return obj.ObjectMeta
}

func (protoForm) write(obj *metav1.PartialObjectMetadata) []byte {
	return envelope(obj.GroupVersionKind(), must(obj.Marshal()))
}

// envelope puts a message into one.
func envelope(kind schema.GroupVersionKind, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}, Raw: raw}
	return append(bytes.Clone(protoPrefix), must(u.Marshal())...)
}

// open takes a message out of its envelope.
func open(data []byte) (u runtime.Unknown, err error) {
	return u, u.Unmarshal(bytes.TrimPrefix(data, protoPrefix))
}

// errProto ends the reading of what is no list.
var errProto = errors.New("is no protobuf message whose fields all have a length")

// field reads a field that has a length.
func field(data []byte) (tag uint64, value, rest []byte, err error) {
	tag, n := binary.Uvarint(data)
	if n <= 0 || tag&7 != 2 {
		return 0, nil, nil, errProto
	}
	data = data[n:]
	length, n := binary.Uvarint(data)
	if n <= 0 || length > uint64(len(data)-n) {
		return 0, nil, nil, errProto
	}
	data = data[n:]
	return tag, data[:length], data[length:], nil
}

func appendField(to []byte, tag uint64, value []byte) []byte {
	to = binary.AppendUvarint(binary.AppendUvarint(to, tag), uint64(len(value)))
	return append(to, value...)
}
