package watch

import (
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

func service(name, ip string) *corev1.Service {
	return &corev1.Service{TypeMeta: typeMeta("v1", "Service"),
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "2", Annotations: map[string]string{"large": strings.Repeat("x", 1000)}},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}}}
}

func slice(name, service, ip string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{TypeMeta: typeMeta("discovery.k8s.io/v1", "EndpointSlice"),
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "2", Labels: map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}}}}
}

func nodeObject(taints ...string) *corev1.Node {
	n := &corev1.Node{TypeMeta: typeMeta("v1", "Node"), ObjectMeta: metav1.ObjectMeta{Name: "node1", ResourceVersion: "2"}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key})
	}
	return n
}

func name(n string) ir.Name { return ir.Name{Namespace: "ns", Name: n} }

// follower is an API that runs against a fake server, with everything it reported.
type follower struct {
	*API
	t      *testing.T
	synced chan struct{}
	states chan *NodeState
}

func follow(t *testing.T, f *fakeAPI) *follower {
	t.Helper()
	return followLogging(t, f, t.Output())
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func followLogging(t *testing.T, f *fakeAPI, log io.Writer) *follower {
	t.Helper()
	return followConfig(t, f.config(), log)
}

func followConfig(t *testing.T, c *rest.Config, log io.Writer) *follower {
	t.Helper()
	g := followUnstarted(t, c, log)
	g.start()
	return g
}

func followUnstarted(t *testing.T, c *rest.Config, log io.Writer) *follower {
	t.Helper()
	g := &follower{t: t, synced: make(chan struct{}), states: make(chan *NodeState, 100)}
	g.API = &API{NodeName: "node1", Store: NewStore(time.Now), Log: slog.New(slog.NewTextHandler(log, nil)),
		NodeState: func(s *NodeState) { g.states <- s }}
	if err := g.connect(c); err != nil {
		t.Fatal(err)
	}
	return g
}

// start runs the API until the test ends.
func (g *follower) start() {
	done := make(chan struct{})
	go func() { defer close(done); g.Run(g.t.Context(), func() { close(g.synced) }) }()
	g.t.Cleanup(func() { <-done })
}

// heard returns the state of a resource.
func (g *follower) heard(resource string) (h ResourceState) {
	for _, h := range g.Contact.Resources() {
		if h.Resource == resource {
			return h
		}
	}
	return h
}

// eventually waits until holds returns true.
func (g *follower) eventually(what string, holds func() bool) {
	g.t.Helper()
	applytest.Until(g.t, 2*time.Minute, what, holds)
}

// until follows the Store until a condition holds, and returns the dirty objects.
func (g *follower) until(holds func(*snapshot.Snapshot) bool) (dirty snapshot.Dirty) {
	g.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		ok := false
		g.Store.Follow(func(s *snapshot.Snapshot, c Changes) {
			dirty.Services = append(dirty.Services, c.Services...)
			dirty.Node = dirty.Node || c.Node
			ok = holds(s)
		})
		if ok {
			slices.SortFunc(dirty.Services, ir.Name.Compare)
			dirty.Services = slices.Compact(dirty.Services)
			return dirty
		}
		select {
		case <-g.Store.Changed():
		case <-deadline:
			g.t.Fatal("the Store did not get there")
		}
	}
}

// waitStates waits for these node states, in order.
func (g *follower) waitStates(all ...*NodeState) {
	g.t.Helper()
	for _, want := range all {
		select {
		case got := <-g.states:
			if diff := cmp.Diff(want, got); diff != "" {
				g.t.Errorf("state of the node (-want +got):\n%s", diff)
			}
		case <-time.After(2 * time.Minute):
			g.t.Fatalf("the node's state was not told: want %v", want)
		}
	}
}

func (g *follower) waitSynced() {
	g.t.Helper()
	select {
	case <-g.synced:
	case <-time.After(2 * time.Minute):
		g.t.Fatal("the source did not sync")
	}
}

func TestAPI(t *testing.T) {
	f := newFakeAPI(t)
	f.missing["servicecidrs"] = true // a server before 1.33
	f.objects["services"] = []any{service("a", "10.0.0.1"), service("b", "10.0.0.2")}
	f.objects["endpointslices"] = []any{slice("a-1", "a", "10.1.0.1")}
	f.objects["nodes"] = []any{nodeObject("taint")}
	g := follow(t, f)
	g.waitSynced()
	dirty := g.until(func(s *snapshot.Snapshot) bool { return true })
	if diff := cmp.Diff(snapshot.Dirty{Services: []ir.Name{name("a"), name("b")}, Node: true}, dirty); diff != "" {
		t.Errorf("first objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&NodeState{Taints: []string{"taint"}}, <-g.states); diff != "" {
		t.Errorf("state of the node (-want +got):\n%s", diff)
	}

	f.Send("services", "DELETED", service("b", "10.0.0.2"))
	dirty = g.until(func(s *snapshot.Snapshot) bool { return s.Service(name("b")) == nil })
	if diff := cmp.Diff(snapshot.Dirty{Services: []ir.Name{name("b")}}, dirty); diff != "" {
		t.Errorf("Service deleted (-want +got):\n%s", diff)
	}
	f.Send("nodes", "MODIFIED", nodeObject("taint")) // a heartbeat: nothing relevant changes
	f.Send("endpointslices", "MODIFIED", slice("a-1", "a", "10.1.0.2"))
	dirty = g.until(func(s *snapshot.Snapshot) bool { return s.Slice(name("a-1")).Endpoints[0].Address == "10.1.0.2" })
	if diff := cmp.Diff(snapshot.Dirty{Services: []ir.Name{name("a")}}, dirty); diff != "" {
		t.Errorf("slice modified (-want +got):\n%s", diff)
	}

	want := []string{
		"/api/v1/nodes  metadata.name=node1",
		"/api/v1/services !service.kubernetes.io/service-proxy-name spec.clusterIP!=None",
		"/apis/discovery.k8s.io/v1/endpointslices !service.kubernetes.io/headless ",
		"/apis/networking.k8s.io/v1/servicecidrs  ",
	}
	if diff := cmp.Diff(want, f.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// After a relist only the objects that differ are dirty.
func TestRelist(t *testing.T) {
	f := newFakeAPI(t)
	f.objects["services"] = []any{service("a", "10.0.0.1"), service("b", "10.0.0.2"), service("c", "10.0.0.3")}
	g := follow(t, f)
	g.waitSynced()
	g.until(func(s *snapshot.Snapshot) bool { return len(s.Services()) == 3 })
	f.End("services", service("a", "10.0.0.1"), service("b", "10.0.0.9"), service("d", "10.0.0.4"))
	dirty := g.until(func(s *snapshot.Snapshot) bool { return s.Service(name("d")) != nil && s.Service(name("c")) == nil })
	if diff := cmp.Diff(snapshot.Dirty{Services: []ir.Name{name("b"), name("c"), name("d")}}, dirty); diff != "" {
		t.Errorf("dirty (-want +got):\n%s", diff)
	}
}

func TestNodeGone(t *testing.T) {
	f := newFakeAPI(t)
	f.objects["nodes"] = []any{nodeObject()}
	g := follow(t, f)
	g.waitSynced()
	f.Send("nodes", "DELETED", nodeObject())
	f.Send("nodes", "ADDED", nodeObject("back"))
	g.waitStates(&NodeState{}, nil, &NodeState{Taints: []string{"back"}})
	g.Store.Follow(func(s *snapshot.Snapshot, _ Changes) {
		if s.Node("node1") == nil {
			t.Error("the node's addresses went with the object")
		}
	})
}

// brokenService has a port that is no number.
func brokenService(name string) any {
	return map[string]any{"apiVersion": "v1", "kind": "Service",
		"metadata": map[string]any{"namespace": "ns", "name": name, "resourceVersion": "3"},
		"spec":     map[string]any{"clusterIP": "10.0.0.66", "ports": []any{map[string]any{"port": "http"}}}}
}

// An API server sends no object that cannot be decoded. If one arrives, contact is lost and all objects
// stay, until the object can be decoded again.
func TestUndecodableObject(t *testing.T) {
	for _, way := range []struct {
		name               string
		noStream, protobuf bool
		broken             any
		why                string
	}{
		{"stream", false, false, brokenService("a"), "cannot unmarshal"},
		{"list", true, false, brokenService("a"), "cannot unmarshal"},
		{"protobuf stream", false, true, service("a", badIP), `wrong wireType = 0 for field ClusterIP`},
		{"protobuf list", true, true, service("a", badIP), `wrong wireType = 0 for field ClusterIP`},
	} {
		t.Run(way.name, func(t *testing.T) {
			f := newFakeAPI(t)
			f.noStream, f.protobuf = way.noStream, way.protobuf
			f.objects["services"] = []any{service("a", "10.0.0.1"), service("b", "10.0.0.2")}
			g := follow(t, f)
			g.waitSynced()
			g.eventually("Services are watched", func() bool { return f.Watches("services") > 0 })
			f.Send("services", "MODIFIED", way.broken)
			f.End("services", way.broken)
			g.eventually("contact is lost", func() bool { return strings.Contains(g.Contact.Outage().Cause, way.why) })
			g.until(func(s *snapshot.Snapshot) bool { return hasAddress(s, "a", "10.0.0.1") && has("b")(s) })
			f.End("services", service("a", "10.0.0.3"))
			g.until(func(s *snapshot.Snapshot) bool { return hasAddress(s, "a", "10.0.0.3") && !has("b")(s) })
			g.outage(false)
		})
	}
}

func hasAddress(s *snapshot.Snapshot, n, ip string) bool {
	svc := s.Service(name(n))
	return svc != nil && svc.ClusterIP == ip
}
