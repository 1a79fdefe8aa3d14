package watch

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Concurrent first requests share one connection.
func TestOneConnection(t *testing.T) {
	var made, asked atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	c, err := newClients(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	all := []rest.Interface{c.core, c.discovery, c.networking, c.events}
	var running sync.WaitGroup
	for i := range 40 {
		running.Go(func() {
			if err := all[i%len(all)].Get().Resource("things").Do(t.Context()).Error(); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if made.Load() != 1 || asked.Load() != 40 {
		t.Errorf("%d connections for %d requests, want 1 for 40", made.Load(), asked.Load())
	}
}

// Requests ask for uncompressed responses.
func TestNoCompression(t *testing.T) {
	asked := make(chan http.Header, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header }))
	defer server.Close()
	c, err := newClients(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.core.Get().Resource("things").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	if encoding := (<-asked).Get("Accept-Encoding"); encoding != "" && encoding != "identity" {
		t.Errorf("Accept-Encoding: got %q, want none", encoding)
	}
}

// A failed first request does not block the others.
func TestFirstFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	c, err := newClients(&rest.Config{Host: server.URL}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.core.Get().Resource("things").Do(t.Context()).Error(); err == nil {
			t.Error("nobody listens, but there is an answer")
		}
	}
}
