package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// conn is a connection to nf_tables. It lasts as long as the Dataplane: closing
// one after a removal waits for the kernel to be done with what was removed.
type conn struct {
	nl   *netlink.Conn
	room int // bytes that a batch may have now
	// sequence is the last number of a message of a batch. The library counts those of requests, from a
	// number of its own on.
	sequence uint32
	// request makes a request, with a batch or, with nil, without: it calls do.
	// Tests let requests fail, before they take effect or after.
	request func(b *batch, do func() error) error
}

func direct(_ *batch, do func() error) error { return do() }

// readBuffer holds the refusals of a batch, each of which quotes its message.
const readBuffer = 32 << 20

// messageBuffer is more than any message has: lists of elements end at 64 KiB,
// and a refusal quotes its message. The kernel fills messages of a dump as far
// as a reader's buffer, up to 32 KiB. For each it goes through a set from the
// beginning, so that fewer are faster by their number.
const messageBuffer = 128 << 10

// dial opens a connection to a network namespace by its file descriptor, or,
// with 0, to that of the calling thread.
func dial(netns int) (*conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns, MessageBufferSize: messageBuffer})
	if err != nil {
		return nil, fmt.Errorf("netlink socket of nf_tables: %w", err)
	}
	c := &conn{nl: nl, request: direct}
	err = errors.Join(
		nl.SetOption(netlink.ExtendedAcknowledge, true), // tells which element it was
		nl.SetReadBuffer(readBuffer),
	)
	if err != nil {
		nl.Close()
		return nil, fmt.Errorf("netlink socket of nf_tables: %w", err)
	}
	return c, nil
}

// within applies a context's deadline to the next calls.
func (c *conn) within(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline() // the zero time takes an earlier one away
	return c.nl.SetDeadline(deadline)
}

// refused is a message that the kernel did not take.
type refused struct {
	*message // nil if it is the batch as a whole
	offset   int
	err      error
}

func (r refused) Error() string {
	if r.message == nil {
		return "nf_tables: " + r.err.Error()
	}
	return r.object + ": " + r.err.Error()
}

func (r refused) Unwrap() error { return r.err }

// send sends a batch, which the kernel takes as a whole or not at all. It returns
// the messages because of which it did not.
func (c *conn) send(ctx context.Context, b *batch) (refusals []refused, err error) {
	if len(b.messages) == 0 {
		return nil, nil
	}
	err = c.request(b, func() (err error) {
		refusals, err = c.exchange(ctx, b)
		return err
	})
	return refusals, err
}

func (c *conn) exchange(ctx context.Context, b *batch) ([]refused, error) {
	if err := c.within(ctx); err != nil {
		return nil, err
	}
	first := c.sequence + 1
	pieces, size := c.pieces(b)
	if err := c.makeRoom(size + 4096); err != nil {
		return nil, err
	}
	if err := c.write(pieces); err != nil {
		return nil, fmt.Errorf("send %d bytes to nf_tables: %w", size, err)
	}
	return c.answers(b, first)
}

// pieces returns the messages of a batch with their headers, as the socket takes them at once, and
// how large they are.
func (c *conn) pieces(b *batch) (pieces [][]byte, size int) {
	var last []byte
	add := func(typ uint16, flags netlink.HeaderFlags, raw []byte) {
		c.sequence++
		header := binary.NativeEndian.AppendUint32(raw[:0], uint32(len(raw)))
		header = binary.NativeEndian.AppendUint16(header, typ)
		header = binary.NativeEndian.AppendUint16(header, uint16(netlink.Request|flags))
		header = binary.NativeEndian.AppendUint32(header, c.sequence)
		binary.NativeEndian.AppendUint32(header, c.nl.PID())
		if behind := len(last); behind < cap(last) && &last[:behind+1][behind] == &raw[0] {
			last = last[:behind+len(raw)]
			pieces[len(pieces)-1] = last
		} else {
			last = raw
			pieces = append(pieces, last)
		}
		size += len(raw)
	}
	frame := func() []byte {
		raw := make([]byte, netlinkHead, netlinkHead+nfgenHead)
		return binary.BigEndian.AppendUint16(append(raw, 0, 0), unix.NFNL_SUBSYS_NFTABLES)
	}
	add(unix.NFNL_MSG_BATCH_BEGIN, 0, frame())
	for i := range b.messages {
		m := &b.messages[i]
		var flags netlink.HeaderFlags
		switch {
		case m.atEnd:
			flags = netlink.Create | netlink.Append
		case m.create: // what is there already was not known to the plan
			flags = netlink.Create | netlink.Excl
		}
		// An answer to the last one stands for all: errors come unasked.
		if i == len(b.messages)-1 {
			flags |= netlink.Acknowledge
		}
		add(uint16(nfType(m.typ)), flags, m.raw)
	}
	add(unix.NFNL_MSG_BATCH_END, 0, frame())
	return pieces, size
}

// write sends messages at once.
func (c *conn) write(pieces [][]byte) error {
	raw, err := c.nl.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		for sent = unix.EINTR; errors.Is(sent, unix.EINTR); {
			_, sent = unix.SendmsgBuffers(int(fd), pieces, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
		}
		return !errors.Is(sent, unix.EAGAIN)
	})
	return errors.Join(err, sent)
}

// makeRoom lets a batch of n bytes pass through the socket in one piece.
func (c *conn) makeRoom(n int) error {
	if n <= c.room {
		return nil
	}
	if err := c.nl.SetWriteBuffer(n); err != nil {
		return fmt.Errorf("netlink write buffer of %d bytes: %w", n, err)
	}
	c.room = n
	return nil
}

// answers collects the refusals. The kernel is done with the batch when sending
// returns, and has queued all of its answers.
func (c *conn) answers(b *batch, first uint32) ([]refused, error) {
	var all []refused
	last := first + uint32(len(b.messages))
	for {
		msgs, err := c.nl.Receive()
		var op *netlink.OpError
		switch {
		case err == nil:
			if len(msgs) > 0 && msgs[len(msgs)-1].Header.Sequence == last {
				return all, nil
			}
			continue
		case !errors.As(err, &op) || op.Sequence == 0:
			if len(all) > 0 && errors.Is(err, context.DeadlineExceeded) {
				return all, nil
			}
			return all, fmt.Errorf("answer of nf_tables: %w", err)
		}
		r := refused{offset: op.Offset, err: op.Err}
		if op.Message != "" {
			r.err = fmt.Errorf("%w (%s)", op.Err, op.Message)
		}
		if i := int(op.Sequence - first); i > 0 && i <= len(b.messages) {
			r.message = &b.messages[i-1]
		} else if err := c.nl.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return all, err // an error of the batch itself may be the only answer
		}
		all = append(all, r)
		if op.Sequence == last {
			return all, nil
		}
	}
}

func nfType(t uint16) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | t)
}

// dump asks for all objects of a kind, and returns their attributes. interrupted
// tells that some table changed meanwhile.
func (c *conn) dump(ctx context.Context, typ uint16, family byte, query []byte, each func(attrs []byte) error) (interrupted bool, err error) {
	err = c.request(nil, func() (err error) {
		interrupted, err = c.list(ctx, typ, family, query, each)
		return err
	})
	return interrupted, err
}

func (c *conn) list(ctx context.Context, typ uint16, family byte, query []byte, each func(attrs []byte) error) (interrupted bool, err error) {
	if err := c.within(ctx); err != nil {
		return false, err
	}
	asked, err := c.nl.Send(netlink.Message{
		Header: netlink.Header{Type: nfType(typ), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, 0, 0, 0}, query...),
	})
	if err != nil {
		return false, fmt.Errorf("list nf_tables: %w", err)
	}
	// As they come: all of them together would be larger than what is made of them.
	for m, err := range c.nl.ReceiveIter() {
		if err == nil {
			err = netlink.Validate(asked, []netlink.Message{m})
		}
		switch {
		case err != nil:
			return interrupted, fmt.Errorf("list nf_tables: %w", err)
		case len(m.Data) < nfgenHead:
			return interrupted, errShort
		}
		interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
		if err := each(m.Data[nfgenHead:]); err != nil {
			return interrupted, err
		}
	}
	return interrupted, nil
}

// get asks for one object; nil if it is not there.
func (c *conn) get(ctx context.Context, typ uint16, family byte, query []byte) (found fields, err error) {
	err = c.request(nil, func() (err error) {
		found, err = c.ask(ctx, typ, family, query)
		return err
	})
	return found, err
}

func (c *conn) ask(ctx context.Context, typ uint16, family byte, query []byte) (fields, error) {
	if err := c.within(ctx); err != nil {
		return nil, err
	}
	msgs, err := c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: nfType(typ), Flags: netlink.Request},
		Data:   append([]byte{family, 0, 0, 0}, query...),
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask nf_tables: %w", err)
	case len(msgs) == 0 || len(msgs[0].Data) < nfgenHead:
		return nil, errShort
	}
	return parse(msgs[0].Data[nfgenHead:])
}

// generation is the number of the last change of any table.
func (c *conn) generation(ctx context.Context) (uint32, error) {
	a, err := c.get(ctx, unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	return a.u32(unix.NFTA_GEN_ID), err
}
