package serve

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits for a client. Servers respond to everyone who can reach them, so one client must not use
// up the memory or sockets of the others.
const (
	headerTimeout = 5 * time.Second  // until the request line and headers are read
	readTimeout   = 10 * time.Second // until the request is read
	writeTimeout  = 20 * time.Second // from a request to the end of its response
	idleTimeout   = 90 * time.Second // between requests; longer than a scrape interval

	profileTimeout = 10 * time.Minute // until a profile or trace is sent; the runtime makes one at a time

	maxHeader = 16 << 10 // bytes
	maxBody   = 64 << 10 // bytes

	// maxConns bounds the connections of a server, and maxChecks those of all health check node ports
	// of a family. Load balancers may keep theirs open.
	maxConns  = 128
	maxChecks = 256
)

// Shares (1/n) of the process's file limit for connections and for the sockets of health check node
// ports. The rest is for the kernel, the API server and tools: a process that cannot open files
// cannot respond to anyone.
const (
	connsPart  = 16 // connections of each server
	checksPart = 8  // connections to the health check node ports of a family
	socketPart = 8  // listening sockets of these
)

// within returns most, or 1/part of the open file limit if that is less.
func within(most, part int) int { return max(1, min(most, openFiles()/part)) }

// newHTTPServer returns a server with these limits, whose connections are tracked in of.
func newHTTPServer(h http.Handler, log *slog.Logger, of *connections) *http.Server {
	return &http.Server{
		Handler:           bounded(h),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         of.follow,
		ErrorLog:          slog.NewLogLogger(rarely{log.Handler(), new(attempts)}, slog.LevelWarn),
	}
}

// rarely is a handler that logs only occurrences 1, 2, 4, 8 and so on of one message. A server that cannot
// accept connections, for lack of file descriptors, logs that each second.
type rarely struct {
	slog.Handler
	of *attempts
}

func (h rarely) Handle(ctx context.Context, r slog.Record) error {
	if !h.of.add(errors.New(r.Message)) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// bounded limits the size of a request and the duration of a response. http.Server.WriteTimeout
// would end profiles, whose duration is a parameter.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // fails for httptest recorders
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		h.ServeHTTP(w, r)
	})
}

// profileTimed gives a handler the time of a profile, whose duration is a parameter. A client that does
// not read it prevents other profiles for that time.
func profileTimed(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w) // httptest recorders have no deadlines
		c.SetReadDeadline(time.Time{})     // the server reads on to detect that the client disconnects
		c.SetWriteDeadline(time.Now().Add(profileTimeout))
		h(w, r)
	}
}

// connections tracks the connections of one server, or of several servers with a common limit. If
// there are too many, it closes the one that has been without a request for longest. Idle
// connections thus cannot block a probe.
type connections struct {
	most int

	mu    sync.Mutex
	queue list.List // of net.Conn, ordered by when the wait for a request began
	at    map[net.Conn]*list.Element
}

func newConnections(most int) *connections {
	return &connections{most: most, at: map[net.Conn]*list.Element{}}
}

// follow is the ConnState hook of the servers.
func (c *connections) follow(conn net.Conn, s http.ConnState) {
	if oldest := c.note(conn, s); oldest != nil {
		oldest.Close()
	}
}

// note records a state change. It returns the connection to close if there are too many.
func (c *connections) note(conn net.Conn, s http.ConnState) (oldest net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.at[conn]
	switch s {
	case http.StateNew:
		c.at[conn] = c.queue.PushBack(conn)
	case http.StateIdle:
		if known {
			c.queue.MoveToBack(at)
		}
	case http.StateClosed, http.StateHijacked:
		if known {
			c.forget(conn, at)
		}
	}
	if len(c.at) <= c.most {
		return nil
	}
	first := c.queue.Front()
	oldest = first.Value.(net.Conn)
	c.forget(oldest, first)
	return oldest
}

func (c *connections) forget(conn net.Conn, at *list.Element) {
	c.queue.Remove(at)
	delete(c.at, conn)
}
