package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socket is a netlink socket. Many requests go in one system call, and only the
// last is acknowledged: a request that is refused is answered unasked.
type socket struct{ nl *netlink.Conn }

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
	nl, err := netlink.Dial(protocol, &netlink.Config{})
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	nl.SetOption(netlink.CapAcknowledge, true) // answers without the request, since Linux 4.3
	if err := errors.Join(nl.SetReadBuffer(receiveRoom), nl.SetWriteBuffer(4*mostBytes)); err != nil {
		nl.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &socket{nl}, nil
}

func (s *socket) close() error {
	if s == nil {
		return nil
	}
	return s.nl.Close()
}

// message returns a request: head is what comes before the attributes, which
// write adds, where it is not nil.
func message(kind, flags uint16, head []byte, write func(*netlink.AttributeEncoder)) netlink.Message {
	ae := netlink.NewAttributeEncoder()
	if write != nil {
		write(ae)
	}
	attributes, err := ae.Encode()
	if err != nil { // of an attribute longer than 64 KiB, and none of ours is
		panic(err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.HeaderFlags(flags)},
		Data:   append(head[:len(head):len(head)], attributes...),
	}
}

// nested adds an attribute of attributes.
func nested(ae *netlink.AttributeEncoder, kind uint16, write func(*netlink.AttributeEncoder)) {
	ae.Nested(kind, func(nae *netlink.AttributeEncoder) error { write(nae); return nil })
}

// bigShort and big add numbers in network byte order.
func bigShort(ae *netlink.AttributeEncoder, kind, n uint16) {
	ae.Bytes(kind, binary.BigEndian.AppendUint16(nil, n))
}

func big(ae *netlink.AttributeEncoder, kind uint16, n uint32) {
	ae.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
}

// all makes n requests in as few system calls as there can be, and goes on where
// some are refused.
func (s *socket) all(ctx context.Context, n int, request func(i int) netlink.Message, refused func(i int, err error)) error {
	for from := 0; from < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var batch []netlink.Message
		for size := 0; from+len(batch) < n && len(batch) < mostRequests && size < mostBytes-4096; {
			m := request(from + len(batch))
			batch, size = append(batch, m), size+unix.NLMSG_HDRLEN+len(m.Data)
		}
		batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
		sent, err := s.nl.SendMessages(batch)
		if err != nil {
			return fmt.Errorf("asking the kernel: %w", err)
		}
		if err := s.answers(sent, func(i int, err error) { refused(from+i, err) }); err != nil {
			return err
		}
		from += len(batch)
	}
	return nil
}

// wait lets the next answer take its time, from now on: most of the work is done
// while requests are sent, which is not bounded.
func (s *socket) wait() error { return s.nl.SetReadDeadline(time.Now().Add(answerTimeout)) }

// answers reads until the last message is answered. Late answers to other requests
// are none of ours.
func (s *socket) answers(sent []netlink.Message, refused func(i int, err error)) error {
	first, last := sent[0].Header.Sequence, sent[len(sent)-1].Header.Sequence
	for {
		if err := s.wait(); err != nil {
			return err
		}
		msgs, err := s.nl.Receive()
		of := uint32(0)
		var op *netlink.OpError
		switch {
		case errors.As(err, &op) && op.Sequence != 0:
			if of = op.Sequence; of-first <= last-first {
				refused(int(of-first), op.Err)
			}
		case err != nil:
			return noAnswer(err)
		case len(msgs) > 0:
			of = msgs[len(msgs)-1].Header.Sequence
		}
		if of == last {
			return nil
		}
	}
}

// noAnswer says what came in place of an answer. What the kernel said has its
// number alone, without the library's words.
func noAnswer(err error) error {
	var op *netlink.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the kernel gave no answer within %s", answerTimeout)
	case errors.As(err, &op):
		err = op.Err
	}
	return fmt.Errorf("the kernel's answer: %w", err)
}

// one makes one request.
func (s *socket) one(ctx context.Context, m netlink.Message) error {
	var no error
	err := s.all(ctx, 1, func(int) netlink.Message { return m }, func(_ int, err error) { no = err })
	return errors.Join(no, err)
}

// oneOfMany makes a request that is answered by one message, which the kernel marks
// as one of several where none follows: nft_compat does.
func (s *socket) oneOfMany(ctx context.Context, m netlink.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	asked, err := s.nl.Send(m)
	if err != nil {
		return fmt.Errorf("asking the kernel: %w", err)
	}
	if err := s.wait(); err != nil {
		return err
	}
	for answer, err := range s.nl.ReceiveIter() {
		if err != nil {
			return noAnswer(err)
		}
		if answer.Header.Sequence == asked.Header.Sequence {
			return s.nl.SetReadDeadline(time.Now()) // or the library waits for the others
		}
	}
	return nil
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// errInterrupted is that of a dump during which things changed, each time.
var errInterrupted = errors.New("what is read changes faster than it can be read")

// dump makes a request for many answers, and gives their bodies in one piece:
// where the kernel says that they do not go together, it asks again. Each has head
// bytes before its attributes, at least. begin is called before the first of them,
// each time.
func (s *socket) dump(ctx context.Context, m netlink.Message, head int, begin func(), each func(body []byte)) error {
	for range mostDumps {
		interrupted, err := s.dumped(ctx, m, head, begin, each)
		if err != nil || !interrupted {
			return err
		}
	}
	return errInterrupted
}

func (s *socket) dumped(ctx context.Context, m netlink.Message, head int, begin func(), each func(body []byte)) (interrupted bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	asked, err := s.nl.Send(m)
	if err != nil {
		return false, fmt.Errorf("asking the kernel: %w", err)
	}
	begin()
	for ours, others := false, true; !ours && others; {
		others = false
		if err := s.wait(); err != nil {
			return interrupted, err
		}
		for answer, err := range s.nl.ReceiveIter() {
			switch {
			case err != nil:
				return interrupted, noAnswer(err)
			case answer.Header.Sequence != asked.Header.Sequence: // a late answer to another request
				others = true
				continue
			case len(answer.Data) < head:
				return interrupted, errors.New("the kernel's answer is too short")
			}
			ours = true
			interrupted = interrupted || answer.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			each(answer.Data)
			if err := s.wait(); err != nil { // for the next
				return interrupted, err
			}
		}
	}
	return interrupted, nil
}

// attributes calls f for each attribute. Flags of the kind are left out.
func attributes(b []byte, f func(kind uint16, value []byte)) {
	ad, err := netlink.NewAttributeDecoder(b)
	for err == nil && ad.Next() {
		f(ad.Type(), ad.Bytes())
	}
}
