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
// sent is logged, and what comes too fast is dropped. About Services it sends
// few, since their authors decide how many there are: serviceBurst at once, and
// one each serviceEvery after that; about those of one namespace, so that nobody keeps
// others from being told, a part of these. A nil one does nothing.
type Events struct {
	NodeName string
	Log      *slog.Logger
	Now      func() time.Time

	queue chan queued
	said  map[Event]bool // at most mostSaid

	all Budget            // of events about Services
	of  map[string]Budget // of those of a namespace that has not all of its own

	mu      sync.Mutex
	waiting map[string]int // events about Services of a namespace, in queue
}

// queued is an event that waits to be sent.
type queued struct {
	Event
	done chan<- struct{} // closed when that was tried; nil: nobody waits
}

const (
	eventQueue = 100 // events that may wait
	mostSaid   = 1000
	mostNote   = 1024 // bytes, as the API server has it

	serviceBurst = 25
	serviceEvery = 30 * time.Second
	serviceShare = 5 // a namespace has one part in as many of each
)

// NewEvents makes an Events that sends when Run runs.
func NewEvents(nodeName string, log *slog.Logger, now func() time.Time) *Events {
	return &Events{NodeName: nodeName, Log: log, Now: now, queue: make(chan queued, eventQueue), of: map[string]Budget{}, waiting: map[string]int{}}
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

// send reports whether the event was queued.
func (e *Events) send(event queued) bool {
	if e == nil {
		return false
	}
	of := event.Service.Namespace
	e.mu.Lock()
	defer e.mu.Unlock()
	// Leave room for the node's own, and for other namespaces.
	if event.Service != (ir.Name{}) && (len(e.queue) >= eventQueue/2 || e.waiting[of] >= serviceBurst/serviceShare) {
		e.drop(event.Event)
		return false
	}
	select {
	case e.queue <- event:
		e.waiting[of]++
		return true
	default:
		e.Log.Warn("too many events", "reason", event.Reason, "note", event.Note)
		return false
	}
}

// drop reports that there are too many events about Services. Who sends them
// has logged what they say.
func (e *Events) drop(event Event) {
	e.Log.Debug("an event too many", "service", event.Service.String(), "reason", event.Reason, "note", event.Note)
}

// run sends until ctx ends.
func (e *Events) run(ctx context.Context, client rest.Interface) {
	e.said = map[Event]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			e.taken(event.Service.Namespace)
			if !e.said[event.Event] && e.affordable(event.Event) {
				if len(e.said) >= mostSaid {
					clear(e.said)
				}
				e.said[event.Event] = true
				e.post(ctx, client, e.object(event.Event))
			}
			if event.done != nil {
				close(event.done)
			}
		}
	}
}

// affordable reports whether an event may be sent now, and counts it.
func (e *Events) affordable(event Event) bool {
	if event.Service == (ir.Name{}) {
		return true
	}
	now, of := e.Now(), event.Service.Namespace
	maps.DeleteFunc(e.of, func(_ string, b Budget) bool { return b.at(now, serviceShare*serviceEvery).spent == 0 })
	all, part := e.all.at(now, serviceEvery), e.of[of].at(now, serviceShare*serviceEvery)
	if all.spent >= serviceBurst || part.spent >= serviceBurst/serviceShare {
		e.drop(event)
		return false
	}
	all.spent++
	part.spent++
	e.all, e.of[of] = all, part
	return true
}

// taken notes that an event waits no longer.
func (e *Events) taken(of string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting[of]--; e.waiting[of] == 0 {
		delete(e.waiting, of)
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
		Note:                cut(event.Note, mostNote),
		Type:                kind,
	}
}

// cut shortens a text to a number of bytes, between characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const more = "…"
	for most -= len(more); most > 0 && !utf8.RuneStart(s[most]); most-- {
	}
	return s[:most] + more
}
