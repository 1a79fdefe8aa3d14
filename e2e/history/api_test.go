package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// resources are the resource names of the kinds that an api serves.
var resources = map[string]string{"Service": "services", "EndpointSlice": "endpointslices", "Node": "nodes", "ServiceCIDR": "servicecidrs"}

// An api is an API server with lists, watches and streamed lists (KEP-3157), which fails on
// request. It does not evaluate selectors. The tests of package e2e use a real API server.
type api struct {
	addr   string
	server *http.Server

	mu      sync.Mutex
	changed *sync.Cond
	version int
	objects map[string]kube.Object // by resource/namespace/name
	events  []event
	gone    int // versions up to it are too old to watch from
	epoch   int // watches of an earlier one end
	fault   apiFault
	conns   map[net.Conn]bool
	waiting map[string]int // watches by resource that have received all objects
}

type event struct {
	version  int
	resource string
	Type     string      `json:"type"`
	Object   kube.Object `json:"object"`
}

// An apiFault is a way in which an api fails.
type apiFault int

const (
	healthy     apiFault = iota
	breaks               // closes each connection
	silent               // never replies
	failing              // 500
	unauthorize          // 401
	throttling           // 429
	garbage              // 200 with a page
	cutting              // ends watches after each event
)

// newAPI serves at the loopback interface of a namespace.
func newAPI(ns *applytest.Namespace) (*api, error) {
	a := &api{objects: map[string]kube.Object{}, conns: map[net.Conn]bool{}, waiting: map[string]int{}}
	a.changed = sync.NewCond(&a.mu)
	var listener net.Listener
	err := ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		return nil, err
	}
	a.addr = listener.Addr().String()
	a.server = &http.Server{Handler: a, ConnState: func(c net.Conn, s http.ConnState) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if s == http.StateNew {
			a.conns[c] = true
		} else if s == http.StateClosed {
			delete(a.conns, c)
		}
	}}
	go a.server.Serve(listener)
	return a, nil
}

func (a *api) Close() error {
	a.set(breaks)
	return a.server.Close()
}

// set changes the fault of the server, and breaks all connections.
func (a *api) set(f apiFault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
	a.epoch++
	for c := range a.conns {
		c.Close()
	}
	a.changed.Broadcast()
}

// forget makes watches from any version up to now fail with 410.
func (a *api) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone, a.events = a.version, nil
	a.version++
}

// watched reports whether every resource is watched, and the watch has received all objects.
func (a *api) watched() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, resource := range resources {
		if a.waiting[resource] == 0 {
			return false
		}
	}
	return true
}

func key(o kube.Object) (resource, key string) {
	meta := o["metadata"].(kube.Object)
	resource = resources[o["kind"].(string)]
	return resource, fmt.Sprintf("%s/%v/%v", resource, meta["namespace"], meta["name"])
}

// apply creates or replaces objects.
func (a *api) apply(objects ...kube.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		resource, key := key(o)
		what := "MODIFIED"
		if a.objects[key] == nil {
			what = "ADDED"
		}
		a.version++
		o["metadata"].(kube.Object)["resourceVersion"] = strconv.Itoa(a.version)
		a.objects[key] = o
		a.events = append(a.events, event{a.version, resource, what, o})
	}
	a.changed.Broadcast()
}

// delete deletes those of the objects that exist.
func (a *api) delete(objects ...kube.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		resource, key := key(o)
		if a.objects[key] == nil {
			continue
		}
		a.version++
		o, meta := maps.Clone(o), maps.Clone(o["metadata"].(kube.Object)) // watches may be sending it
		o["metadata"], meta["resourceVersion"] = meta, strconv.Itoa(a.version)
		delete(a.objects, key)
		a.events = append(a.events, event{a.version, resource, "DELETED", o})
	}
	a.changed.Broadcast()
}

// list returns the objects of a resource, or all.
func (a *api) list(resource string) (objects []kube.Object) {
	for key, o := range a.objects {
		if strings.HasPrefix(key, resource) {
			objects = append(objects, o)
		}
	}
	return objects
}

// snapshot writes all objects to a file.
func (a *api) snapshot(file string) error {
	a.mu.Lock()
	data, err := json.Marshal(kube.Object{"apiVersion": "v1", "kind": "List", "items": a.list("")})
	a.mu.Unlock()
	return cmp.Or(err, os.WriteFile(file, data, 0o600))
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	kind := ""
	for k, of := range resources {
		if of == resource {
			kind = k
		}
	}
	a.mu.Lock()
	fault, epoch := a.fault, a.epoch
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case fault == breaks:
		panic(http.ErrAbortHandler)
	case fault == silent:
		a.mu.Lock()
		for a.epoch == epoch {
			a.changed.Wait()
		}
		a.mu.Unlock()
		panic(http.ErrAbortHandler)
	case fault == failing:
		refuse(w, http.StatusInternalServerError, "InternalError")
	case fault == unauthorize:
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	case fault == throttling:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests")
	case fault == garbage:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintln(w, "<html>come back later</html>")
	case kind == "" || r.Method != http.MethodGet:
		refuse(w, http.StatusNotFound, "NotFound")
	case r.URL.Query().Get("watch") == "":
		group := a.kindOf(kind)
		a.mu.Lock()
		data, err := json.Marshal(kube.Object{"apiVersion": group["apiVersion"], "kind": kind + "List",
			"metadata": kube.Object{"resourceVersion": strconv.Itoa(a.version)}, "items": append([]kube.Object{}, a.list(resource)...)})
		a.mu.Unlock()
		if err == nil {
			w.Write(data)
		}
	default:
		a.watch(w, r, kind, resource)
	}
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(status(code, reason))
}

func status(code int, reason string) kube.Object {
	return kube.Object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": "a fault", "code": code}
}

// kindOf returns an empty object of a kind.
func (a *api) kindOf(kind string) kube.Object {
	version := map[string]string{"EndpointSlice": "discovery.k8s.io/v1", "ServiceCIDR": "networking.k8s.io/v1"}[kind]
	return kube.Object{"apiVersion": cmp.Or(version, "v1"), "kind": kind}
}

// watch streams the events after a version, or all objects first.
func (a *api) watch(w http.ResponseWriter, r *http.Request, kind, resource string) {
	query := r.URL.Query()
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	timeout, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	end := time.AfterFunc(time.Duration(cmp.Or(timeout, 300))*time.Second, a.changed.Broadcast)
	defer end.Stop()
	ends := time.Now().Add(time.Duration(cmp.Or(timeout, 300)) * time.Second)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // wakes the loop below when the client disconnects
		select {
		case <-r.Context().Done():
			a.changed.Broadcast()
		case <-stop:
		}
	}()

	a.mu.Lock()
	epoch, fault := a.epoch, a.fault
	var send []event
	if query.Get("sendInitialEvents") == "true" {
		from = a.version
		for _, o := range a.list(resource) {
			send = append(send, event{Type: "ADDED", Object: o})
		}
		mark := a.kindOf(kind)
		mark["metadata"] = kube.Object{"resourceVersion": strconv.Itoa(from), "annotations": kube.Object{"k8s.io/initial-events-end": "true"}}
		send = append(send, event{Type: "BOOKMARK", Object: mark})
	} else if from <= a.gone {
		a.mu.Unlock()
		refuse(w, http.StatusGone, "Expired")
		return
	}
	for {
		a.mu.Unlock()
		for _, e := range send {
			json.NewEncoder(w).Encode(e)
		}
		w.(http.Flusher).Flush()
		if fault == cutting && len(send) > 0 {
			return
		}
		a.mu.Lock()
		send = nil
		for send == nil {
			if a.epoch != epoch || r.Context().Err() != nil || time.Now().After(ends) {
				a.mu.Unlock()
				return
			}
			if from < a.gone { // its events are no longer kept
				send = []event{{Type: "ERROR", Object: status(http.StatusGone, "Expired")}}
				epoch--
				break
			}
			i, _ := slices.BinarySearchFunc(a.events, from+1, func(e event, v int) int { return cmp.Compare(e.version, v) })
			for _, e := range a.events[i:] {
				from = e.version
				if e.resource == resource {
					send = append(send, e)
				}
			}
			if send == nil {
				a.waiting[resource]++
				a.changed.Wait()
				a.waiting[resource]--
			}
		}
	}
}
