package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/ir"
)

func TestEvents(t *testing.T) {
	type post struct {
		Path, Kind, Name, Type, Reason, Note string
	}
	posts := make(chan post, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var e eventsv1.Event
		if err := json.Unmarshal(body, &e); err != nil {
			t.Error(err)
		}
		posts <- post{r.URL.Path, e.Regarding.Kind, e.Regarding.Name, e.Type, e.Reason, e.Note}
		w.Header().Set("Content-Type", "application/json")
		w.Write(body)
	}))
	t.Cleanup(server.Close)
	c, err := newClients(&rest.Config{Host: server.URL}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	e := NewEvents("node1", slog.New(slog.NewTextHandler(t.Output(), nil)), time.Now)
	done := make(chan struct{})
	go func() { defer close(done); e.run(t.Context(), c.events) }()
	t.Cleanup(func() { <-done })

	failed := Event{Service: name("a"), Warning: true, Reason: "FailedToStartServiceHealthcheck", Note: "no port"}
	for _, event := range []Event{{Reason: "Starting"}, failed, failed, {Reason: "Other"}} {
		e.Send(event)
	}
	want := []post{
		{"/apis/events.k8s.io/v1/namespaces/default/events", "Node", "node1", "Normal", "Starting", ""},
		{"/apis/events.k8s.io/v1/namespaces/ns/events", "Service", "a", "Warning", "FailedToStartServiceHealthcheck", "no port"},
		{"/apis/events.k8s.io/v1/namespaces/default/events", "Node", "node1", "Normal", "Other", ""},
	}
	for _, w := range want {
		select {
		case got := <-posts:
			if diff := cmp.Diff(w, got); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("not sent: %+v", w)
		}
	}
}

// Few events about Services are sent. Each namespace has only its share, and may send again later.
// The node's own events are not blocked by them, and the set of sent events is bounded.
func TestEventsAreFew(t *testing.T) {
	posts := make(chan string, 10*maxSent)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var e eventsv1.Event
		if err := json.Unmarshal(body, &e); err != nil || len(e.Note) > maxNote {
			t.Errorf("%v, a note of %d bytes", err, len(e.Note))
		}
		posts <- e.Regarding.Kind + " " + e.Regarding.Namespace
		w.Header().Set("Content-Type", "application/json")
		w.Write(body)
	}))
	t.Cleanup(server.Close)
	c, err := newClients(&rest.Config{Host: server.URL, QPS: -1}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Int64
	e := NewEvents("node1", slog.New(slog.NewTextHandler(t.Output(), nil)), func() time.Time { return time.Unix(now.Load(), 0) })
	send := func(namespace string, i int) {
		e.Send(Event{Service: ir.Name{Namespace: namespace, Name: fmt.Sprint(i)}, Note: strings.Repeat("é", maxNote)})
	}
	for i := range 3 * eventQueue { // nothing sends yet
		send("a-tenant", i)
	}
	for i := range 3 * eventQueue {
		send(fmt.Sprint("shop", i), i)
	}
	done := make(chan struct{})
	go func() { defer close(done); e.run(t.Context(), c.events) }()
	t.Cleanup(func() { <-done })
	sent := func(what string, tenant, others int) {
		t.Helper()
		e.SendAndWait(t.Context(), Event{Reason: what})
		got := map[string]int{}
		for len(posts) > 0 {
			kind, namespace, _ := strings.Cut(<-posts, " ")
			if strings.HasPrefix(namespace, "shop") {
				namespace = "shop"
			}
			got[kind+" "+namespace]++
		}
		if got["Service a-tenant"] != tenant || got["Service shop"] != others || got["Node "] != 1 {
			t.Errorf("%s: sent %v, want %d about one namespace's Services, %d about others' and 1 about the node", what, got, tenant, others)
		}
	}
	sent("all at once", serviceBurst/serviceShare, serviceBurst-serviceBurst/serviceShare)
	later := func(what string, by time.Duration, tenant, others int) {
		now.Add(int64(by/time.Second) + 1)
		for i := range 10 {
			send("a-tenant", int(now.Load())+i)
			e.SendAndWait(t.Context(), Event{Service: ir.Name{Namespace: "a-tenant", Name: "waited for"}}) // or drops it: the queue is empty then
		}
		for i := range 10 {
			send(fmt.Sprint("shop", i), int(now.Load())+i)
		}
		sent(what, tenant, others)
	}
	later("later", 2*serviceEvery, 0, 2)
	later("and later", serviceShare*serviceEvery, 1, serviceShare-1)
	for i := range 2 * maxSent {
		e.SendAndWait(t.Context(), Event{Reason: fmt.Sprint(i)})
	}
	if len(e.sent) > maxSent {
		t.Errorf("%d events are remembered", len(e.sent))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) > 0 {
		t.Errorf("waiting events after all were sent: %v", e.waiting)
	}
}

// SendAndWait waits until the event was sent, or ctx ends.
func TestSendAndWait(t *testing.T) {
	var posted atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		posted.Add(1)
		w.Header().Set("Content-Type", "application/json")
		io.Copy(w, r.Body)
	}))
	t.Cleanup(server.Close)
	c, err := newClients(&rest.Config{Host: server.URL}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	e := NewEvents("node1", slog.New(slog.NewTextHandler(t.Output(), nil)), time.Now)
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	e.SendAndWait(brief, Event{Reason: "NobodySends"})
	if posted.Load() > 0 || brief.Err() == nil {
		t.Error("did not wait, though nobody sends")
	}
	done := make(chan struct{})
	go func() { defer close(done); e.run(t.Context(), c.events) }()
	t.Cleanup(func() { <-done })
	e.SendAndWait(t.Context(), Event{Reason: "Last"})
	if n := posted.Load(); n != 2 {
		t.Errorf("%d events sent, want both", n)
	}
	e.SendAndWait(t.Context(), Event{Reason: "Last"}) // a duplicate is not sent, and SendAndWait still returns
}

// Without an API server events are ignored.
func TestNoEvents(t *testing.T) {
	var e *Events
	e.Send(Event{Reason: "Starting"})
	e.SendAndWait(t.Context(), Event{Reason: "Last"})
}
