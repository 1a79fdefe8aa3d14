package main

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/cluster"
)

// api is what a proxy sees of an API server: it streams the objects of a
// cluster that a proxy selects (KEP-3157), and then the events that it is given.
type api struct {
	*http.Server
	cluster cluster.Cluster
	url     string

	mu       sync.Mutex
	watchers map[string][]chan event // by resource
}

type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// serve starts an API server in a namespace.
func serve(ns *applytest.Namespace, c cluster.Cluster) (*api, error) {
	a := &api{cluster: c, watchers: map[string][]chan event{}}
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
	w.Header().Set("Content-Type", "application/json")
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	query := r.URL.Query()
	if query.Get("watch") == "" { // asked only to see whether the resource exists
		json.NewEncoder(w).Encode(metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		return
	}
	events := make(chan event, 10)
	a.mu.Lock()
	a.watchers[resource] = append(a.watchers[resource], events)
	a.mu.Unlock()
	to := json.NewEncoder(w)
	if query.Get("sendInitialEvents") == "true" {
		a.objects(resource, func(o any) { to.Encode(event{"ADDED", o}) })
		to.Encode(event{"BOOKMARK", mark(resource)})
	}
	for {
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			to.Encode(e)
		}
	}
}

// objects gives those of a resource that a proxy selects.
func (a *api) objects(resource string, yield func(any)) {
	if resource == "nodes" {
		yield(a.cluster.Nodes()[0])
		return
	}
	for i := range a.cluster.Services {
		s := a.cluster.Service(i)
		switch {
		case s.Spec.ClusterIP == corev1.ClusterIPNone:
		case resource == "services":
			yield(s)
		case resource == "endpointslices":
			for _, slice := range a.cluster.Slices(i) {
				yield(slice)
			}
		}
	}
}

// mark is the bookmark that ends the first objects.
func mark(resource string) any {
	kind := map[string]metav1.TypeMeta{
		"services":       {APIVersion: "v1", Kind: "Service"},
		"endpointslices": {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		"nodes":          {APIVersion: "v1", Kind: "Node"},
		"servicecidrs":   {APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
	}[resource]
	return &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
}

// send hands an event to those who watch.
func (a *api) send(resource, what string, object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.watchers[resource] {
		w <- event{what, object}
	}
}
