package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// bindRetry is the wait after an address could not be bound.
const bindRetry = 5 * time.Second

// Server is an HTTP server at a configured address.
type Server struct {
	Name    string // for messages: "healthz server"
	Addr    string // IP:port or unix:PATH; empty disables the server. 0.0.0.0 and [::] both are all addresses of both families
	Handler http.Handler
	// Hosts are the names of this node, in lower case, that requests to loopback addresses may use,
	// besides addresses and localhost.
	Hosts []string
	// HardFail makes Run return an error if the address cannot be bound or the server fails
	// (bindAddressHardFail). Otherwise Run retries every 5 s. Attempts 1, 2, 4, 8 and so on that fail
	// with the same error are logged.
	HardFail bool
	Log      *slog.Logger
	// After waits between attempts; time.After if nil.
	After func(time.Duration) <-chan time.Time
	// Listening is optional. It is called with the address each time it was bound.
	Listening func(net.Addr)
	// Down is optional. It is called with each error that keeps the server from serving, and with nil
	// when it serves.
	Down func(error)
}

// Run serves until ctx ends. It then closes all connections without waiting for clients. The error
// is always nil without HardFail.
func (s *Server) Run(ctx context.Context) error {
	if s.Addr == "" {
		return nil
	}
	after := s.After
	if after == nil {
		after = time.After
	}
	var failed attempts
	for {
		err := s.serve(ctx, &failed)
		if ctx.Err() != nil {
			return nil
		}
		if s.Down != nil {
			s.Down(err)
		}
		err = fmt.Errorf("%s: %w", s.Name, err)
		if s.HardFail {
			return err
		}
		if failed.add(err) {
			s.Log.Error(err.Error(), "retry", bindRetry, "failed", failed.n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-after(bindRetry):
		}
	}
}

// attempts counts consecutive attempts that fail with the same error.
type attempts struct {
	n      int
	reason string
}

// add counts a failed attempt, and reports whether to log it.
func (a *attempts) add(err error) bool {
	if reason := err.Error(); reason != a.reason {
		*a = attempts{reason: reason}
	}
	a.n++
	return a.n&(a.n-1) == 0
}

// serve binds the address once, and serves until ctx ends or the server fails.
func (s *Server) serve(ctx context.Context, failed *attempts) error {
	l, err := listen(ctx, s.Addr)
	if err != nil {
		return err
	}
	server := newHTTPServer(rejectForeignHosts(s.Handler, s.Hosts), s.Log, newConnections(within(maxConns, connsPart)))
	if failed.n > 0 {
		s.Log.Info(s.Name+": listens", "address", l.Addr().String(), "after failures", failed.n)
		*failed = attempts{}
	}
	if s.Listening != nil {
		s.Listening(l.Addr())
	}
	if s.Down != nil {
		s.Down(nil)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
		server.Close() // this also ends the contexts of requests, such as long profiles
		<-ended
		return nil
	}
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return ListenUnix(ctx, path)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}
