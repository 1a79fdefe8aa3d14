package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// What is asked for of the API server (SNAP-1, SNAP-2).
const (
	serviceLabels = "!service.kubernetes.io/service-proxy-name"
	serviceFields = "spec.clusterIP!=None"
	sliceLabels   = "!" + corev1.IsHeadlessService
)

// API is the source for a node of a cluster: Services, EndpointSlices,
// ServiceCIDRs and this node's Node object, as an API server tells them.
type API struct {
	NodeName string
	Store    *Store
	Log      *slog.Logger
	// NodeState is told what else counts of this node's Node object; nil: there is none.
	// While there is none, the last one's addresses go on to count.
	NodeState func(*NodeState)
	// Broken, if set, is told when the objects of a kind that are broken change:
	// "services", and why they are, by namespace and name.
	Broken func(kind string, why map[string]string)
	// Resync is how often everything is handed out again, which finds nothing
	// to do.
	Resync time.Duration
	// Events, if set, are sent while Run runs.
	Events *Events
	// Condition, if set, is kept on the Node while Run runs.
	Condition *NodeCondition
	// Contact, if set, is told what is heard of the server.
	Contact *Contact

	whole   bool // objects are decoded whole: more than a reduce keeps is looked at
	clients *clients
	after   func(time.Duration) <-chan time.Time // nil: time.After
}

// NodeState is what decides whether a node gets traffic from load balancers.
type NodeState struct {
	Terminating bool
	Taints      []string // keys
}

// Connect prepares to talk to an API server; nothing is sent yet.
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
	if !a.whole {
		base = rest.CopyConfig(base)
		base.NegotiatedSerializer = reducingCodecs{newCodecs()}
	}
	a.clients, err = newClients(base, a.Contact)
	return err
}

// Run follows the API server until ctx ends, and goes on after all errors. It
// calls synced once, when all that there was at first is in the Store. Optional kinds are waited
// for until optionalPatience.
func (a *API) Run(ctx context.Context, synced func()) {
	a.run(ctx, []kind{a.services(), a.slices(), a.node(), a.serviceCIDRs()}, synced)
}

func (a *API) run(ctx context.Context, kinds []kind, synced func()) {
	if a.after == nil {
		a.after = time.After
	}
	ctx = quietRetries(ctx, a.Log)
	var running, required, optional sync.WaitGroup // the kinds of which not all has come yet
	running.Go(func() { a.Contact.run(ctx) })
	for _, k := range kinds {
		a.Contact.expect(k.name, k.optional)
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
	enough := time.After(optionalPatience)
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

// kind is one kind of objects and what is done with them.
type kind struct {
	name     string // in the path
	client   rest.Interface
	expected any // an object as it is decoded; nil: it may be reduced by then
	options  func(*metav1.ListOptions)
	typed    typed // what a server sends of the kind
	// reduce returns what is kept of an object; it returns what is reduced already
	// as it is.
	reduce  func(any) any
	set     func(any)
	remove  func(namespace, name string)
	replace func([]any)
	// last returns what is kept of an object; nil: nothing.
	last func(namespace, name string) any
	// optional: the rules do not need the kind. A server that does not have it, or does not let it
	// be read, counts as one without such objects.
	optional bool
}

// follow keeps the Store at what the server has of a kind, until ctx ends. It calls
// synced when all that there was at first is in it.
func (a *API) follow(ctx context.Context, k kind, synced func()) {
	if k.optional && !a.untilGiven(ctx, k, synced) {
		return
	}
	lw := a.Contact.listening(k.name, k.typed, cache.NewFilteredListWatchFromClient(k.client, k.name, metav1.NamespaceAll, k.options))
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, k.client), k.expected,
		&sink{kind: k, log: a.Log, synced: synced, onBroken: a.Broken, marked: func() { a.Contact.mark(k.name) }},
		cache.ReflectorOptions{Name: "proxyc", TypeDescription: k.name, ResyncPeriod: a.Resync, Clock: endingClock{ctx: ctx}})
	r.RunWithContext(ctx)
}

const (
	// optionalPatience is how long rules wait for an optional kind, from the start on. Without
	// rules a node is worse off than without what the kind adds.
	optionalPatience = 5 * time.Second
	// askWithin is how long a server may take to answer whether it gives a kind.
	askWithin = 10 * time.Second
	// askAgain is how long to wait for a server that gives no clear answer, and at
	// first for one that does not give a kind.
	askAgain = 5 * time.Second
	// askRarely is how long to wait at most for one that does not: it may be too old
	// to have it, and every node asks.
	askRarely = 5 * time.Minute
)

// untilGiven waits until the server gives a kind, and reports whether it does before
// ctx ends. It calls synced once it is known that there is nothing to wait for.
func (a *API) untilGiven(ctx context.Context, k kind, synced func()) bool {
	refused := false
	for rarely := askAgain; ; {
		wait := askAgain
		began := a.Contact.now()
		list, err := k.client.Get().Resource(k.name).Param("limit", "1").Timeout(askWithin).Do(ctx).Get()
		if err == nil {
			_, err = k.typed.checkList(list)
		}
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			if refused {
				a.Log.Info("the API server gives " + k.name + " now")
				a.Contact.expect(k.name, k.optional)
			}
			return true
		case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			if !refused {
				a.Log.Info("the API server does not give "+k.name+": going on without", "err", err)
			}
			refused = true
			a.Contact.without(k.name, cmp.Or(err.Error(), string(apierrors.ReasonForError(err))))
			synced()
			wait, rarely = rarely, min(2*rarely, askRarely)
		case errors.Is(err, context.DeadlineExceeded):
			a.Contact.lose(k.name, &silence{"no answer", askWithin})
		default:
			a.Contact.unreadable(ctx, k.name, began, err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-a.after(wait):
		}
	}
}

// sink is the store of a Reflector: it keeps nothing itself. Of an object that
// is broken, the last version that was not stays until the object is deleted.
type sink struct {
	kind
	log      *slog.Logger
	synced   func()
	marked   func()                                   // is told of bookmarks
	onBroken func(kind string, why map[string]string) // nil: nobody asks
	said     map[string]string                        // why the objects are broken that are
}

var (
	_ cache.TransformingStore      = (*sink)(nil)
	_ cache.ReflectorBookmarkStore = (*sink)(nil)
)

// broken is what an object that is no use is reduced to.
type broken struct{ namespace, name, why string }

func (b broken) key() string { return cache.ObjectName{Namespace: b.namespace, Name: b.name}.String() }

// Transformer makes the Reflector keep reduced objects only while it collects
// the first ones.
func (s *sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.reduced(obj), nil }
}

// reduced reduces an object, whether or not it is reduced already.
func (s *sink) reduced(obj any) (out any) {
	if b, ok := obj.(broken); ok {
		return b
	}
	var b broken
	if meta, err := apimeta.Accessor(obj); err == nil {
		b = broken{meta.GetNamespace(), meta.GetName(), meta.GetAnnotations()[brokenMark]}
	}
	if b.why != "" {
		return b
	}
	defer func() {
		if r := recover(); r != nil {
			b.why = fmt.Sprint(r)
			out = b
		}
	}()
	return s.reduce(obj)
}

// report says once that an object is broken, and returns what stays of it.
func (s *sink) report(b broken, said map[string]string) any {
	last := s.last(b.namespace, b.name)
	if said[b.key()] != b.why {
		what := "an object is broken, and left out"
		if last != nil {
			what = "an object is broken, and stays as it was"
		}
		s.log.Error(what, "kind", s.name, "object", b.key(), "err", b.why)
	}
	if s.said == nil {
		s.said = map[string]string{}
	}
	s.said[b.key()] = b.why
	return last
}

// forget notes that an object is not broken any more.
func (s *sink) forget(key string) {
	if _, said := s.said[key]; said {
		delete(s.said, key)
		s.notifyBroken()
	}
}

// notifyBroken hands out what is broken.
func (s *sink) notifyBroken() {
	if s.onBroken != nil {
		s.onBroken(s.name, maps.Clone(s.said))
	}
}

func (s *sink) Add(obj any) error {
	key, _ := cache.MetaNamespaceKeyFunc(obj)
	switch obj := s.reduced(obj).(type) {
	case nil: // of another kind
	case broken:
		s.report(obj, s.said)
		s.notifyBroken()
	default:
		s.forget(key)
		s.set(obj)
	}
	return nil
}

func (s *sink) Update(obj any) error { return s.Add(obj) }

func (s *sink) Delete(obj any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	s.forget(key)
	s.remove(namespace, name)
	return nil
}

func (s *sink) Replace(all []any, _ string) error {
	said := s.said
	s.said = nil
	reduced := all[:0]
	for _, obj := range all {
		switch obj := s.reduced(obj).(type) {
		case nil:
		case broken:
			if last := s.report(obj, said); last != nil {
				reduced = append(reduced, last)
			}
		default:
			reduced = append(reduced, obj)
		}
	}
	if len(said)+len(s.said) > 0 {
		s.notifyBroken()
	}
	s.replace(reduced)
	s.synced()
	return nil
}

// Bookmark has nothing to do but to tell.
func (s *sink) Bookmark(string) error {
	s.marked()
	return nil
}

// Resync has nothing to do: all that arrived is in the Store.
func (s *sink) Resync() error { return nil }

// reducer makes a reduce of the conversion of a type.
func reducer[In, Out any](from func(*In) *Out) func(any) any {
	return func(obj any) any {
		switch obj := obj.(type) {
		case *In:
			return from(obj)
		case *Out:
			return obj
		case *reduced:
			return obj.object
		}
		return nil
	}
}

// stored returns what the Store has of an object; nil: nothing.
func stored[T any](from *Store, get func(*snapshot.Snapshot) *T) (out any) {
	from.View(func(s *snapshot.Snapshot) {
		if obj := get(s); obj != nil {
			out = obj
		}
	})
	return out
}

// typedAll gives a list back its type.
func typedAll[T any](all []any) []*T {
	out := make([]*T, len(all))
	for i, obj := range all {
		out[i] = obj.(*T)
	}
	return out
}

func (a *API) services() kind {
	return kind{
		name: "services", client: a.clients.core,
		options: func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = serviceLabels, serviceFields },
		typed:   typesOf[corev1.ServiceList, corev1.Service, snapshot.Service](),
		reduce:  reducer(snapshot.FromService),
		set:     func(obj any) { a.Store.SetService(obj.(*snapshot.Service)) },
		remove: func(namespace, name string) {
			a.Store.DeleteService(ir.Name{Namespace: namespace, Name: name})
		},
		last: func(namespace, name string) any {
			return stored(a.Store, func(s *snapshot.Snapshot) *snapshot.Service {
				return s.Service(ir.Name{Namespace: namespace, Name: name})
			})
		},
		replace: func(all []any) {
			a.Store.replace(a.Log, func(s *snapshot.Snapshot) snapshot.Dirty {
				return s.ReplaceServices(typedAll[snapshot.Service](all))
			})
		},
	}
}

func (a *API) slices() kind {
	return kind{
		name: "endpointslices", client: a.clients.discovery,
		options: func(o *metav1.ListOptions) { o.LabelSelector = sliceLabels },
		typed:   typesOf[discoveryv1.EndpointSliceList, discoveryv1.EndpointSlice, snapshot.EndpointSlice](),
		reduce:  reducer(snapshot.FromEndpointSlice),
		set:     func(obj any) { a.Store.SetSlice(obj.(*snapshot.EndpointSlice)) },
		remove: func(namespace, name string) {
			a.Store.DeleteSlice(ir.Name{Namespace: namespace, Name: name})
		},
		last: func(namespace, name string) any {
			return stored(a.Store, func(s *snapshot.Snapshot) *snapshot.EndpointSlice {
				return s.Slice(ir.Name{Namespace: namespace, Name: name})
			})
		},
		replace: func(all []any) {
			a.Store.replace(a.Log, func(s *snapshot.Snapshot) snapshot.Dirty {
				return s.ReplaceSlices(typedAll[snapshot.EndpointSlice](all))
			})
		},
	}
}

// ownNode is a Node with its state.
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
	var last any // nil: the server has none
	set := func(obj any) {
		n := obj.(*ownNode)
		if n.node.Name != a.NodeName { // a server, or a proxy before it, may ignore the selector
			return
		}
		last = obj
		a.Store.setNode(n.node)
		a.NodeState(&n.state)
		a.Condition.seen(true, n.condition)
	}
	gone := func() {
		last = nil
		a.NodeState(nil)
		a.Condition.seen(false, nil)
	}
	return kind{
		name: "nodes", client: a.clients.core, expected: &corev1.Node{},
		options: func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.NodeName).String()
		},
		typed:  typesOf[corev1.NodeList, corev1.Node, ownNode](),
		reduce: reducer(reduceNode),
		set:    set,
		remove: func(_, name string) {
			if name == a.NodeName {
				gone()
			}
		},
		last: func(_, name string) any {
			if name != a.NodeName {
				return nil
			}
			return last
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
	return kind{
		name: "servicecidrs", client: a.clients.networking, expected: &networkingv1.ServiceCIDR{},
		options: func(*metav1.ListOptions) {},
		typed:   typesOf[networkingv1.ServiceCIDRList, networkingv1.ServiceCIDR, snapshot.ServiceCIDR](),
		reduce:  reducer(snapshot.FromServiceCIDR),
		set:     func(obj any) { a.Store.setServiceCIDR(obj.(*snapshot.ServiceCIDR)) },
		remove:  func(_, name string) { a.Store.deleteServiceCIDR(name) },
		last: func(_, name string) any {
			return stored(a.Store, func(s *snapshot.Snapshot) *snapshot.ServiceCIDR { return s.ServiceCIDR(name) })
		},
		optional: true,
		replace: func(all []any) {
			a.Store.replace(a.Log, func(s *snapshot.Snapshot) snapshot.Dirty {
				return s.ReplaceServiceCIDRs(typedAll[snapshot.ServiceCIDR](all))
			})
		},
	}
}
