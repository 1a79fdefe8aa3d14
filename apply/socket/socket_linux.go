package socket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
)

// Timeout is how long each receive waits. The kernel answers while it accepts a
// request, so an answer that is not queued by then was lost.
const Timeout = 10 * time.Second

// bufferSize exceeds every datagram: lists of elements end at 64 KiB, and a
// refusal quotes its request. The kernel fills the datagrams of a dump up to the
// size of the reader's buffer, and at most 32 KiB.
const bufferSize = 128 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Config configures the connections of a Socket.
type Config struct {
	Protocol int // NETLINK_ROUTE, NETLINK_NETFILTER, ...
	// NetNS is a file descriptor of a network namespace; 0 means that of the
	// calling thread.
	NetNS int
	// Setup, if set, prepares each new connection: options, buffers, groups.
	Setup func(*netlink.Conn) error
}

// Socket makes exchanges with the kernel of one network namespace, one at a time.
// It may be used by several goroutines.
type Socket struct {
	config Config
	netns  *os.File // nil if the kernel has no namespaces
	// Fault, if set, is called before each system call that sends or receives, which
	// fails with its error. It is for tests.
	Fault func(call string) error

	exchange sync.Mutex // held during an exchange, which owns the connection

	mu     sync.Mutex // guards what follows; not held during an exchange
	conn   *Conn      // nil if the next exchange has to dial
	closed bool
}

// Conn is one connection of a Socket, during an exchange.
type Conn struct {
	*netlink.Conn
	// Sequence is the number of the last message that was sent.
	Sequence uint32
	raw      syscall.RawConn
	room     int // size of the write buffer
	fault    func(call string) error
	deadline time.Time // of the exchange; zero for none
	buffer   *[bufferSize]byte
}

// Dial opens a Socket, and its connection.
func Dial(c Config) (*Socket, error) {
	s, err := New(c)
	if err != nil {
		return nil, err
	}
	if err := s.Connect(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// New returns a Socket without a connection, which Connect or the first exchange opens. It fails
// only if NetNS is invalid.
func New(c Config) (*Socket, error) {
	netns, err := namespace(c.NetNS)
	if err != nil && c.NetNS != 0 {
		return nil, err
	}
	return &Socket{config: c, netns: netns}, nil
}

// namespace returns the namespace behind a descriptor, or, for 0, that of the
// calling thread; nil if the kernel has none.
func namespace(fd int) (*os.File, error) {
	if fd == 0 {
		f, err := os.Open(threadNamespace)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return f, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return os.NewFile(uintptr(own), "netns"), nil
}

const threadNamespace = "/proc/thread-self/ns/net"

// dial opens a connection in the namespace of the Socket. To enter another one than
// the thread's needs CAP_SYS_ADMIN, which a daemon may lack and never needs.
func (s *Socket) dial() (*Conn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	config := &netlink.Config{}
	if s.netns == nil {
		var err error
		if s.netns, err = namespace(0); err != nil {
			return nil, fmt.Errorf("network namespace: %w", err)
		}
	}
	if s.netns != nil {
		of, err := s.netns.Stat()
		here, err2 := os.Stat(threadNamespace)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("network namespace: %w", err)
		}
		if !os.SameFile(of, here) {
			config.NetNS = int(s.netns.Fd())
		}
	}
	nl, err := netlink.Dial(s.config.Protocol, config)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	if s.config.Setup != nil {
		err = s.config.Setup(nl)
	}
	raw, rawErr := nl.SyscallConn()
	if err := errors.Join(err, rawErr); err != nil {
		nl.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &Conn{Conn: nl, raw: raw}, nil
}

// Connect opens the connection if there is none.
func (s *Socket) Connect() error {
	_, err := s.connect()
	return err
}

// connect returns the connection, after dialing it if there is none.
func (s *Socket) connect() (*Conn, error) {
	c, _, err := s.redial()
	return c, err
}

// redial is connect, and reports whether it dialed.
func (s *Socket) redial() (c *Conn, dialed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, os.ErrClosed
	}
	if s.conn == nil {
		if s.conn, err = s.dial(); err != nil {
			return nil, false, err
		}
		dialed = true
	}
	return s.conn, dialed, nil
}

// drop closes a connection. The next exchange dials.
func (s *Socket) drop(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		s.conn = nil
		c.Close()
	}
}

// Close closes the Socket, and ends an exchange that waits for the kernel.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.conn != nil {
		err = s.conn.Close()
	}
	if s.netns != nil && !s.closed {
		err = cmp.Or(err, s.netns.Close())
	}
	s.conn, s.closed = nil, true
	return err
}

// PID returns the port of the current connection, by which the kernel names the
// author of a change; 0 if there is none.
func (s *Socket) PID() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return 0
	}
	return s.conn.PID()
}

// Set changes options or groups of the connection, which may be in use by
// another goroutine. After an error the connection is closed: what it has is not
// known.
func (s *Socket) Set(set func(*netlink.Conn) error) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	if err := set(c.Conn); err != nil {
		s.drop(c)
		return err
	}
	return nil
}

// Do makes an exchange, which ends at the deadline of ctx at the latest. After an
// error that is no refusal, the connection is closed.
func (s *Socket) Do(ctx context.Context, exchange func(*Conn) error) error {
	s.exchange.Lock()
	defer s.exchange.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := s.connect()
	if err != nil {
		return err
	}
	c.fault, c.buffer = s.Fault, buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(c.buffer)
	c.deadline, _ = ctx.Deadline()
	if err = c.SetDeadline(c.deadline); err == nil {
		err = exchange(c)
	}
	if err != nil && !IsRejection(err) {
		s.drop(c)
	}
	return err
}

// IsRejection reports whether an error is the kernel's answer to a request, after
// which no other answer to it comes.
func IsRejection(err error) bool {
	op, ok := errors.AsType[*netlink.OpError](err)
	return ok && op.Sequence != 0
}

// Ask makes an exchange of one request. It passes each answer to each, which must
// not keep its data. interrupted reports whether a list changed while it was
// read: entries may be missing.
func (s *Socket) Ask(ctx context.Context, m netlink.Message, each func(data []byte) error) (interrupted bool, err error) {
	err = s.Do(ctx, func(c *Conn) (err error) {
		interrupted, err = c.Ask(m, each)
		return err
	})
	return interrupted, err
}

// ErrInterrupted is the error of a list that changed during each reading.
var ErrInterrupted = errors.New("the list changed during each attempt to read it")

const maxAttempts = 10

// RetryInterrupted reads a list again as long as it was interrupted, for which EINTR is an
// error of the same meaning.
func RetryInterrupted(read func() (interrupted bool, err error)) error {
	for range maxAttempts {
		interrupted, err := read()
		if interrupted = interrupted || errors.Is(err, unix.EINTR); !interrupted {
			return err
		}
	}
	return ErrInterrupted
}

// Follow passes the kernel's notifications to each, until ctx ends or the Socket
// is closed. If notifications were lost, it dials again, and calls lost: after
// dialing, so that a change is either in what lost reads or notified later. While
// it cannot dial, it calls lost at growing intervals. If it dials first, it calls
// lost without an error.
func (s *Socket) Follow(ctx context.Context, each func(netlink.Message), lost func(error)) {
	defer context.AfterFunc(ctx, func() { s.Close() })()
	var cause error
	for failures := 0; ; failures++ { // since the last notification
		if failures > 1 {
			select {
			case <-ctx.Done():
			case <-time.After(apply.Backoff(failures-1, apply.FirstRetry, maxPause)):
			}
		}
		_, dialed, err := s.redial()
		switch {
		case errors.Is(err, os.ErrClosed) || ctx.Err() != nil:
			return
		case err != nil:
			cause = err
			lost(cause)
			continue
		case dialed || cause != nil:
			lost(cause)
		}
		cause = s.Do(ctx, func(c *Conn) error {
			for m, err := range c.receiveAll(forever) {
				if err != nil {
					return err
				}
				failures = 0
				each(m)
			}
			return nil
		})
	}
}

// maxPause is the longest interval at which Follow retries. Its callers then read everything.
const maxPause = time.Minute
