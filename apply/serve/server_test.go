package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// run starts a server and returns a channel for the result of Run.
func run(ctx context.Context, s *Server) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return done
}

func TestServerRetriesToBind(t *testing.T) {
	l := occupy(t, "127.0.0.1:0")
	asked, again := make(chan time.Duration), make(chan time.Time)
	bound := make(chan net.Addr, 1)
	s := &Server{
		Name:    "healthz server",
		Addr:    l.Addr().String(),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }),
		Log:     quiet(),
		After: func(d time.Duration) <-chan time.Time {
			asked <- d
			return again
		},
		Listening: func(a net.Addr) { bound <- a },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, s)
	for range 2 { // the second time the address is in use again
		if d := <-asked; d != 5*time.Second {
			t.Errorf("waits for %v, want 5s", d)
		}
		again <- time.Time{}
	}
	<-asked
	l.Close()
	again <- time.Time{}
	if got, want := (<-bound).String(), s.Addr; got != want {
		t.Errorf("bound: got %s, want %s", got, want)
	}
	resp, err := http.Get("http://" + s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if d := cmp.Diff("hello", string(body)); d != "" {
		t.Errorf("body (-want +got):\n%s", d)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: got error %v, want none after its context ended", err)
	}
	if conn, err := net.Dial("tcp", s.Addr); err == nil {
		conn.Close()
		t.Error("still listens after Run")
	}
}

func TestServerEndsWhileItWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, &Server{
		Name: "metrics server",
		Addr: occupy(t, "127.0.0.1:0").Addr().String(),
		Log:  quiet(),
		After: func(time.Duration) <-chan time.Time {
			cancel()
			return nil
		},
	})
	if err := <-done; err != nil {
		t.Errorf("Run: got error %v, want none", err)
	}
}

func TestServerHardFail(t *testing.T) {
	s := &Server{
		Name:     "metrics server",
		Addr:     occupy(t, "127.0.0.1:0").Addr().String(),
		HardFail: true,
		Log:      quiet(),
		After: func(time.Duration) <-chan time.Time {
			t.Error("waits to try again")
			return nil
		},
	}
	err := s.Run(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "metrics server: listen tcp "+s.Addr) {
		t.Errorf("Run: got error %v", err)
	}
}

func TestServerTurnedOff(t *testing.T) {
	if err := (&Server{Name: "healthz server", HardFail: true, Log: quiet()}).Run(t.Context()); err != nil {
		t.Errorf("Run without an address: got error %v", err)
	}
}

// Shutdown does not wait for clients, and ends the contexts of long requests.
func TestServerEndsWithOpenRequests(t *testing.T) {
	bound, asked, left := make(chan net.Addr, 1), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, &Server{
		Name: "metrics server",
		Addr: "127.0.0.1:0",
		Log:  quiet(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(asked)
			<-r.Context().Done()
			close(left)
		}),
		Listening: func(a net.Addr) { bound <- a },
	})
	conn, err := net.Dial("tcp", (<-bound).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-asked
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: got error %v", err)
	}
	<-left
	io.Copy(io.Discard, conn) // must end
}

// An unspecified IPv4 address includes both families, as kube-proxy's default 0.0.0.0:10256 does on
// dual-stack nodes.
func TestServerListensOnBothFamilies(t *testing.T) {
	bound := make(chan net.Addr, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, &Server{
		Name: "healthz server", Addr: "0.0.0.0:0", Log: quiet(),
		Handler:   http.NotFoundHandler(),
		Listening: func(a net.Addr) { bound <- a },
	})
	_, port, _ := net.SplitHostPort((<-bound).String())
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Error(err)
			continue
		}
		conn.Close()
	}
	cancel()
	<-done
}

// A continuing failure is logged at growing intervals, and its end is logged.
func TestServerLogsLess(t *testing.T) {
	taken := occupy(t, "127.0.0.1:0")
	var log strings.Builder
	tries := 0
	again := make(chan time.Time)
	close(again)
	ctx, cancel := context.WithCancel(t.Context())
	err := (&Server{Name: "metrics server", Addr: taken.Addr().String(), Handler: http.NotFoundHandler(),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		After: func(time.Duration) <-chan time.Time {
			if tries++; tries == 1000 {
				taken.Close()
			}
			return again
		},
		Listening: func(net.Addr) { cancel() },
	}).Run(ctx)
	if err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "address already in use"); n != 10 {
		t.Errorf("of 1000 failures %d are logged, want 10", n)
	}
	if want := "metrics server: listens"; !strings.Contains(log.String(), want) {
		t.Errorf("not logged: %q", want)
	}
}

// Down receives the reason why a server does not serve, and nil when it does.
func TestServerTellsThatItIsDown(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reports, again := make(chan error), make(chan time.Time)
	ctx, cancel := context.WithCancel(t.Context())
	done := run(ctx, &Server{Name: "healthz server", Addr: taken.Addr().String(), Log: quiet(), Handler: http.NotFoundHandler(),
		After: func(time.Duration) <-chan time.Time { return again }, Down: func(err error) { reports <- err }})
	for range 2 {
		if err := <-reports; err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("reported %v while another program holds the port", err)
		}
		again <- time.Time{}
	}
	if err := <-reports; err == nil {
		t.Error("reported that it serves")
	}
	taken.Close()
	again <- time.Time{}
	if err := <-reports; err != nil {
		t.Errorf("reported %v after the port is free", err)
	}
	cancel()
	<-done
}
