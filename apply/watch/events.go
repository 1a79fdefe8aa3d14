package watch

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/ir"
)

// Reporter is the name under which events are sent: kube-proxy's, since people
// and programs look for it.
const Reporter = "kube-proxy"

// Event is something that is told in the cluster.
type Event struct {
	Service ir.Name // what it is about; zero: the node
	Warning bool
	Reason  string // "Starting"
	Action  string // "StartKubeProxy"
	Note    string
}

// Events sends Events to the API server. Sending never waits: what cannot be
// sent is logged, and what comes too fast is dropped. A nil one does nothing.
type Events struct {
	NodeName string
	Log      *slog.Logger
	Now      func() time.Time

	queue chan queued
	said  map[Event]bool
}

// queued is an event that waits to be sent.
type queued struct {
	Event
	done chan<- struct{} // closed when that was tried; nil: nobody waits
}

// eventQueue is how many events may wait.
const eventQueue = 100

// NewEvents makes an Events that sends when Run runs.
func NewEvents(nodeName string, log *slog.Logger, now func() time.Time) *Events {
	return &Events{NodeName: nodeName, Log: log, Now: now, queue: make(chan queued, eventQueue)}
}

// Send sends an event, soon. What was sent before is not sent again.
func (e *Events) Send(event Event) { e.send(queued{Event: event}) }

// SendLast sends an event and waits until that was tried, all events before it
// included, or ctx ends.
func (e *Events) SendLast(ctx context.Context, event Event) {
	done := make(chan struct{})
	if !e.send(queued{event, done}) {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// send tells whether the event was queued.
func (e *Events) send(event queued) bool {
	if e == nil {
		return false
	}
	select {
	case e.queue <- event:
		return true
	default:
		e.Log.Warn("too many events", "reason", event.Reason, "note", event.Note)
		return false
	}
}

// run sends until ctx ends.
func (e *Events) run(ctx context.Context, client rest.Interface) {
	e.said = map[Event]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			if !e.said[event.Event] {
				e.said[event.Event] = true
				e.post(ctx, client, e.object(event.Event))
			}
			if event.done != nil {
				close(event.done)
			}
		}
	}
}

func (e *Events) post(ctx context.Context, client rest.Interface, object *eventsv1.Event) {
	err := client.Post().Namespace(object.Namespace).Resource("events").Body(object).Do(ctx).Error()
	if err != nil && ctx.Err() == nil {
		e.Log.Warn("an event was not taken", "reason", object.Reason, "err", err)
	}
}

// object is an event as the API has it, about an object without its UID, as
// kube-proxy's are.
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
		Note:                event.Note,
		Type:                kind,
	}
}
