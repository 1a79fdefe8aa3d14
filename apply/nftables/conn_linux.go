package nftables

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/socket"
)

// conn makes exchanges with nf_tables. Its connection lasts as long as the Dataplane:
// closing one after a removal waits for the kernel to be done with what was removed.
type conn struct {
	*socket.Socket
	// sequence is the last number of a message of a batch. The library counts those of requests, from a
	// number of its own on.
	sequence uint32
	// request makes a request, with a batch or, with nil, without: it calls do.
	// Tests let requests fail, before they take effect or after.
	request func(batch []message, do func() error) error
}

func direct(_ []message, do func() error) error { return do() }

// readBuffer holds the refusals of a batch, each of which quotes its message.
const readBuffer = 32 << 20

// dial opens a connection to a network namespace by its file descriptor, or,
// with 0, to that of the calling thread.
func dial(netns int) (*conn, error) {
	s, err := socket.Dial(socket.Config{Protocol: unix.NETLINK_NETFILTER, NetNS: netns, Setup: func(nl *netlink.Conn) error {
		return errors.Join(
			nl.SetOption(netlink.ExtendedAcknowledge, true), // tells which element it was
			nl.SetReadBuffer(readBuffer),
		)
	}})
	if err != nil {
		return nil, fmt.Errorf("nf_tables: %w", err)
	}
	return &conn{Socket: s, request: direct}, nil
}

// message is one request of a batch.
type message struct {
	typ    uint16 // within nf_tables
	atEnd  bool   // of the chain, for rules
	create bool
	// raw is the message as it is sent. Its header is empty: send fills it.
	raw []byte
}

// data returns nfgenmsg and the attributes, which follow the header.
func (m *message) data() []byte { return m.raw[netlinkHead:] }

// refusal is the kernel's refusal of one message.
type refusal struct {
	index  int // of the message in its batch, or wholeBatch
	offset int // of the attribute at which the kernel stopped, from the message's beginning
	err    error
}

// wholeBatch is the index of a refusal of the batch itself.
const wholeBatch = -1

func (r refusal) Error() string { return "nf_tables: " + r.err.Error() }

func (r refusal) Unwrap() error { return r.err }

// send sends a batch, which the kernel commits as a whole or not at all. It returns the
// reasons not to.
func (c *conn) send(ctx context.Context, batch []message) (refusals []refusal, err error) {
	if len(batch) == 0 {
		return nil, nil
	}
	err = c.request(batch, func() (err error) {
		refusals, err = c.exchange(ctx, batch)
		return err
	})
	return refusals, err
}

func (c *conn) exchange(ctx context.Context, batch []message) (refusals []refusal, err error) {
	err = c.Do(ctx, func(nl *socket.Conn) (err error) {
		first := c.sequence + 1
		pieces, size := c.pieces(batch, nl.PID())
		if err := nl.Write(pieces); err != nil {
			return fmt.Errorf("send %d bytes to nf_tables: %w", size, err)
		}
		refusals, err = answers(nl, len(batch), first)
		return err
	})
	return refusals, err
}

// pieces returns the messages of a batch with their headers, as the socket takes them at once, and
// how large they are.
func (c *conn) pieces(batch []message, pid uint32) (pieces [][]byte, size int) {
	var last []byte
	add := func(typ uint16, flags netlink.HeaderFlags, raw []byte) {
		c.sequence++
		header := binary.NativeEndian.AppendUint32(raw[:0], uint32(len(raw)))
		header = binary.NativeEndian.AppendUint16(header, typ)
		header = binary.NativeEndian.AppendUint16(header, uint16(netlink.Request|flags))
		header = binary.NativeEndian.AppendUint32(header, c.sequence)
		binary.NativeEndian.AppendUint32(header, pid)
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
	for i := range batch {
		m := &batch[i]
		var flags netlink.HeaderFlags
		switch {
		case m.atEnd:
			flags = netlink.Create | netlink.Append
		case m.create: // what is there already was not known to the plan
			flags = netlink.Create | netlink.Excl
		}
		// An answer to the last one stands for all: errors come unasked.
		if i == len(batch)-1 {
			flags |= netlink.Acknowledge
		}
		add(uint16(nfType(m.typ)), flags, m.raw)
	}
	add(unix.NFNL_MSG_BATCH_END, 0, frame())
	return pieces, size
}

// answers collects the refusals of a batch of n messages. The kernel has queued all of its
// answers when sending returns. One is to the last message, unless the kernel refused the
// batch itself.
func answers(nl *socket.Conn, n int, first uint32) (all []refusal, err error) {
	last, whole := first+uint32(n), false
	for m, err := range nl.Queued() {
		whole = whole || m.Header.Sequence == last
		if err == nil {
			continue
		}
		op, _ := errors.AsType[*netlink.OpError](err)
		if !socket.Refused(err) {
			return all, fmt.Errorf("answer of nf_tables: %w", err)
		}
		r := refusal{index: wholeBatch, offset: op.Offset, err: op.Err}
		if op.Message != "" {
			r.err = fmt.Errorf("%w (%s)", op.Err, op.Message)
		}
		if i := int(op.Sequence - first); i > 0 && i <= n {
			r.index = i - 1
		} else {
			whole = true
		}
		all = append(all, r)
	}
	if !whole {
		return all, errors.New("nf_tables gave no answer")
	}
	return all, nil
}

// newRequest returns a request that is no part of a batch.
func newRequest(typ uint16, family byte, flags netlink.HeaderFlags, query []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: nfType(typ), Flags: flags},
		Data:   append([]byte{family, 0, 0, 0}, query...),
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
	interrupted, err = c.Ask(ctx, newRequest(typ, family, netlink.Dump, query), func(data []byte) error {
		if len(data) < nfgenHead {
			return errShort
		}
		return each(data[nfgenHead:])
	})
	if err != nil {
		err = fmt.Errorf("list nf_tables: %w", err)
	}
	return interrupted, err
}

// get asks for one object; nil if it is not there.
func (c *conn) get(ctx context.Context, typ uint16, family byte, query []byte) (found fields, err error) {
	err = c.request(nil, func() (err error) {
		found, err = c.ask(ctx, typ, family, query)
		return err
	})
	return found, err
}

func (c *conn) ask(ctx context.Context, typ uint16, family byte, query []byte) (found fields, err error) {
	answered := false
	_, err = c.Ask(ctx, newRequest(typ, family, 0, query), func(data []byte) (err error) {
		if answered = true; len(data) < nfgenHead {
			return errShort
		}
		found, err = parse(data[nfgenHead:])
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err == nil && !answered:
		err = errShort
	}
	if err != nil {
		return nil, fmt.Errorf("ask nf_tables: %w", err)
	}
	return found, nil
}

// generation is the number of the last change of any table.
func (c *conn) generation(ctx context.Context) (uint32, error) {
	a, err := c.get(ctx, unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	return a.u32(unix.NFTA_GEN_ID), err
}

// fetch asks for elements by a message, and gives the attributes of each answer to
// each, which does not keep them. The kernel has queued all answers when sending
// returns.
func (c *conn) fetch(ctx context.Context, data []byte, each func(attrs []byte) error) error {
	err := c.Do(ctx, func(nl *socket.Conn) error {
		asked, err := nl.Send(netlink.Message{
			Header: netlink.Header{Type: nfType(unix.NFT_MSG_GETSETELEM), Flags: netlink.Request},
			Data:   data,
		})
		if err != nil {
			return err
		}
		var first error // the queue is emptied whatever it is
		for m, err := range nl.Queued() {
			switch {
			case err == nil && (m.Header.Sequence != asked.Header.Sequence || len(m.Data) < nfgenHead):
				err = errShort
			case err == nil:
				err = each(m.Data[nfgenHead:])
			}
			first = cmp.Or(first, err)
		}
		return first
	})
	if err != nil {
		return fmt.Errorf("ask nf_tables: %w", err)
	}
	return nil
}
