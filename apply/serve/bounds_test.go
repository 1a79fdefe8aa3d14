package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/ir"
)

// named is a connection with a name.
type named struct {
	net.Conn
	name string
}

// If there are too many connections, the one without a request for longest is closed.
func TestCrowd(t *testing.T) {
	conns := map[string]*named{}
	c := newConnections(3)
	for _, step := range []struct {
		conn  string
		state http.ConnState
		want  string // closed connection
	}{
		{"a", http.StateNew, ""},
		{"b", http.StateNew, ""},
		{"c", http.StateNew, ""},
		{"a", http.StateActive, ""},
		{"a", http.StateIdle, ""}, // it received a response
		{"d", http.StateNew, "b"},
		{"b", http.StateClosed, ""},
		{"c", http.StateActive, ""}, // starts a request, and does not complete it
		{"e", http.StateNew, "c"},
		{"c", http.StateIdle, ""}, // too late
		{"d", http.StateClosed, ""},
		{"f", http.StateNew, ""},
		{"g", http.StateNew, "a"},
	} {
		if conns[step.conn] == nil {
			conns[step.conn] = &named{name: step.conn}
		}
		got := ""
		if conn := c.note(conns[step.conn], step.state); conn != nil {
			got = conn.(*named).name
		}
		if got != step.want {
			t.Errorf("%s is %s: %q goes, want %q", step.conn, step.state, got, step.want)
		}
	}
	if c.queue.Len() != 3 || len(c.at) != 3 {
		t.Errorf("%d in the queue, %d known, want 3", c.queue.Len(), len(c.at))
	}
}

// started returns the address of a running server.
func started(t *testing.T, s *Server) net.Addr {
	t.Helper()
	at := make(chan net.Addr, 1)
	s.Log, s.Listening = quiet(), func(a net.Addr) { at <- a }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return <-at
}

// get sends a request over a new connection.
func get(t *testing.T, at net.Addr, host, path string) (code int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Clients that send endless headers or hold connections use little memory, and do not block others.
func TestServerUnfinishedHeaders(t *testing.T) {
	h := NewHealth(timeout, newClock().now)
	at := started(t, &Server{Name: "healthz server", Addr: "127.0.0.1:0", Handler: h.Handler(NewMetrics(ir.ModeNFTables, "test", false))})
	before := inUse()
	header := "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 900<<10)
	for range 300 {
		conn, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // the connection is closed, or the server stops reading
		io.WriteString(conn, header)
	}
	if grown := int64(inUse()) - int64(before); grown > 16<<20 {
		t.Errorf("%d MiB more in use", grown>>20)
	}
	if code, body := get(t, at, "localhost", "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
}

// inUse returns the memory in use, including that of earlier tests.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// A slow client is disconnected.
func TestServerSlowClient(t *testing.T) {
	t.Parallel()
	at := started(t, &Server{Name: "server", Addr: "127.0.0.1:0", Handler: http.NotFoundHandler()})
	for _, tc := range []struct {
		name, begin string
		limit       time.Duration
	}{
		{"headers", "GET / HTTP/1.1\r\nHost: localhost\r\n", headerTimeout},
		{"body", "PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", readTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, tc.begin)
			conn.SetReadDeadline(time.Now().Add(tc.limit + 2*time.Minute))
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("the connection is open after %s: %v", tc.limit, err)
			}
		})
	}
}

// Of a long body only as much is read as a request may need.
func TestServerLongBody(t *testing.T) {
	var got int64
	at := started(t, &Server{Name: "server", Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if got = n; err == nil {
			t.Error("all of it is read")
		}
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})})
	conn, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", 10<<20)
	go io.WriteString(conn, strings.Repeat("x", 10<<20)) // until the connection is closed
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got > maxBody {
		t.Errorf("%d bytes are read, want at most %d", got, maxBody)
	}
}

// Profiles may take longer than other responses.
func TestServerProfile(t *testing.T) {
	server := newHTTPServer(nil, quiet(), newConnections(1))
	if server.WriteTimeout != 0 { // net/http/pprof rejects longer profiles
		t.Errorf("WriteTimeout is %s", server.WriteTimeout)
	}
	release := make(chan struct{})
	at := started(t, &Server{Name: "server", Addr: "127.0.0.1:0", Handler: profileTimed(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			t.Error("it is cut")
		case <-release:
		}
	})})
	t.Parallel()
	time.AfterFunc(readTimeout+time.Second, func() { close(release) })
	if code, _ := get(t, at, "localhost", "/"); code != http.StatusOK {
		t.Errorf("code %d", code)
	}
}

func TestOnlyOurs(t *testing.T) {
	for _, tc := range []struct {
		host string
		want bool
	}{
		{"127.0.0.1:10249", true}, {"127.0.0.1", true}, {"[::1]:10249", true}, {"[::1]", true}, {"192.0.2.1:80", true},
		{"localhost", true}, {"localhost:10249", true}, {"LocalHost.", true}, {"Node1:10249", true}, {"node1.example.com", true}, {"", true},
		{"evil.example", false}, {"evil.example:10249", false}, {"node1.evil.example", false}, {"127.0.0.1.evil.example", false}, {"localhost.evil.example:1", false}, {"[", true},
	} {
		h := rejectForeignHosts(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}), []string{"node1", "node1.example.com"})
		for local, want := range map[string]bool{"127.0.0.1:10249": tc.want, "[::1]:10249": tc.want, "[::ffff:127.0.0.1]:10249": tc.want, "192.0.2.1:10249": true} {
			r, err := http.NewRequest(http.MethodGet, "/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = tc.host
			r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local))))
			w := &codeOnly{code: http.StatusOK}
			h.ServeHTTP(w, r)
			if got := w.code == http.StatusOK; got != want {
				t.Errorf("host %q at %s: answered: %t, want %t", tc.host, local, got, want)
			}
		}
	}
}

type codeOnly struct{ code int }

func (*codeOnly) Header() http.Header         { return http.Header{} }
func (*codeOnly) Write(p []byte) (int, error) { return len(p), nil }
func (w *codeOnly) WriteHeader(code int)      { w.code = code }

// Each server checks the Host header.
func TestServersRefuseHosts(t *testing.T) {
	at := started(t, &Server{Name: "server", Addr: "127.0.0.1:0", Hosts: []string{"node1"},
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	check := &HealthChecks{Family: ir.IPv4, Health: NewHealth(timeout, newClock().now), Log: quiet(), Hosts: []string{"node1"},
		Failed: func(_ ir.Name, _ uint16, err error) { t.Error(err) }}
	t.Cleanup(check.Close)
	port := freePort(t)
	check.Sync([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, map[ir.Name]ir.HealthCheck{{Namespace: "ns", Name: "web"}: {Port: port, Local: 1}})
	for _, at := range []net.Addr{at, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}} {
		for host, want := range map[string]int{"node1": 200, "evil.example": 421} {
			if code, body := get(t, at, host, "/"); code != want {
				t.Errorf("%s as %s: %d %q, want %d", at, host, code, body, want)
			}
		}
	}
}

// A server that lacks file descriptors logs an error a second. Most are left out.
func TestRepeatedServerErrors(t *testing.T) {
	var out strings.Builder
	l := newHTTPServer(http.NotFoundHandler(), slog.New(slog.NewTextHandler(&out, nil)), newConnections(within(maxConns, connsPart))).ErrorLog
	for range 1000 {
		l.Print("http: Accept error: too many open files; retrying in 1s")
	}
	l.Print("http: another error")
	if n := strings.Count(out.String(), "too many open files"); n != 10 || strings.Count(out.String(), "another error") != 1 {
		t.Errorf("%d lines:\n%s", n, &out)
	}
}
