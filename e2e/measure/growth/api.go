package growth

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/cluster"
)

// api is a proxy's view of an API server. It streams the objects of a cluster that a proxy
// selects (KEP-3157), in protobuf, and then the events that it is given. The stream is prepared
// in advance, so that a request costs only the sending.
type api struct {
	*http.Server
	url   string
	first map[string][]byte // by resource: an event for each object, and the bookmark after them

	mu       sync.Mutex
	watchers map[string][]watcher // by resource
}

// watcher is a watch of a resource.
type watcher struct {
	events chan []byte
	gone   <-chan struct{} // closed when the client has left
}

// serve starts an API server in a namespace.
func serve(ns *applytest.Namespace, c cluster.Cluster) (*api, error) {
	a := &api{first: map[string][]byte{}, watchers: map[string][]watcher{}}
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		var all []byte
		objects(c, resource, func(o runtime.Object) { all = append(all, event("ADDED", o)...) })
		a.first[resource] = append(all, event("BOOKMARK", mark(resource))...)
	}
	var listener net.Listener
	err := ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		return nil, err
	}
	a.url = "http://" + listener.Addr().String()
	a.Server = &http.Server{Handler: http.HandlerFunc(a.answer), ReadHeaderTimeout: time.Minute}
	go a.Serve(listener) // ends with Close
	return a, nil
}

func (a *api) answer(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	query := r.URL.Query()
	if query.Get("watch") == "" { // such a request only checks that the resource exists
		kind := mark(resource).GetObjectKind().GroupVersionKind()
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind + "List"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	me := watcher{make(chan []byte, 10), r.Context().Done()}
	a.mu.Lock()
	a.watchers[resource] = append(a.watchers[resource], me)
	a.mu.Unlock()
	if query.Get("sendInitialEvents") == "true" {
		w.Write(a.first[resource])
	}
	for {
		w.(http.Flusher).Flush()
		select {
		case <-me.gone:
			return
		case e := <-me.events:
			w.Write(e)
		}
	}
}

// objects yields the objects of a resource that a proxy selects.
func objects(c cluster.Cluster, resource string, yield func(runtime.Object)) {
	if resource == "nodes" {
		yield(c.Nodes()[0])
		return
	}
	for i := range c.Services {
		s := c.Service(i)
		switch {
		case s.Spec.ClusterIP == corev1.ClusterIPNone:
		case resource == "services":
			yield(s)
		case resource == "endpointslices":
			for _, slice := range c.Slices(i) {
				yield(slice)
			}
		}
	}
}

// mark returns the bookmark that ends the first objects.
func mark(resource string) runtime.Object {
	meta := metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch resource {
	case "services":
		return &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta}
	case "endpointslices":
		return &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta}
	case "nodes":
		return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: meta}
	}
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}, ObjectMeta: meta}
}

// event returns an event in the form of a watch in protobuf: its length, and a WatchEvent, which
// contains the object in an envelope.
func event(what string, object runtime.Object) []byte {
	raw := runtime.EncodeOrDie(protobuf.NewSerializer(nil, nil), object)
	e := metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: []byte(raw)}}
	whole, err := e.Marshal()
	if err != nil {
		panic(err) // it is made of what was encoded
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(whole))), whole...)
}

// send sends an event to all watches.
func (a *api) send(resource, what string, object runtime.Object) {
	e := event(what, object)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.watchers[resource] {
		select {
		case w.events <- e:
		case <-w.gone: // like client-go alone when the daemon is measured
		}
	}
}
