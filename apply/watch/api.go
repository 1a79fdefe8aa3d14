package watch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Selectors of the list and watch requests. Services with the label
// service.kubernetes.io/service-proxy-name belong to another proxy (SNAP-1); headless Services need
// no rules (SNAP-2).
const (
	serviceLabels = "!service.kubernetes.io/service-proxy-name"
	serviceFields = "spec.clusterIP!=None"
	sliceLabels   = "!" + corev1.IsHeadlessService
)

// API is the source for a node of a cluster. It watches Services, EndpointSlices, ServiceCIDRs and
// this node's Node object on an API server and stores them in Store.
type API struct {
	NodeName string
	Store    *Store
	Log      *slog.Logger
	// NodeState is called with the state of this node's Node object each time it changes, and with nil
	// when the object does not exist. The Store keeps the addresses of the last Node meanwhile.
	NodeState func(*NodeState)
	// Events is optional. Its events are sent while Run runs.
	Events *Events
	// Condition is optional. It is maintained on the Node while Run runs.
	Condition *NodeCondition
	// Contact records when the server last answered, by resource. Connect creates one if it is nil.
	Contact *Contact

	unreduced bool // decode complete objects: the caller reads more than reduce keeps
	clients   *clients
	after     func(time.Duration) <-chan time.Time // time.After if nil
}

// NodeState is the part of a Node object that decides whether load balancers send traffic to the
// node.
type NodeState struct {
	Terminating bool
	Taints      []string // keys
}

// Connect creates the clients for an API server. It sends no request.
func (a *API) Connect(c config.ClientConnection, master, userAgent string) error {
	base, err := restConfig(c, master, userAgent)
	if err != nil {
		return err
	}
	return a.connect(base)
}

func (a *API) connect(base *rest.Config) (err error) {
	if a.Contact == nil {
		a.Contact = NewContact(a.Log, time.Now)
	}
	if !a.unreduced {
		base = rest.CopyConfig(base)
		base.NegotiatedSerializer = reducingCodecs{newCodecs()}
	}
	a.clients, err = newClients(base, a.Contact)
	return err
}

// Run watches the API server until ctx ends. It retries after every error. Run calls synced once,
// when the Store contains the initial objects. It waits for optional kinds for at most
// optionalTimeout.
func (a *API) Run(ctx context.Context, synced func()) {
	a.run(ctx, []kind{a.services(), a.slices(), a.node(), a.serviceCIDRs()}, synced)
}

func (a *API) run(ctx context.Context, kinds []kind, synced func()) {
	if a.after == nil {
		a.after = time.After
	}
	ctx = quietRetries(ctx, a.Log)
	var running, required, optional sync.WaitGroup // kinds whose initial objects have not all arrived
	running.Go(func() { apply.Every(ctx, silenceCheck, a.Contact.checkSilence) })
	for _, k := range kinds {
		a.Contact.resource(k.name).expect(k.optional)
	}
	for _, k := range kinds {
		of := &required
		if k.optional {
			of = &optional
		}
		of.Add(1)
		running.Go(func() {
			come := sync.OnceFunc(of.Done)
			defer come()
			a.follow(ctx, k, come)
		})
	}
	all := make(chan struct{})
	running.Go(func() { optional.Wait(); close(all) })
	enough := time.After(optionalTimeout)
	running.Go(func() {
		required.Wait()
		select {
		case <-all:
		case <-enough:
		}
		if ctx.Err() == nil {
			synced()
		}
	})
	if a.Events != nil {
		running.Go(func() { a.Events.run(ctx, a.clients.events) })
	}
	if a.Condition != nil {
		running.Go(func() { a.Condition.run(ctx, a.clients.core) })
	}
	running.Wait()
}

// kind is a resource with the functions that select, reduce and store its objects.
type kind struct {
	resource
	options func(*metav1.ListOptions)
	// reduce returns the part of an object that is kept. It returns a reduced object unchanged.
	reduce  func(any) any
	set     func(any)
	remove  func(ir.Name)
	replace func([]any)
}

// follow keeps the Store equal to the server's objects of a kind until ctx ends. It calls synced
// when the initial objects are stored.
func (a *API) follow(ctx context.Context, k kind, synced func()) {
	if k.optional && !a.waitUntilServed(ctx, k, synced) {
		return
	}
	contact := a.Contact.resource(k.name)
	lw := contact.listWatch(k.types, cache.NewFilteredListWatchFromClient(k.client, k.name, metav1.NamespaceAll, k.options))
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, k.client), nil,
		&sink{k, synced, contact},
		cache.ReflectorOptions{Name: "proxyc", TypeDescription: k.name, Clock: contextClock{ctx: ctx}})
	r.RunWithContext(ctx)
}

const (
	// optionalTimeout is how long the first rules wait for an optional kind, counted from the start
	// of Run. A node without rules is worse off than one whose rules lack the kind.
	optionalTimeout = 5 * time.Second
	// discoveryTimeout is the timeout of the request that checks whether a server serves a kind.
	discoveryTimeout = 10 * time.Second
	// discoveryRetry is the wait after an unclear answer, and the first wait after the server
	// reported that it does not serve a kind.
	discoveryRetry = 5 * time.Second
	// discoveryMaxRetry is the longest wait after the server reported that it does not serve a kind.
	// The server may be too old, and every node asks.
	discoveryMaxRetry = 5 * time.Minute
)

// waitUntilServed waits until the server serves a kind, and returns false if ctx ends before. It
// calls synced as soon as the server reports that it does not serve the kind.
func (a *API) waitUntilServed(ctx context.Context, k kind, synced func()) bool {
	refused := false
	for rarely := discoveryRetry; ; {
		wait := discoveryRetry
		began := a.Contact.now()
		list, err := k.client.Get().Resource(k.name).Param("limit", "1").Timeout(discoveryTimeout).Do(ctx).Get()
		if err == nil {
			_, err = k.types.checkList(list)
		}
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			if refused {
				a.Log.Info("the API server serves " + k.name + " now")
				a.Contact.resource(k.name).expect(k.optional)
			}
			return true
		case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			if !refused {
				a.Log.Info("the API server does not serve "+k.name+": continuing without them", "err", err)
			}
			refused = true
			a.Contact.resource(k.name).recordUnavailable(cmp.Or(err.Error(), string(apierrors.ReasonForError(err))))
			synced()
			wait, rarely = rarely, min(2*rarely, discoveryMaxRetry)
		case errors.Is(err, context.DeadlineExceeded):
			a.Contact.resource(k.name).recordLoss(&timeoutError{"no answer", discoveryTimeout})
		default:
			a.Contact.resource(k.name).recordUndecodable(ctx, began, err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-a.after(wait):
		}
	}
}

// sink is the store of a Reflector. It keeps no objects itself.
type sink struct {
	kind
	synced  func()
	contact resourceContact
}

var (
	_ cache.TransformingStore      = (*sink)(nil)
	_ cache.ReflectorBookmarkStore = (*sink)(nil)
)

// Transformer reduces objects while the Reflector collects the initial list, so that it does not
// hold complete ones.
func (s *sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.reduce(obj), nil }
}

func (s *sink) Add(obj any) error {
	s.set(s.reduce(obj))
	s.contact.recordStored()
	return nil
}

func (s *sink) Update(obj any) error { return s.Add(obj) }

func (s *sink) Delete(obj any) error {
	meta, err := apimeta.Accessor(obj)
	if err == nil {
		s.remove(nameOf(meta))
		s.contact.recordStored()
	}
	return err
}

func (s *sink) Replace(all []any, _ string) error {
	for i, obj := range all {
		all[i] = s.reduce(obj)
	}
	s.replace(all)
	s.contact.recordStored()
	s.synced()
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore.
func (s *sink) Bookmark(string) error {
	s.contact.recordBookmark()
	return nil
}

// Resync does nothing: all objects are already in the Store.
func (s *sink) Resync() error { return nil }

// reducer returns a kind's reduce function for a conversion.
func reducer[In, Out any](from func(*In) *Out) func(any) any {
	return func(obj any) any {
		switch obj := obj.(type) {
		case *In:
			return from(obj)
		case *reduced:
			return obj.object
		}
		return obj
	}
}

// stored returns the kind of the objects in the Store.
func stored[T any](a *API, r resource, options func(*metav1.ListOptions), reduce func(any) any,
	replace func(*snapshot.Snapshot, []*T) snapshot.Dirty) kind {
	return kind{
		resource: r, options: options, reduce: reduce, set: a.Store.Set,
		remove: func(name ir.Name) { a.Store.Delete(r.types.kind, name) },
		replace: func(all []any) {
			objects := make([]*T, len(all))
			for i, obj := range all {
				objects[i] = obj.(*T)
			}
			a.Store.replace(a.Log, func(s *snapshot.Snapshot) snapshot.Dirty { return replace(s, objects) })
		},
	}
}

func (a *API) services() kind {
	return stored(a, a.clients.services(), func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = serviceLabels, serviceFields },
		reducer(snapshot.FromService), (*snapshot.Snapshot).ReplaceServices)
}

func (a *API) slices() kind {
	return stored(a, a.clients.slices(), func(o *metav1.ListOptions) { o.LabelSelector = sliceLabels },
		reducer(snapshot.FromEndpointSlice), (*snapshot.Snapshot).ReplaceSlices)
}

// ownNode is this node's Node object, reduced.
type ownNode struct {
	node      *snapshot.Node
	state     NodeState
	condition *Condition
}

func reduceNode(in *corev1.Node) *ownNode {
	out := &ownNode{node: snapshot.FromNode(in), state: NodeState{Terminating: in.DeletionTimestamp != nil}, condition: conditionOf(in)}
	for _, t := range in.Spec.Taints {
		out.state.Taints = append(out.state.Taints, t.Key)
	}
	return out
}

func (a *API) node() kind {
	set := func(obj any) {
		n := obj.(*ownNode)
		if n.node.Name != a.NodeName { // the server, or a proxy in front of it, may ignore the selector
			return
		}
		a.Store.Set(n.node)
		a.NodeState(&n.state)
		a.Condition.observe(true, n.condition)
	}
	gone := func() {
		a.NodeState(nil)
		a.Condition.observe(false, nil)
	}
	return kind{
		resource: a.clients.nodes(),
		options: func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.NodeName).String()
		},
		reduce: reducer(reduceNode),
		set:    set,
		remove: func(name ir.Name) {
			if name.Name == a.NodeName {
				gone()
			}
		},
		replace: func(all []any) {
			if !slices.ContainsFunc(all, func(obj any) bool { return obj.(*ownNode).node.Name == a.NodeName }) {
				gone()
			}
			for _, obj := range all {
				set(obj)
			}
		},
	}
}

func (a *API) serviceCIDRs() kind {
	return stored(a, a.clients.serviceCIDRs(), noSelector, reducer(snapshot.FromServiceCIDR), (*snapshot.Snapshot).ReplaceServiceCIDRs)
}
