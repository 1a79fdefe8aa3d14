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

// client is a netlink socket. It sends many requests per system call, and requests an
// acknowledgement only for the last one. The kernel replies to refused requests in any case.
type client struct{ *socket.Socket }

// maxBytes and maxRequests bound one system call. The kernel may reject all of its requests, and
// the replies must fit into receiveBuffer.
const (
	maxBytes      = 128 << 10
	maxRequests   = 1000
	receiveBuffer = 4 << 20
)

// dial opens a socket in the network namespace of the calling thread.
func dial(protocol int) (*client, error) {
	s, err := socket.Dial(socket.Config{Protocol: protocol, Setup: func(nl *netlink.Conn) error {
		nl.SetOption(netlink.CapAcknowledge, true) // replies without the request, from Linux 4.3 on
		return errors.Join(nl.SetReadBuffer(receiveBuffer), nl.SetWriteBuffer(4*maxBytes))
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

// message returns a request. head precedes the attributes, which the optional write adds.
func message(kind, flags uint16, head []byte, write func(*netlink.AttributeEncoder)) netlink.Message {
	ae := netlink.NewAttributeEncoder()
	if write != nil {
		write(ae)
	}
	attributes, err := ae.Encode()
	if err != nil { // only for attributes above 64 KiB, which ours are not
		panic(err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.HeaderFlags(flags)},
		Data:   append(head[:len(head):len(head)], attributes...),
	}
}

// nested adds a nested attribute.
func nested(ae *netlink.AttributeEncoder, kind uint16, write func(*netlink.AttributeEncoder)) {
	ae.Nested(kind, func(nae *netlink.AttributeEncoder) error { write(nae); return nil })
}

// netUint16 and big add numbers in network byte order.
func netUint16(ae *netlink.AttributeEncoder, kind, n uint16) {
	ae.Bytes(kind, binary.BigEndian.AppendUint16(nil, n))
}

func netUint32(ae *netlink.AttributeEncoder, kind uint16, n uint32) {
	ae.Bytes(kind, binary.BigEndian.AppendUint32(nil, n))
}

// sendAll sends n requests in as few system calls as possible, and continues after refused ones.
func (s *client) sendAll(ctx context.Context, n int, request func(i int) netlink.Message, refused func(i int, err error)) error {
	for from := 0; from < n; {
		var batch []netlink.Message
		for size := 0; from+len(batch) < n && len(batch) < maxRequests && size < maxBytes-4096; {
			m := request(from + len(batch))
			batch, size = append(batch, m), size+unix.NLMSG_HDRLEN+len(m.Data)
		}
		batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
		err := s.Do(ctx, func(c *socket.Conn) error {
			sent, err := c.SendMessages(batch)
			if err != nil {
				return fmt.Errorf("sending to the kernel: %w", err)
			}
			return receiveAcks(c, sent, func(i int, err error) { refused(from+i, err) })
		})
		if err != nil {
			return err
		}
		from += len(batch)
	}
	return nil
}

// receiveAcks receives until the last message is acknowledged.
func receiveAcks(c *socket.Conn, sent []netlink.Message, refused func(i int, err error)) error {
	first, last := sent[0].Header.Sequence, sent[len(sent)-1].Header.Sequence
	for m, err := range c.Answers() {
		of := m.Header.Sequence
		switch {
		case err != nil && !socket.IsRejection(err):
			return err
		case err != nil && of-first <= last-first:
			refused(int(of-first), errnoOf(err))
		}
		if of == last {
			break
		}
	}
	return nil
}

// errnoOf returns the errno of a rejection, without the library's text. Other errors are unchanged.
func errnoOf(err error) error {
	if op, ok := errors.AsType[*netlink.OpError](err); ok && socket.IsRejection(err) {
		return op.Err
	}
	return err
}

// send sends one request.
func (s *client) send(ctx context.Context, m netlink.Message) error {
	var no error
	err := s.sendAll(ctx, 1, func(int) netlink.Message { return m }, func(_ int, err error) { no = err })
	return errors.Join(no, err)
}

// sendForOneReply sends a request with a single reply that the kernel marks as multipart without a
// final message, as nft_compat does.
func (s *client) sendForOneReply(ctx context.Context, m netlink.Message) error {
	return errnoOf(s.Do(ctx, func(c *socket.Conn) error {
		if _, err := c.Send(m); err != nil {
			return fmt.Errorf("sending to the kernel: %w", err)
		}
		for _, err := range c.Answers() {
			return err
		}
		return nil
	}))
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// dump sends a request with many replies, and passes their bodies to each. An interrupted dump is
// repeated. begin is called before each attempt. Each reply has at least head bytes before its
// attributes.
func (s *client) dump(ctx context.Context, m netlink.Message, head int, begin func(), each func(body []byte)) error {
	return errnoOf(socket.RetryInterrupted(func() (interrupted bool, err error) {
		begin()
		return s.Ask(ctx, m, func(data []byte) error {
			if len(data) < head {
				return errors.New("the kernel's reply is too short")
			}
			each(data)
			return nil
		})
	}))
}

// attributes calls f for each attribute, without the flags of its kind.
func attributes(b []byte, f func(kind uint16, value []byte)) {
	ad, err := netlink.NewAttributeDecoder(b)
	for err == nil && ad.Next() {
		f(ad.Type(), ad.Bytes())
	}
}
