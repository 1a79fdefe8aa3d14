package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket. Many requests go in one system call, and only the
// last is acknowledged: a request that is refused is answered unasked.
type socket struct {
	fd   int
	port uint32 // by which the kernel names who made a change
	seq  uint32
	buf  []byte
}

const (
	// answerTimeout is how long to wait for the kernel, which answers before it
	// is done with a request.
	answerTimeout = 10 * time.Second
	// mostBytes and mostRequests are what one system call has at most: all of its
	// requests may be refused, and the answers have to fit into receiveRoom.
	mostBytes    = 128 << 10
	mostRequests = 1000
	receiveRoom  = 4 << 20
	mostDumps    = 10 // tries
)

// dial opens a socket in the network namespace of the calling thread.
func dial(protocol int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, 64<<10)}
	wait := unix.NsecToTimeval(int64(answerTimeout))
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		room(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveRoom),
		room(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, 4*mostBytes),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
	)
	unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // answers without the request, since Linux 4.3
	if err == nil {
		var name unix.Sockaddr
		if name, err = unix.Getsockname(fd); err == nil {
			s.port = name.(*unix.SockaddrNetlink).Pid
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return s, nil
}

// room asks for a buffer beyond the limit that sysctls set, or else up to it.
func room(fd, force, polite, n int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, polite, n)
}

func (s *socket) close() error {
	if s == nil {
		return nil
	}
	return unix.Close(s.fd)
}

// batch is one or more messages.
type batch struct {
	b     []byte
	first uint32 // sequence number of the first
	n     int
	last  int // where the last one begins
}

// message begins a message, whose body follows.
func (b *batch) message(kind, flags uint16) {
	b.last = len(b.b)
	b.b = binary.NativeEndian.AppendUint32(b.b, 0) // its length
	b.b = binary.NativeEndian.AppendUint16(b.b, kind)
	b.b = binary.NativeEndian.AppendUint16(b.b, flags|unix.NLM_F_REQUEST)
	b.b = binary.NativeEndian.AppendUint32(b.b, b.first+uint32(b.n))
	b.b = binary.NativeEndian.AppendUint32(b.b, 0)
	b.n++
}

// end ends a message.
func (b *batch) end() { binary.NativeEndian.PutUint32(b.b[b.last:], uint32(len(b.b)-b.last)) }

// acknowledge asks for an answer to the last message.
func (b *batch) acknowledge() {
	flags := binary.NativeEndian.Uint16(b.b[b.last+6:])
	binary.NativeEndian.PutUint16(b.b[b.last+6:], flags|unix.NLM_F_ACK)
}

// attribute appends an attribute.
func (b *batch) attribute(kind uint16, value ...byte) {
	b.b = binary.NativeEndian.AppendUint16(b.b, uint16(4+len(value)))
	b.b = binary.NativeEndian.AppendUint16(b.b, kind)
	b.b = append(b.b, value...)
	b.pad()
}

func (b *batch) pad() {
	for len(b.b)%4 > 0 {
		b.b = append(b.b, 0)
	}
}

func (b *batch) text(kind uint16, s string) {
	b.attribute(kind, append([]byte(s), 0)...)
}

func (b *batch) number(kind uint16, n uint32) {
	b.attribute(kind, binary.NativeEndian.AppendUint32(nil, n)...)
}

func (b *batch) short(kind uint16, n uint16) {
	b.attribute(kind, binary.NativeEndian.AppendUint16(nil, n)...)
}

// big appends an attribute of a number in network byte order.
func (b *batch) big(kind uint16, n uint32) {
	b.attribute(kind, binary.BigEndian.AppendUint32(nil, n)...)
}

func (b *batch) bigShort(kind uint16, n uint16) {
	b.attribute(kind, byte(n>>8), byte(n))
}

// nested appends an attribute of attributes.
func (b *batch) nested(kind uint16, f func()) {
	at := len(b.b)
	b.attribute(kind)
	f()
	binary.NativeEndian.PutUint16(b.b[at:], uint16(len(b.b)-at))
}

// all makes n requests, which write appends, in as few system calls as there can
// be, and goes on where some are refused.
func (s *socket) all(ctx context.Context, n int, write func(b *batch, i int), refused func(i int, err error)) error {
	for i := 0; i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := batch{first: s.seq + 1}
		from := i
		for ; i < n && b.n < mostRequests && len(b.b) < mostBytes-4096; i++ {
			write(&b, i)
			b.end()
		}
		b.acknowledge()
		s.seq += uint32(b.n)
		if err := s.send(b.b); err != nil {
			return err
		}
		if err := s.answers(&b, func(seq uint32, err error) { refused(from+int(seq-b.first), err) }); err != nil {
			return err
		}
	}
	return nil
}

// one makes one request.
func (s *socket) one(ctx context.Context, write func(b *batch)) error {
	var no error
	err := s.all(ctx, 1, func(b *batch, _ int) { write(b) }, func(_ int, err error) { no = err })
	return errors.Join(no, err)
}

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return wrapped("asking the kernel", err)
		}
	}
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// receive gives the messages that there are.
func (s *socket) receive(each func(kind, flags uint16, seq uint32, body []byte) error) error {
	var n int
	for {
		var err error
		n, _, err = unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return fmt.Errorf("the kernel gave no answer within %s", answerTimeout)
		}
		if err != nil {
			return fmt.Errorf("the kernel's answer: %w", err)
		}
		break
	}
	if n > len(s.buf) {
		return fmt.Errorf("the kernel's answer of %d bytes is longer than any that is known", n)
	}
	for b := s.buf[:n]; len(b) >= 16; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < 16 || size > len(b) {
			return errors.New("the kernel's answer has no sense")
		}
		kind, flags, seq := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])
		if err := each(kind, flags, seq, b[16:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil
}

// errnoOf reads the answer to a request.
func errnoOf(body []byte) error {
	if len(body) < 4 {
		return errors.New("the kernel's answer is too short")
	}
	if n := int32(binary.NativeEndian.Uint32(body)); n != 0 {
		return unix.Errno(-n)
	}
	return nil
}

// answers reads until the last message of a batch is answered.
func (s *socket) answers(b *batch, refused func(seq uint32, err error)) error {
	last := b.first + uint32(b.n) - 1
	for done := false; !done; {
		err := s.receive(func(kind, _ uint16, seq uint32, body []byte) error {
			if kind != unix.NLMSG_ERROR || seq < b.first || seq > last { // a late answer to another request
				return nil
			}
			if err := errnoOf(body); err != nil {
				refused(seq, err)
			}
			done = done || seq == last
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// errInterrupted is that of a dump during which things changed, each time.
var errInterrupted = errors.New("what is read changes faster than it can be read")

// dump makes a request for many answers, and gives them in one piece: where the
// kernel says that they do not go together, it asks again. begin is called
// before the first of them, each time.
func (s *socket) dump(ctx context.Context, write func(b *batch), begin func(), each func(body []byte) error) error {
	for range mostDumps {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := batch{first: s.seq + 1}
		write(&b)
		b.end()
		s.seq++
		if err := s.send(b.b); err != nil {
			return err
		}
		begin()
		interrupted, err := s.dumped(b.first, each)
		if err != nil || !interrupted {
			return err
		}
	}
	return errInterrupted
}

func (s *socket) dumped(of uint32, each func(body []byte) error) (interrupted bool, err error) {
	for done := false; !done; {
		var no error
		err := s.receive(func(kind, flags uint16, seq uint32, body []byte) error {
			if seq != of || done {
				return nil
			}
			interrupted = interrupted || flags&unix.NLM_F_DUMP_INTR != 0
			switch kind {
			case unix.NLMSG_ERROR:
				done, no = true, errnoOf(body)
			case unix.NLMSG_DONE:
				done = true
				if len(body) >= 4 {
					no = errnoOf(body)
				}
			default:
				if no == nil { // after an error the rest has to be read all the same
					no = each(body)
				}
				done = flags&unix.NLM_F_MULTI == 0
			}
			return nil
		})
		if err = errors.Join(err, no); err != nil && (no == nil || done) {
			return interrupted, err
		}
	}
	return interrupted, nil
}

// attributes calls f for each attribute. Flags of the kind are left out.
func attributes(b []byte, f func(kind uint16, value []byte)) {
	const kindMask = 0x3fff
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&kindMask, b[4:size])
		b = b[min(len(b), (size+3)&^3):]
	}
}
