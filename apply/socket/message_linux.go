package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// netlink.Conn's methods that send and receive are not used. After EINTR they wait for an event of the
// socket, which may never come. Receive does not return the flags of the message that ends a dump,
// which report interruption. It does not limit the wait for each datagram, and it copies each one.

var (
	errSequence = errors.New("the kernel's reply is to another request")
	errNoAnswer = fmt.Errorf("the kernel did not reply within %s", Timeout)
	errShort    = errors.New("the kernel's reply is truncated")
	errLength   = errors.New("the kernel's reply is longer than the buffer")
)

// Ask sends a request, and passes each answer to each, which must not keep its
// data. interrupted is as in Socket.Ask.
func (c *Conn) Ask(m netlink.Message, each func(data []byte) error) (interrupted bool, err error) {
	m.Header.Flags |= netlink.Request
	asked, err := c.Send(m)
	if err != nil {
		return false, err
	}
	for m, err := range c.Answers() {
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		switch {
		case err != nil && !IsRejection(err):
			return interrupted, err
		case m.Header.Sequence != asked.Header.Sequence:
			return interrupted, errSequence
		case err != nil:
			return interrupted, err
		case m.Header.Type == netlink.Done, m.Header.Type == netlink.Error: // an acknowledgement
			return interrupted, nil
		}
		if err := each(m.Data); err != nil {
			return interrupted, err
		}
		if m.Header.Flags&netlink.Multi == 0 {
			break
		}
	}
	return interrupted, nil
}

// Send sends a request, and returns it with its header.
func (c *Conn) Send(m netlink.Message) (netlink.Message, error) {
	sent, err := c.SendMessages([]netlink.Message{m})
	return sent[0], err
}

// SendMessages sends requests in one piece, and returns them with their headers.
func (c *Conn) SendMessages(all []netlink.Message) ([]netlink.Message, error) {
	var raw []byte
	for i := range all {
		c.Sequence++
		h := &all[i].Header
		h.Length, h.Sequence, h.PID = uint32(unix.NLMSG_HDRLEN+len(all[i].Data)+3)&^3, c.Sequence, c.PID()
		message, err := all[i].MarshalBinary()
		if err != nil {
			return all, err
		}
		raw = append(raw, message...)
	}
	return all, c.send([][]byte{raw})
}

// send makes one system call. It does not wait: the kernel handles a request before it returns.
func (c *Conn) send(pieces [][]byte) (err error) {
	failed := c.raw.Write(func(fd uintptr) bool {
		err = c.attempt("sendmsg", func() error {
			_, err := unix.SendmsgBuffers(int(fd), pieces, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, unix.MSG_DONTWAIT)
			return err
		})
		return true
	})
	return errors.Join(failed, os.NewSyscallError("sendmsg", err))
}

// maxInterrupts is the number of attempts of a system call that signals interrupt.
const maxInterrupts = 100

// attempt makes a system call, and repeats it while a signal interrupts it.
func (c *Conn) attempt(call string, do func() error) (err error) {
	for range maxInterrupts {
		if err = nil; c.fault != nil {
			err = c.fault(call)
		}
		if err == nil {
			err = do()
		}
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// Write sends messages that are complete, in one piece.
func (c *Conn) Write(pieces [][]byte) error {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if room := size + 4096; room > c.room {
		if err := c.SetWriteBuffer(room); err != nil {
			return fmt.Errorf("netlink write buffer of %d bytes: %w", room, err)
		}
		c.room = room
	}
	return c.send(pieces)
}

// Answers receives messages one by one. A refusal is an error for which IsRejection
// reports true; messages may follow it, as they do after an acknowledgement. No
// message follows any other error. Each message is valid until the next.
func (c *Conn) Answers() iter.Seq2[netlink.Message, error] { return c.receiveAll(Timeout) }

// Queued is Answers for those that the kernel has queued already: it does not
// wait.
func (c *Conn) Queued() iter.Seq2[netlink.Message, error] { return c.receiveAll(0) }

// forever is the time to wait for a notification.
const forever time.Duration = -1

func (c *Conn) receiveAll(wait time.Duration) iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		for {
			data, err := c.receive(wait)
			if wait == 0 && err == unix.EAGAIN {
				return
			}
			if err != nil {
				yield(netlink.Message{}, err)
				return
			}
			for m, err := range messages(data) {
				if err == nil {
					err = rejectionOf(m)
				}
				if !yield(m, err) || err != nil && !IsRejection(err) {
					return
				}
			}
		}
	}
}

// receive reads one datagram from the kernel. It returns no data for one from another process.
func (c *Conn) receive(wait time.Duration) (data []byte, err error) {
	var until time.Time
	if wait > 0 {
		until = time.Now().Add(wait)
	}
	if !c.deadline.IsZero() && (until.IsZero() || c.deadline.Before(until)) {
		until = c.deadline
	}
	if err := c.SetReadDeadline(until); err != nil {
		return nil, err
	}
	var n int
	var from unix.Sockaddr
	failed := c.raw.Read(func(fd uintptr) bool {
		err = c.attempt("recvfrom", func() (err error) {
			n, from, err = unix.Recvfrom(int(fd), c.buffer[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			return err
		})
		return wait == 0 || err != unix.EAGAIN
	})
	switch kernel, ok := from.(*unix.SockaddrNetlink); {
	case errors.Is(failed, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("%w: %w", errNoAnswer, failed)
	case failed != nil:
		return nil, failed
	case err == unix.EAGAIN:
		return nil, unix.EAGAIN
	case err != nil:
		return nil, os.NewSyscallError("recvfrom", err)
	case !ok || kernel.Pid != 0:
		return nil, nil
	case n > len(c.buffer):
		return nil, errLength
	}
	return c.buffer[:n], nil
}

// messages returns the messages of a datagram.
func messages(data []byte) iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		for len(data) > 0 {
			n := 0
			if len(data) >= unix.NLMSG_HDRLEN {
				n = int(binary.NativeEndian.Uint32(data))
			}
			if n < unix.NLMSG_HDRLEN || n > len(data) {
				yield(netlink.Message{}, errShort)
				return
			}
			m := netlink.Message{Header: netlink.Header{
				Length:   uint32(n),
				Type:     netlink.HeaderType(binary.NativeEndian.Uint16(data[4:])),
				Flags:    netlink.HeaderFlags(binary.NativeEndian.Uint16(data[6:])),
				Sequence: binary.NativeEndian.Uint32(data[8:]),
				PID:      binary.NativeEndian.Uint32(data[12:]),
			}, Data: data[unix.NLMSG_HDRLEN:n]}
			if !yield(m, nil) {
				return
			}
			data = data[min(len(data), (n+3)&^3):]
		}
	}
}

// rejectionOf returns the error that a message is, with what the kernel says of it
// (NETLINK_EXT_ACK); nil if it is none.
func rejectionOf(m netlink.Message) error {
	const capped = 0x100 // NLM_F_CAPPED
	list := m.Header.Type == netlink.Done
	if !list && m.Header.Type != netlink.Error || len(m.Data) < 4 {
		return nil
	}
	code := int32(binary.NativeEndian.Uint32(m.Data))
	if code == 0 {
		return nil
	}
	op := &netlink.OpError{Op: "receive", Err: unix.Errno(-code), Sequence: m.Header.Sequence}
	if m.Header.Flags&netlink.AcknowledgeTLVs == 0 {
		return op
	}
	rest := m.Data[4:]
	if !list && len(rest) >= unix.NLMSG_HDRLEN { // the request, or its header alone
		request := unix.NLMSG_HDRLEN
		if m.Header.Flags&capped == 0 {
			request = int(binary.NativeEndian.Uint32(rest)+3) &^ 3
		}
		rest = rest[min(max(request, 0), len(rest)):]
	}
	ad, err := netlink.NewAttributeDecoder(rest)
	for err == nil && ad.Next() {
		switch ad.Type() {
		case unix.NLMSGERR_ATTR_MSG:
			op.Message = ad.String()
		case unix.NLMSGERR_ATTR_OFFS:
			op.Offset = int(ad.Uint32())
		}
	}
	return op
}
