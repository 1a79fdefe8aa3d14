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

// bindRetry is how long to wait after an address could not be bound.
const bindRetry = 5 * time.Second

// Server is an HTTP server at a configured address.
type Server struct {
	Name    string // for messages: "healthz server"
	Addr    string // IP:port or unix:PATH; empty: the server is turned off. 0.0.0.0 and [::] both stand for all addresses of both families
	Handler http.Handler
	// Hosts are the names of this node, in lower case, under which requests at
	// loopback addresses are answered; addresses and localhost are, too.
	Hosts []string
	// HardFail ends Run when the address cannot be bound, or the server fails
	// later (bindAddressHardFail). Otherwise it is tried again every 5 s. The log
	// has the attempts 1, 2, 4, 8 and so on that fail for the same reason.
	HardFail bool
	Log      *slog.Logger
	// After waits between attempts; nil is time.After.
	After func(time.Duration) <-chan time.Time
	// Listening, if set, is told the address whenever it was bound.
	Listening func(net.Addr)
	// Down, if set, is told each time why nothing is served, and nil when it is.
	Down func(error)
}

// Run serves until ctx ends, and then closes what is open without waiting for
// clients. The error is nil unless HardFail asks for one.
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

// attempts counts attempts in a row that fail for one reason.
type attempts struct {
	n      int
	reason string
}

// add counts one, and reports whether to log it.
func (a *attempts) add(err error) bool {
	if reason := err.Error(); reason != a.reason {
		*a = attempts{reason: reason}
	}
	a.n++
	return a.n&(a.n-1) == 0
}

// serve binds the address once and serves until ctx ends or the server fails.
func (s *Server) serve(ctx context.Context, failed *attempts) error {
	l, err := listen(ctx, s.Addr)
	if err != nil {
		return err
	}
	server := newHTTPServer(onlyOurs(s.Handler, s.Hosts), s.Log, newConnections(within(maxConns, connsPart)))
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
		server.Close() // also ends the contexts of requests, profiles that take long among them
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
