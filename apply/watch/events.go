package watch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/ir"
)

// Reporter is the name of the component that reports events. It is kube-proxy's, since people and
// programs search for it.
const Reporter = "kube-proxy"

// Event is the content of a Kubernetes event.
type Event struct {
	Service ir.Name // the object it is about; zero for the node
	Warning bool
	Reason  string // "Starting"
	Action  string // "StartKubeProxy"
	Note    string
}

// Events sends Events to the API server. Sending never blocks: events that cannot be sent are
// logged, and those above the limits are dropped.
//
// Events about Services are limited to a burst of serviceBurst and one each serviceEvery, since the
// authors of Services decide how many there are. Each namespace has a share of 1/serviceShare, so
// that it cannot use up the limit of the others. The methods of a nil Events do nothing.
type Events struct {
	NodeName string
	Log      *slog.Logger
	Now      func() time.Time

	queue chan queued
	sent  map[Event]bool // events already sent; at most maxSent

	total       Budget            // of events about Services
	byNamespace map[string]Budget // of namespaces that have used some of their share

	mu      sync.Mutex
	waiting map[string]int // queued events about Services, by namespace
}

// queued is an event in the queue.
type queued struct {
	Event
	done chan<- struct{} // closed after the attempt to send; optional
}

const (
	eventQueue = 100 // length of the queue
	maxSent    = 1000
	maxNote    = 1024 // bytes; limit of the API

	serviceBurst = 25
	serviceEvery = 30 * time.Second
	serviceShare = 5 // each namespace has 1/serviceShare of the limits
)

// NewEvents returns an Events. It sends while API.Run runs.
func NewEvents(nodeName string, log *slog.Logger, now func() time.Time) *Events {
	return &Events{NodeName: nodeName, Log: log, Now: now, queue: make(chan queued, eventQueue), byNamespace: map[string]Budget{}, waiting: map[string]int{}}
}

// Send queues an event. An event that equals an earlier one is not sent again.
func (e *Events) Send(event Event) { e.send(queued{Event: event}) }

// SendAndWait queues an event and waits until it and all events before it were tried, or ctx ends.
func (e *Events) SendAndWait(ctx context.Context, event Event) {
	done := make(chan struct{})
	if !e.send(queued{event, done}) {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// send reports whether the event was queued.
func (e *Events) send(event queued) bool {
	if e == nil {
		return false
	}
	of := event.Service.Namespace
	e.mu.Lock()
	defer e.mu.Unlock()
	// Leave room for events about the node, and for other namespaces.
	if event.Service != (ir.Name{}) && (len(e.queue) >= eventQueue/2 || e.waiting[of] >= serviceBurst/serviceShare) {
		e.drop(event.Event)
		return false
	}
	select {
	case e.queue <- event:
		e.waiting[of]++
		return true
	default:
		e.Log.Warn("the event queue is full", "reason", event.Reason, "note", event.Note)
		return false
	}
}

// drop logs an event above the limits at debug level. The sender has already logged its content.
func (e *Events) drop(event Event) {
	e.Log.Debug("an event exceeds the limits", "service", event.Service.String(), "reason", event.Reason, "note", event.Note)
}

// run sends events until ctx ends.
func (e *Events) run(ctx context.Context, client rest.Interface) {
	e.sent = map[Event]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			e.dequeued(event.Service.Namespace)
			if !e.sent[event.Event] && e.allow(event.Event) {
				if len(e.sent) >= maxSent {
					clear(e.sent)
				}
				e.sent[event.Event] = true
				e.post(ctx, client, e.object(event.Event))
			}
			if event.done != nil {
				close(event.done)
			}
		}
	}
}

// allow reports whether the limits allow an event now, and counts it.
func (e *Events) allow(event Event) bool {
	if event.Service == (ir.Name{}) {
		return true
	}
	now, of := e.Now(), event.Service.Namespace
	maps.DeleteFunc(e.byNamespace, func(_ string, b Budget) bool { return b.refilled(now, serviceShare*serviceEvery).spent == 0 })
	all, part := e.total.refilled(now, serviceEvery), e.byNamespace[of].refilled(now, serviceShare*serviceEvery)
	if all.spent >= serviceBurst || part.spent >= serviceBurst/serviceShare {
		e.drop(event)
		return false
	}
	all.spent++
	part.spent++
	e.total, e.byNamespace[of] = all, part
	return true
}

// dequeued removes an event from the count of waiting ones.
func (e *Events) dequeued(of string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[of]--; e.waiting[of] == 0 {
		delete(e.waiting, of)
	}
}

func (e *Events) post(ctx context.Context, client rest.Interface, object *eventsv1.Event) {
	err := client.Post().Namespace(object.Namespace).Resource("events").Body(object).Do(ctx).Error()
	if err != nil && ctx.Err() == nil {
		e.Log.Warn("an event cannot be sent", "reason", object.Reason, "err", err)
	}
}

// object returns the API object of an event. Like kube-proxy's, it refers to its subject without a
// UID.
func (e *Events) object(event Event) *eventsv1.Event {
	about := corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: e.NodeName}
	namespace := metav1.NamespaceDefault
	if event.Service != (ir.Name{}) {
		about = corev1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: event.Service.Namespace, Name: event.Service.Name}
		namespace = event.Service.Namespace
	}
	kind := corev1.EventTypeNormal
	if event.Warning {
		kind = corev1.EventTypeWarning
	}
	now := e.Now()
	return &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", strings.ToLower(about.Name), now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: Reporter,
		ReportingInstance:   Reporter + "-" + e.NodeName,
		Action:              event.Action,
		Reason:              event.Reason,
		Regarding:           about,
		Note:                truncate(event.Note, maxNote),
		Type:                kind,
	}
}

// truncate shortens a string to at most most bytes, at a character boundary.
func truncate(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const more = "…"
	for most -= len(more); most > 0 && !utf8.RuneStart(s[most]); most-- {
	}
	return s[:most] + more
}
