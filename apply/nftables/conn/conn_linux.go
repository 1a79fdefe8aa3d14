package conn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/socket"
)

// Conn exchanges messages with nf_tables. Keep it open as long as the Dataplane: to close it after
// a removal waits until the kernel has freed the removed objects.
type Conn struct {
	*socket.Socket
	// Request wraps each exchange, which do makes; batch is nil for requests without one. Tests
	// replace it to make requests fail before or after they take effect.
	Request func(batch []Message, do func() error) error
}

// Direct is the Request that only calls do.
func Direct(_ []Message, do func() error) error { return do() }

// readBuffer is the size in bytes for the rejections of a batch, each of which quotes its message.
const readBuffer = 32 << 20

// Dial opens a connection to the network namespace of a file descriptor, or of the calling thread
// if netns is 0.
func Dial(netns int) (*Conn, error) {
	c, err := New(netns)
	if err == nil {
		if err = c.Connect(); err == nil {
			return c, nil
		}
		c.Close()
	}
	return nil, fmt.Errorf("nf_tables: %w", err)
}

// New is Dial for a connection that the first exchange opens.
func New(netns int) (*Conn, error) {
	s, err := socket.New(socket.Config{Protocol: unix.NETLINK_NETFILTER, NetNS: netns, Setup: func(nl *netlink.Conn) error {
		return errors.Join(
			nl.SetOption(netlink.ExtendedAcknowledge, true), // reports the rejected element
			nl.SetReadBuffer(readBuffer),
		)
	}})
	if err != nil {
		return nil, err
	}
	return &Conn{Socket: s, Request: Direct}, nil
}

// Message is one request of a batch.
type Message struct {
	Type   uint16 // within nf_tables
	Append bool   // of the chain, for rules
	Create bool
	// Raw is the complete message. Send fills in its header, which is empty before.
	Raw []byte
}

// Data returns nfgenmsg and the attributes, without the header.
func (m *Message) Data() []byte { return m.Raw[codec.NetlinkHead:] }

// Refusal is the kernel's rejection of one message.
type Refusal struct {
	Index  int // of the message in its batch, or WholeBatch
	Offset int // of the rejected attribute in the message
	Err    error
}

// WholeBatch is the index if the kernel rejects the batch itself.
const WholeBatch = -1

func (r Refusal) Error() string { return "nf_tables: " + r.Err.Error() }

func (r Refusal) Unwrap() error { return r.Err }

// Send sends a batch, which the kernel commits completely or not at all. It returns the reasons for
// a rejection.
func (c *Conn) Send(ctx context.Context, batch []Message) (refusals []Refusal, err error) {
	if len(batch) == 0 {
		return nil, nil
	}
	err = c.Request(batch, func() error {
		return c.Do(ctx, func(nl *socket.Conn) (err error) {
			first := nl.Sequence + 1
			pieces, size := frame(batch, nl)
			if err := nl.Write(pieces); err != nil {
				return fmt.Errorf("send %d bytes to nf_tables: %w", size, err)
			}
			refusals, err = answers(nl, len(batch), first)
			return err
		})
	})
	return refusals, err
}

// NewMessage returns a message with attributes.
func NewMessage(typ uint16, family byte, attrs []byte) Message {
	head := append(make([]byte, codec.NetlinkHead), family, 0, 0, 0)
	return Message{Type: typ, Raw: append(head, attrs...)}
}

// Change sends messages as a batch.
func (c *Conn) Change(ctx context.Context, batch ...Message) error {
	refusals, err := c.Send(ctx, batch)
	if len(refusals) > 0 {
		return refusals[0]
	}
	return err
}

// frame returns the messages of a batch with their headers, split into the pieces of one send
// call, and their total size in bytes.
func frame(batch []Message, nl *socket.Conn) (pieces [][]byte, size int) {
	var last []byte
	add := func(typ uint16, flags netlink.HeaderFlags, raw []byte) {
		nl.Sequence++
		header := binary.NativeEndian.AppendUint32(raw[:0], uint32(len(raw)))
		header = binary.NativeEndian.AppendUint16(header, typ)
		header = binary.NativeEndian.AppendUint16(header, uint16(netlink.Request|flags))
		header = binary.NativeEndian.AppendUint32(header, nl.Sequence)
		binary.NativeEndian.AppendUint32(header, nl.PID())
		if behind := len(last); behind < cap(last) && &last[:behind+1][behind] == &raw[0] {
			last = last[:behind+len(raw)]
			pieces[len(pieces)-1] = last
		} else {
			last = raw
			pieces = append(pieces, last)
		}
		size += len(raw)
	}
	border := func() []byte {
		raw := make([]byte, codec.NetlinkHead, codec.NetlinkHead+codec.NfgenHead)
		return binary.BigEndian.AppendUint16(append(raw, 0, 0), unix.NFNL_SUBSYS_NFTABLES)
	}
	add(unix.NFNL_MSG_BATCH_BEGIN, 0, border())
	for i := range batch {
		m := &batch[i]
		var flags netlink.HeaderFlags
		switch {
		case m.Append:
			flags = netlink.Create | netlink.Append
		case m.Create: // an existing object is an error, since the plan is outdated
			flags = netlink.Create | netlink.Excl
		}
		// The acknowledgement of the last message confirms all: errors are always reported.
		if i == len(batch)-1 {
			flags |= netlink.Acknowledge
		}
		add(uint16(nfType(m.Type)), flags, m.Raw)
	}
	add(unix.NFNL_MSG_BATCH_END, 0, border())
	return pieces, size
}

// answers collects the rejections of a batch of n messages. The kernel has queued all answers when
// sending returns. One of them acknowledges the last message, unless the kernel rejected the batch
// itself.
func answers(nl *socket.Conn, n int, first uint32) (all []Refusal, err error) {
	last, whole := first+uint32(n), false
	for m, err := range nl.Queued() {
		whole = whole || m.Header.Sequence == last
		if err == nil {
			continue
		}
		op, _ := errors.AsType[*netlink.OpError](err)
		if !socket.IsRejection(err) {
			return all, fmt.Errorf("answer of nf_tables: %w", err)
		}
		r := Refusal{Index: WholeBatch, Offset: op.Offset, Err: op.Err}
		if op.Message != "" {
			r.Err = fmt.Errorf("%w (%s)", op.Err, op.Message)
		}
		if i := int(op.Sequence - first); i > 0 && i <= n {
			r.Index = i - 1
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

// newRequest returns a request outside of a batch.
func newRequest(typ uint16, family byte, flags netlink.HeaderFlags, query []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: nfType(typ), Flags: flags},
		Data:   append([]byte{family, 0, 0, 0}, query...),
	}
}

func nfType(t uint16) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | t)
}

// Dump lists the objects of a kind, and passes their attributes to each. interrupted is true if a
// table changed meanwhile.
func (c *Conn) Dump(ctx context.Context, typ uint16, family byte, query []byte, each func(attrs []byte) error) (interrupted bool, err error) {
	err = c.Request(nil, func() (err error) {
		interrupted, err = c.ask(ctx, newRequest(typ, family, netlink.Dump, query), each)
		return err
	})
	if err != nil {
		err = fmt.Errorf("list nf_tables: %w", err)
	}
	return interrupted, err
}

// List is Dump for objects with few attributes.
func (c *Conn) List(ctx context.Context, typ uint16, family byte, query []byte, each func(codec.Fields) error) (interrupted bool, err error) {
	return c.Dump(ctx, typ, family, query, func(b []byte) error {
		a, err := codec.Parse(b)
		if err != nil {
			return err
		}
		return each(a)
	})
}

// Get returns one object; nil if it does not exist.
func (c *Conn) Get(ctx context.Context, typ uint16, family byte, query []byte) (found codec.Fields, err error) {
	err = c.Request(nil, func() error {
		_, err := c.ask(ctx, newRequest(typ, family, 0, query), func(attrs []byte) (err error) {
			found, err = codec.Parse(attrs)
			return err
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err == nil && found == nil: // no answer
			return codec.ErrShort
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask nf_tables: %w", err)
	}
	return found, nil
}

// ask makes a request, and passes the attributes of each answer to each.
func (c *Conn) ask(ctx context.Context, m netlink.Message, each func(attrs []byte) error) (interrupted bool, err error) {
	return c.Ask(ctx, m, func(data []byte) error {
		if len(data) < codec.NfgenHead {
			return codec.ErrShort
		}
		return each(data[codec.NfgenHead:])
	})
}

// Generation returns the number of the last change of any table.
func (c *Conn) Generation(ctx context.Context) (uint32, error) {
	a, err := c.Get(ctx, unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	return a.Uint32(unix.NFTA_GEN_ID), err
}
