package peer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A wire is the number of bytes that the API server sends for all objects of a kind in one form,
// without TLS and headers.
type wire struct {
	What  string `json:"what"`
	Form  string `json:"form"`
	Bytes int64  `json:"bytes"`
}

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// what is asked for: as proxies do, and without the selectors.
var readings = []struct{ what, path, selectors string }{
	{"Services", "/api/v1/services", "labelSelector=!service.kubernetes.io/service-proxy-name&fieldSelector=spec.clusterIP!=None"},
	{"Services, no selectors", "/api/v1/services", ""},
	{"EndpointSlices", "/apis/discovery.k8s.io/v1/endpointslices", "labelSelector=!service.kubernetes.io/headless"},
	{"EndpointSlices, no selectors", "/apis/discovery.k8s.io/v1/endpointslices", ""},
	{"the own Node", "/api/v1/nodes", "fieldSelector=metadata.name=" + nodeName},
	{"all Nodes", "/api/v1/nodes", ""},
}

// forms are the forms in which the API server sends objects. A stream begins with all objects,
// and a bookmark after them.
var forms = []struct {
	name, accept, encoding, query string
}{
	{"list, JSON", jsonType, "identity", ""},
	{"list, JSON, gzip", jsonType, "gzip", ""},
	{"list, protobuf", protobufType, "identity", ""},
	{"list, protobuf, gzip", protobufType, "gzip", ""},
	{"WatchList stream, JSON", jsonType, "identity", stream},
	{"WatchList stream, JSON, gzip", jsonType, "gzip", stream},
	{"WatchList stream, protobuf", protobufType + ";stream=watch", "identity", stream},
	{"WatchList stream, protobuf, gzip", protobufType + ";stream=watch", "gzip", stream},
}

const stream = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// wires requests everything in every form.
func wires(ctx context.Context, api kubernetes.Interface) (all []wire, err error) {
	for _, r := range readings {
		for _, f := range forms {
			n, err := bytesOf(ctx, api, r.path+"?"+r.selectors+"&"+f.query, f.accept, f.encoding)
			if err != nil {
				return nil, fmt.Errorf("%s as %s: %w", r.what, f.name, err)
			}
			all = append(all, wire{r.what, f.name, n})
		}
	}
	return all, nil
}

// bytesOf counts the bytes of a response's body as sent: until its end, or until the bookmark
// after a stream's initial events.
func bytesOf(ctx context.Context, api kubernetes.Interface, uri, accept, encoding string) (int64, error) {
	body, err := api.Discovery().RESTClient().Get().RequestURI(uri).
		SetHeader("Accept", accept).SetHeader("Accept-Encoding", encoding).Stream(ctx)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	sent := &counter{r: body}
	plain, err := decoded(sent)
	if err != nil {
		return 0, err
	}
	err = readUntil(plain, []byte(metav1.InitialEventsAnnotationKey))
	return sent.n, err
}

// A counter counts the bytes read from r.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// decoded returns r without gzip. The first bytes decide, because the API server compresses lists
// only above 128 KiB, and WatchList streams since 1.37 (feature WatchListCompression).
func decoded(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	first, err := b.Peek(2)
	if err != nil || !bytes.Equal(first, []byte{0x1f, 0x8b}) {
		return b, err
	}
	return gzip.NewReader(b)
}

// readUntil reads until the end, or until it has read mark.
func readUntil(r io.Reader, mark []byte) error {
	seen, chunk := []byte{}, make([]byte, 1<<16)
	for {
		got, err := r.Read(chunk)
		if seen = append(seen, chunk[:got]...); err == io.EOF || bytes.Contains(seen, mark) {
			return nil
		}
		if err != nil {
			return err
		}
		seen = append(seen[:0], seen[max(0, len(seen)-len(mark)):]...)
	}
}
