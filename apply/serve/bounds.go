package serve

import (
	"bytes"
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// What a client may take. Servers answer whoever reaches them, so that each
// bound keeps somebody from taking the memory or the sockets of all others.
const (
	headerTimeout = 5 * time.Second  // for the request line and headers
	readTimeout   = 10 * time.Second // for all of a request
	writeTimeout  = 20 * time.Second // from a request to the end of its answer
	idleTimeout   = 90 * time.Second // between requests: more than a scrape interval

	maxHeader  = 16 << 10 // bytes
	maxBody    = 64 << 10 // bytes
	maxProfile = 64 << 20 // bytes of a profile or trace

	// maxConns is how many connections a server has, and maxChecks all health
	// check node ports of a family together. Load balancers may hold theirs.
	maxConns  = 128
	maxChecks = 256
)

// Connections, and the sockets of health check node ports, take at most these
// parts of the files that the process may open. The rest is for the kernel, the
// API server and the tools: who cannot open another file answers nobody.
const (
	connsPart  = 16 // of each server
	checksPart = 8  // of the health check node ports of a family
	socketPart = 8  // likewise, where they listen
)

// within returns most, or less where few files may be open.
func within(most, part int) int { return max(1, min(most, openFiles()/part)) }

// newHTTPServer makes a server within these bounds, whose connections are
// those of a set.
func newHTTPServer(h http.Handler, log *slog.Logger, of *connections) *http.Server {
	return &http.Server{
		Handler:           bounded(h),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         of.follow,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// bounded bounds what is read and the time of an answer. http.Server's own
// WriteTimeout would end profiles, which say for how long they go on.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // recorders of tests have none
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		h.ServeHTTP(w, r)
	})
}

// rendered lets a handler take its time, and sends its answer once that is complete. The
// runtime makes one CPU profile and one trace at a time: a client that does not read its own
// must not keep others from theirs, nor hold up a trace, which grows in memory meanwhile.
func rendered(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w) // recorders of tests have no deadlines
		c.SetReadDeadline(time.Time{})     // reading goes on to notice a client that leaves
		c.SetWriteDeadline(time.Time{})
		a := rendering{header: w.Header(), code: http.StatusOK}
		h(&a, r)
		c.SetWriteDeadline(time.Now().Add(writeTimeout))
		if a.cut {
			clear(a.header)
			http.Error(w, fmt.Sprintf("the answer is larger than %d MiB: ask for fewer seconds", maxProfile>>20), http.StatusInsufficientStorage)
			return
		}
		w.WriteHeader(a.code)
		w.Write(a.body.Bytes()) // an error is the client's, who went away
	}
}

// rendering is an http.ResponseWriter that keeps at most maxProfile bytes of what is written.
type rendering struct {
	header http.Header
	code   int
	body   bytes.Buffer
	cut    bool // there was more
}

func (a *rendering) Header() http.Header  { return a.header }
func (a *rendering) WriteHeader(code int) { a.code = code }

func (a *rendering) Write(b []byte) (int, error) {
	if a.cut = a.cut || a.body.Len()+len(b) > maxProfile; a.cut {
		a.body = bytes.Buffer{}
		return 0, errors.New("the answer is too large")
	}
	return a.body.Write(b)
}

// connections are the connections of one server, or of several that share a bound.
// Where there are too many, the one goes that has kept the server waiting for
// longest: those who hold connections cannot keep a probe from its answer.
type connections struct {
	most int

	mu    sync.Mutex
	queue list.List // of net.Conn, by when they last began to be waited for
	at    map[net.Conn]*list.Element
}

func newConnections(most int) *connections {
	return &connections{most: most, at: map[net.Conn]*list.Element{}}
}

// follow is told of what becomes of a connection.
func (c *connections) follow(conn net.Conn, s http.ConnState) {
	if oldest := c.note(conn, s); oldest != nil {
		oldest.Close()
	}
}

// note returns the connection that is to go, if there are too many.
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
