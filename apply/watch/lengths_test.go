package watch

import (
	"bytes"
	"encoding/binary"
	"io"
	goruntime "runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
)

// A protobuf length without that many bytes is an error and allocates no memory for them.
func TestAnnouncedLengths(t *testing.T) {
	const most = 20 << 20 // client-go reads frames of at most 16 MiB
	info, _ := runtime.SerializerInfoForMediaType(reducingCodecs{newCodecs()}.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	long := func(number protowire.Number) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.BytesType), 0xffff_fff0)
	}
	decode := func(data []byte) error {
		_, _, err := info.Serializer.Decode(data, nil, nil)
		return err
	}
	stream := func(data []byte) error {
		reader := info.StreamSerializer.Framer.NewFrameReader(io.NopCloser(bytes.NewReader(data)))
		_, _, err := streaming.NewDecoder(reader, info.StreamSerializer).Decode(nil, &metav1.WatchEvent{})
		return err
	}
	frame := func(data []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
	}
	for name, try := range map[string]func() error{
		"an envelope": func() error { return decode(append(bytes.Clone(protoPrefix), long(2)...)) },
		"a Service":   func() error { return decode(envelope(corev1.SchemeGroupVersion.WithKind("Service"), long(metaField))) },
		"an item of a list": func() error {
			return decode(envelope(corev1.SchemeGroupVersion.WithKind("ServiceList"), long(itemField)))
		},
		"a frame of a watch": func() error { return stream(binary.BigEndian.AppendUint32(nil, 0xffff_fff0)) },
		"an event":           func() error { return stream(frame(long(2))) },
	} {
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		err := try()
		goruntime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil && name != "a Service" || took > most {
			t.Errorf("%s: error %v, %d bytes", name, err, took)
		}
	}
}
