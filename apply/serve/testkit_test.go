package serve

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"
)

// clock is a clock that a test sets.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)} }

func (c *clock) now() time.Time              { return c.t }
func (c *clock) advance(d time.Duration)     { c.t = c.t.Add(d) }
func stamp(c *clock, d time.Duration) string { return c.t.Add(d).Format(time.RFC3339Nano) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// answer is the tested part of a response.
type answer struct {
	Code int
	Type string
	Body string
}

// ask sends a request to a handler.
func ask(h http.Handler, method, target string, body io.Reader, header ...string) answer {
	r := httptest.NewRequest(method, target, body)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Header().Get("Content-Type"), w.Body.String()}
}

// freePort returns a free TCP port.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l := occupy(t, "127.0.0.1:0")
	l.Close()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

func occupy(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
