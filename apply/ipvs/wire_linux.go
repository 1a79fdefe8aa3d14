package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/socket"
)

// client is a netlink socket. Many requests go in one system call, and only the
// last is acknowledged: a request that is refused is answered unasked.
type client struct{ *socket.Socket }

// mostBytes and mostRequests are what one system call has at most: all of its
// requests may be refused, and the answers have to fit into receiveRoom.
const (
	mostBytes    = 128 << 10
	mostRequests = 1000
	receiveRoom  = 4 << 20
)

// dial opens a socket in the network namespace of the calling thread.
func dial(protocol int) (*client, error) {
	s, err := socket.Dial(socket.Config{Protocol: protocol, Setup: func(nl *netlink.Conn) error {
		nl.SetOption(netlink.CapAcknowledge, true) // answers without the request, since Linux 4.3
		return errors.Join(nl.SetReadBuffer(receiveRoom), nl.SetWriteBuffer(4*mostBytes))
	}})
	if err != nil {
		return nil, err
	}
	return &client{s}, nil
}

func (s *client) close() error {
	if s == nil {
		return nil
	}
	return s.Close()
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
func (s *client) all(ctx context.Context, n int, request func(i int) netlink.Message, refused func(i int, err error)) error {
	for from := 0; from < n; {
		var batch []netlink.Message
		for size := 0; from+len(batch) < n && len(batch) < mostRequests && size < mostBytes-4096; {
			m := request(from + len(batch))
			batch, size = append(batch, m), size+unix.NLMSG_HDRLEN+len(m.Data)
		}
		batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
		err := s.Do(ctx, func(c *socket.Conn) error {
			sent, err := c.SendMessages(batch)
			if err != nil {
				return fmt.Errorf("asking the kernel: %w", err)
			}
			return answers(c, sent, func(i int, err error) { refused(from+i, err) })
		})
		if err != nil {
			return err
		}
		from += len(batch)
	}
	return nil
}

// answers reads until the last message is answered.
func answers(c *socket.Conn, sent []netlink.Message, refused func(i int, err error)) error {
	first, last := sent[0].Header.Sequence, sent[len(sent)-1].Header.Sequence
	for m, err := range c.Answers() {
		of := m.Header.Sequence
		switch {
		case err != nil && !socket.Refused(err):
			return err
		case err != nil && of-first <= last-first:
			refused(int(of-first), bare(err))
		}
		if of == last {
			break
		}
	}
	return nil
}

// bare returns the number that the kernel refused a request with, without the
// library's words; any other error as it is.
func bare(err error) error {
	if op, ok := errors.AsType[*netlink.OpError](err); ok && socket.Refused(err) {
		return op.Err
	}
	return err
}

// one makes one request.
func (s *client) one(ctx context.Context, m netlink.Message) error {
	var no error
	err := s.all(ctx, 1, func(int) netlink.Message { return m }, func(_ int, err error) { no = err })
	return errors.Join(no, err)
}

// oneOfMany makes a request that is answered by one message, which the kernel marks
// as one of several where none follows: nft_compat does.
func (s *client) oneOfMany(ctx context.Context, m netlink.Message) error {
	return bare(s.Do(ctx, func(c *socket.Conn) error {
		if _, err := c.Send(m); err != nil {
			return fmt.Errorf("asking the kernel: %w", err)
		}
		for _, err := range c.Answers() {
			return err
		}
		return nil
	}))
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// dump makes a request for many answers, and gives their bodies in one piece:
// where the kernel says that they do not go together, it asks again. Each has head
// bytes before its attributes, at least. begin is called before the first of them,
// each time.
func (s *client) dump(ctx context.Context, m netlink.Message, head int, begin func(), each func(body []byte)) error {
	return bare(socket.Whole(func() (interrupted bool, err error) {
		begin()
		return s.Ask(ctx, m, func(data []byte) error {
			if len(data) < head {
				return errors.New("the kernel's answer is too short")
			}
			each(data)
			return nil
		})
	}))
}

// attributes calls f for each attribute. Flags of the kind are left out.
func attributes(b []byte, f func(kind uint16, value []byte)) {
	ad, err := netlink.NewAttributeDecoder(b)
	for err == nil && ad.Next() {
		f(ad.Type(), ad.Bytes())
	}
}
