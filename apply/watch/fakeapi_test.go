package watch

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server that streams the initial objects and events (KEP-3157, streaming lists).
// It ignores selectors.
type fakeAPI struct {
	*httptest.Server
	missing map[string]bool // resources that it does not serve
	// noStream makes it only list the initial objects, like servers before 1.32.
	noStream bool
	// protobuf makes it send protobuf. A Service with the address badIP is then broken.
	protobuf bool

	mu       sync.Mutex
	instead  func(w http.ResponseWriter, r *http.Request) // responds to all requests instead; optional
	refused  map[string]metav1.StatusReason               // resources that it forbids reading
	silent   map[string]bool                              // resources whose requests it does not answer
	objects  map[string][]any                             // by resource
	watchers map[string][]chan event
	watches  map[string]int // numbers of watches so far
	requests []string
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

func newFakeAPI(t *testing.T) *fakeAPI {
	f := &fakeAPI{missing: map[string]bool{}, objects: map[string][]any{}, watchers: map[string][]chan event{}, watches: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeAPI) config() *rest.Config {
	c := &rest.Config{Host: f.URL}
	if f.protobuf {
		c.ContentType = runtime.ContentTypeProtobuf
	}
	return c
}

// badIP is the cluster IP of a Service whose protobuf is broken.
const badIP = "10.0.0.66"

// breakProto changes the wire type of spec.clusterIP (field 3) to a number if it is badIP.
func breakProto(data []byte) []byte {
	return bytes.ReplaceAll(data, []byte("\x1a\x09"+badIP), []byte("\x18\x09"+badIP))
}

// message returns an object in protobuf.
func message(object any) []byte {
	data, err := object.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		panic(err)
	}
	return breakProto(data)
}

// Field numbers of a list.
const (
	metaField protowire.Number = 1
	itemField protowire.Number = 2
)

// envelope wraps a message as an object of a kind.
func envelope(kind schema.GroupVersionKind, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}, Raw: raw}
	return append(bytes.Clone(protoPrefix), message(&u)...)
}

func appendField(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func (f *fakeAPI) writeList(w http.ResponseWriter, of schema.GroupVersionKind, items []any) {
	of.Kind += "List"
	if !f.protobuf {
		json.NewEncoder(w).Encode(map[string]any{"kind": of.Kind, "apiVersion": of.GroupVersion().String(),
			"metadata": map[string]string{"resourceVersion": "1"}, "items": items})
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	raw := appendField(nil, metaField, message(&metav1.ListMeta{ResourceVersion: "1"}))
	for _, item := range items {
		raw = appendField(raw, itemField, message(item))
	}
	w.Write(envelope(of, raw))
}

func (f *fakeAPI) writeEvent(w http.ResponseWriter, e event) {
	if !f.protobuf {
		json.NewEncoder(w).Encode(e)
		return
	}
	kind := e.Object.(runtime.Object).GetObjectKind().GroupVersionKind()
	frame := message(&metav1.WatchEvent{Type: e.Type, Object: runtime.RawExtension{
		Raw: envelope(kind, message(e.Object))}})
	w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	query := r.URL.Query()
	f.mu.Lock()
	f.requests = append(f.requests, r.URL.Path+" "+query.Get("labelSelector")+" "+query.Get("fieldSelector"))
	instead, refused, silent := f.instead, f.refused[resource], f.silent[resource]
	f.mu.Unlock()
	if silent {
		<-r.Context().Done()
		return
	}
	if instead != nil {
		instead(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	initial := query.Get("sendInitialEvents") == "true"
	switch {
	case refused != "":
		refuse(w, refused, map[metav1.StatusReason]int{metav1.StatusReasonForbidden: 403, metav1.StatusReasonUnauthorized: 401, metav1.StatusReasonInternalError: 500}[refused])
	case f.missing[resource]:
		refuse(w, metav1.StatusReasonNotFound, http.StatusNotFound)
	case initial && f.noStream:
		refuse(w, metav1.StatusReasonInvalid, http.StatusUnprocessableEntity)
	case query.Get("watch") == "":
		f.mu.Lock()
		defer f.mu.Unlock()
		of := mark(resource).(runtime.Object).GetObjectKind().GroupVersionKind()
		f.writeList(w, of, f.objects[resource])
	default:
		f.stream(w, r, resource, initial)
	}
}

func refuse(w http.ResponseWriter, reason metav1.StatusReason, code int) {
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(metav1.Status{TypeMeta: typeMeta("v1", "Status"), Status: "Failure", Reason: reason, Code: int32(code)})
}

// stream sends the objects, the bookmark after them, and then the events of Send.
func (f *fakeAPI) stream(w http.ResponseWriter, r *http.Request, resource string, initial bool) {
	if f.protobuf {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	}
	f.mu.Lock()
	if initial {
		for _, o := range f.objects[resource] {
			f.writeEvent(w, event{"ADDED", o})
		}
		f.writeEvent(w, event{"BOOKMARK", mark(resource)})
	}
	events := make(chan event, 100)
	f.watchers[resource] = append(f.watchers[resource], events)
	f.watches[resource]++
	f.mu.Unlock()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			f.writeEvent(w, e)
			w.(http.Flusher).Flush()
		}
	}
}

// mark returns the bookmark that ends the initial objects of a resource.
func mark(resource string) any {
	meta := metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch resource {
	case "services":
		return &corev1.Service{TypeMeta: typeMeta("v1", "Service"), ObjectMeta: meta}
	case "endpointslices":
		return &discoveryv1.EndpointSlice{TypeMeta: typeMeta("discovery.k8s.io/v1", "EndpointSlice"), ObjectMeta: meta}
	case "nodes":
		return &corev1.Node{TypeMeta: typeMeta("v1", "Node"), ObjectMeta: meta}
	}
	return &networkingv1.ServiceCIDR{TypeMeta: typeMeta("networking.k8s.io/v1", "ServiceCIDR"), ObjectMeta: meta}
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

// Send sends an event to all watches of a resource.
func (f *fakeAPI) Send(resource, what string, object any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watchers[resource] {
		w <- event{what, object}
	}
}

// End ends all watches of a resource, and sets its objects for new ones.
func (f *fakeAPI) End(resource string, objects ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[resource] = objects
	for _, w := range f.watchers[resource] {
		// The resource version is too old: the client has to list again.
		w <- event{"ERROR", &metav1.Status{TypeMeta: typeMeta("v1", "Status"), Status: "Failure", Reason: metav1.StatusReasonExpired, Code: http.StatusGone}}
		close(w)
	}
	f.watchers[resource] = nil
}

// Instead sets a handler that responds to all requests, including watches; nil restores the fake's
// own.
func (f *fakeAPI) Instead(answer func(http.ResponseWriter, *http.Request)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead = answer
	for resource, watchers := range f.watchers {
		for _, w := range watchers {
			close(w)
		}
		f.watchers[resource] = nil
	}
}

// Refuse sets whether a resource may be read.
func (f *fakeAPI) Refuse(resource string, why metav1.StatusReason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = map[string]metav1.StatusReason{resource: why}
}

// Silence stops responses to requests for these resources, and resumes those for others.
func (f *fakeAPI) Silence(resources ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = map[string]bool{}
	for _, r := range resources {
		f.silent[r] = true
	}
}

// Watches returns the number of watches of a resource so far.
func (f *fakeAPI) Watches(resource string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watches[resource]
}

// asked returns the number of requests so far.
func (f *fakeAPI) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

// Requests returns the distinct requests so far: path, label and field selector.
func (f *fakeAPI) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := slices.Clone(f.requests)
	slices.Sort(r)
	return slices.Compact(r)
}
