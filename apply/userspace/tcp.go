package userspace

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// listenTCP opens a TCP listener.
func (l *listener) listenTCP(at netip.AddrPort) (serve func(), err error) {
	socket, err := net.ListenTCP(network(l.key), net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	if at.Port() == 0 {
		// A port that the kernel selected is released while the socket does not listen. A requested port
		// is kept.
		at = netip.AddrPortFrom(at.Addr(), socket.Addr().(*net.TCPAddr).AddrPort().Port())
		socket.Close()
		if socket, err = net.ListenTCP(network(l.key), net.TCPAddrFromAddrPort(at)); err != nil {
			return nil, err
		}
	}
	s := &tcpSocket{TCPListener: socket}
	l.socket, l.at = s, at
	return func() { l.accept(s) }, nil
}

// tcpSocket is the socket of a TCP listener.
type tcpSocket struct {
	*net.TCPListener
	mu     sync.Mutex
	listen chan struct{} // closed when it listens again; nil while it listens
}

func (l *listener) suspendTCP(on bool) error {
	s := l.socket.(*tcpSocket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.listen = make(chan struct{})
		err := stopListening(s.TCPListener)
		if err != nil {
			s.listen = nil
		}
		return err
	}
	if err := listenAgain(s.TCPListener); err != nil {
		return err
	}
	close(s.listen)
	s.listen = nil
	return nil
}

// resumed returns a channel that is closed when the socket listens again; nil while it listens.
func (s *tcpSocket) resumed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listen
}

// Pauses after a failed accept. The process or machine lacks descriptors or memory, which may
// become available.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// accept accepts connections until the listener is closed.
func (l *listener) accept(socket *tcpSocket) {
	p := l.proxy
	pause := firstPause
	for {
		conn, err := socket.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if silence := socket.resumed(); err != nil && silence != nil {
			select {
			case <-l.closed:
				return
			case <-silence:
			}
			continue
		}
		if err != nil {
			p.warnings.warn("connections cannot be accepted", "servicePort", l.key.Port.String(), "err", err)
			select {
			case <-l.closed:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, lastPause)
			continue
		}
		pause = firstPause
		l.counts.accepted.Add(1)
		select {
		case p.connections.slots <- struct{}{}:
		default:
			l.counts.waited.Add(1)
			p.warnings.warn("the limit of connections is reached: further connections wait", "limit", p.Connections, "servicePort", l.key.Port.String())
			select {
			case p.connections.slots <- struct{}{}:
			case <-l.closed:
				reset(conn)
				return
			}
		}
		l.counts.clients.Add(1)
		p.work.Go(func() {
			defer func() {
				<-p.connections.slots
				l.counts.clients.Add(-1)
			}()
			l.serve(conn)
		})
	}
}

// connection is a client's connection with the connection to its backend.
type connection struct {
	client, backend *net.TCPConn
	cancel          context.CancelFunc // cancels dialing
}

// connections are the open connections of clients.
type connections struct {
	slots chan struct{} // one token each

	mu       sync.Mutex // also protects backend of each
	open     map[*connection]bool
	aborting bool // new connections are rejected
}

// add adds a connection, or returns false if connections are aborted.
func (s *connections) add(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = true
	return !s.aborting
}

func (s *connections) remove(c *connection) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
}

// abort resets all connections, now and in future, and returns the number of open ones.
func (s *connections) abort() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborting = true
	for c := range s.open {
		c.abort()
	}
	return len(s.open)
}

// abort resets both connections. The caller holds the lock of connections.
func (c *connection) abort() {
	c.cancel()
	reset(c.client)
	if c.backend != nil {
		reset(c.backend)
	}
}

// serve connects a client to a backend, and forwards until both sides have ended.
func (l *listener) serve(conn *net.TCPConn) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &connection{client: conn, cancel: cancel}
	all := &l.proxy.connections
	defer all.remove(c)
	if !all.add(c) {
		reset(conn)
		return
	}
	backend := l.dial(ctx, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
	if backend == nil {
		l.counts.unreachable.Add(1)
		reset(conn)
		return
	}
	all.mu.Lock()
	c.backend = backend
	all.mu.Unlock()
	if ctx.Err() != nil {
		reset(backend)
		return
	}
	join(conn, backend)
}

// dial connects to a backend for a client. It tries the next one after each failure, and returns
// nil if none responds or there is none.
func (l *listener) dial(ctx context.Context, from netip.Addr) *net.TCPConn {
	for i, patience := range l.proxy.DialTimeouts {
		to, ok := l.balancer.pick(from, time.Now(), i > 0)
		if !ok || ctx.Err() != nil {
			return nil
		}
		d := net.Dialer{Timeout: patience}
		conn, err := d.DialContext(ctx, network(l.key), to.String())
		if err == nil {
			return conn.(*net.TCPConn)
		}
		l.counts.dialFailures.Add(1)
		if log := l.proxy.Log; log != nil {
			log.Debug("a backend does not respond", "servicePort", l.key.Port.String(), "backend", to.String(), "err", err)
		}
	}
	return nil
}

// join forwards in both directions until both have ended.
func join(a, b *net.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		forward(a, b)
	}()
	forward(b, a)
	<-done
	a.Close()
	b.Close()
}

// forward copies data from one connection to the other, and then the end of the stream. After an
// error it resets both: an orderly end would signal complete data.
func forward(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil { // by splice on Linux
		reset(to)
		reset(from)
		return
	}
	to.CloseWrite()
}

// reset closes a connection with a TCP reset.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
