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
		case <-time.After(20 * time.Second):
			t.Fatalf("not sent: %+v", w)
		}
	}
}

// Of events about Services few are sent, and again some later; the node's own
// are not held up by them, and what was sent is not remembered for ever.
func TestEventsAreFew(t *testing.T) {
	posts := make(chan string, 10*mostSaid)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var e eventsv1.Event
		if err := json.Unmarshal(body, &e); err != nil || len(e.Note) > mostNote {
			t.Errorf("%v, a note of %d bytes", err, len(e.Note))
		}
		posts <- e.Regarding.Kind
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
	for i := range 3 * eventQueue { // nobody sends yet
		e.Send(Event{Service: name(fmt.Sprint(i)), Note: strings.Repeat("é", mostNote)})
	}
	done := make(chan struct{})
	go func() { defer close(done); e.run(t.Context(), c.events) }()
	t.Cleanup(func() { <-done })
	sent := func(what string, services, nodes int) {
		t.Helper()
		e.SendLast(t.Context(), Event{Reason: what})
		got := map[string]int{}
		for len(posts) > 0 {
			got[<-posts]++
		}
		if got["Service"] != services || got["Node"] != nodes {
			t.Errorf("%s: sent %v, want %d about Services and %d about the node", what, got, services, nodes)
		}
	}
	sent("all at once", serviceBurst, 1)
	now.Add(int64(2*serviceEvery/time.Second) + 1)
	for i := range 10 {
		e.Send(Event{Service: name(fmt.Sprint("late", i))})
	}
	sent("later", 2, 1)
	for i := range 2 * mostSaid {
		e.SendLast(t.Context(), Event{Reason: fmt.Sprint(i)})
	}
	if len(e.said) > mostSaid {
		t.Errorf("%d events are remembered", len(e.said))
	}
}

// SendLast waits for what is sent, and no longer than it may.
func TestSendLast(t *testing.T) {
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
	e.SendLast(brief, Event{Reason: "NobodySends"})
	if posted.Load() > 0 || brief.Err() == nil {
		t.Error("did not wait, though nobody sends")
	}
	done := make(chan struct{})
	go func() { defer close(done); e.run(t.Context(), c.events) }()
	t.Cleanup(func() { <-done })
	e.SendLast(t.Context(), Event{Reason: "Last"})
	if n := posted.Load(); n != 2 {
		t.Errorf("%d events sent, want both", n)
	}
	e.SendLast(t.Context(), Event{Reason: "Last"}) // is not sent again, and does not wait for that
}

// Without an API server there is nobody to tell.
func TestNoEvents(t *testing.T) {
	var e *Events
	e.Send(Event{Reason: "Starting"})
	e.SendLast(t.Context(), Event{Reason: "Last"})
}
