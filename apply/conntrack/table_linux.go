package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/ir"
)

// Constants of linux/netfilter/nfnetlink_conntrack.h that x/sys lacks.
const (
	msgGet    = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK)<<8 | 1
	msgDelete = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK)<<8 | 2

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrProtoInfo  = 4
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25
	attrStatusMask = 26

	tupleIP    = 1
	tupleProto = 2

	ipv4Src = 1
	ipv4Dst = 2
	ipv6Src = 3
	ipv6Dst = 4

	protoNum     = 1
	protoSrcPort = 2
	protoDstPort = 3

	statusSeenReply = 1 << 1
	statusOffload   = 1 << 14

	filterOrig         = 1
	filterIPDst        = 1 << 1
	filterProtoNum     = 1 << 3
	filterProtoDstPort = 1 << 5
)

// states are those of TCP and SCTP, by the type of their attribute (nf_conntrack_tcp.h, nf_conntrack_sctp.h).
var states = map[uint16][]string{
	1: {"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"},
	3: {"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED"},
}

// table is the connection tracking table of a network namespace. Entries are deleted while the dump
// is read, so reading and writing need a socket each.
type table struct {
	reading interface {
		Ask(ctx context.Context, m netlink.Message, each func(data []byte) error) (interrupted bool, err error)
	}
	writing *socket.Socket
	close   func() error // closes the sockets, and ends a pending exchange
}

// open opens the table of the network namespace with file descriptor netns, or of the calling
// thread's namespace if netns is 0.
func open(netns int) (*table, error) {
	config := socket.Config{Protocol: unix.NETLINK_NETFILTER, NetNS: netns}
	reading, err := socket.Dial(config)
	if err != nil {
		return nil, fmt.Errorf("connection tracking: %w", err)
	}
	writing, err := socket.Dial(config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connection tracking: %w", err), reading.Close())
	}
	return &table{reading, writing, func() error { return errors.Join(reading.Close(), writing.Close()) }}, nil
}

// dump passes the entries that match a filter to each. Kernels filter from Linux 5.8 on. If the
// kernel ignores or rejects the filter, filtered is false, and each receives all entries of the
// family. An interrupted dump is repeated, so each may receive an entry twice.
func (t *table) dump(f filter, each func(Entry) error) (filtered bool, err error) {
	filtered = true
	err = socket.RetryInterrupted(func() (interrupted bool, err error) {
		interrupted, err = t.dumpOnce(f, &filtered, each)
		if filtered && refusesFilters(err) {
			filtered = false
			interrupted, err = t.dumpOnce(f, &filtered, each)
		}
		return interrupted, err
	})
	if err != nil {
		return filtered, fmt.Errorf("connection tracking table of %s: %w", f.family, err)
	}
	return filtered, nil
}

func refusesFilters(err error) bool {
	const enotsupp = unix.Errno(524) // ENOTSUPP, an internal error of the kernel that it should not return
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, enotsupp)
}

// dumpOnce reads the table once. filtered selects whether to send the filter; dumpOnce clears it if
// the kernel ignores the filter.
func (t *table) dumpOnce(f filter, filtered *bool, each func(Entry) error) (interrupted bool, err error) {
	fill := func(*codec.Builder) {}
	if *filtered {
		fill = f.append
	}
	return t.reading.Ask(context.Background(), message(msgGet, netlink.Dump, f.family, fill), func(data []byte) error {
		e, err := decode(data)
		if err != nil {
			return err
		}
		*filtered = *filtered && f.matches(e)
		return each(e)
	})
}

// Each passes all entries of a family in the network namespace of the calling thread to each. Since the table
// changes meanwhile, some may be missing.
func Each(family ir.Family, each func(Entry) error) error {
	t, err := open(0)
	if err != nil {
		return err
	}
	_, err = t.dumpOnce(filter{family: family}, new(bool), each)
	return errors.Join(err, t.close())
}

// append appends the filter to a request.
func (f filter) append(b *codec.Builder) {
	flags := uint32(filterProtoNum)
	if f.addr.IsValid() {
		flags |= filterIPDst
	}
	if f.port != 0 {
		flags |= filterProtoDstPort
	}
	b.Nest(attrFilter, func(b *codec.Builder) { b.Bytes(filterOrig, binary.NativeEndian.AppendUint32(nil, flags)) })
	b.Nest(attrTupleOrig, func(b *codec.Builder) {
		if f.addr.IsValid() {
			b.Nest(tupleIP, func(b *codec.Builder) {
				b.Bytes(ir.Pick[uint16](f.family, ipv4Dst, ipv6Dst), f.addr.AsSlice())
			})
		}
		b.Nest(tupleProto, func(b *codec.Builder) {
			b.Bytes(protoNum, []byte{byte(f.protocol)})
			if f.port != 0 {
				b.Bytes(protoDstPort, port(f.port))
			}
		})
	})
	if f.protocol != ir.UDP { // without a reply
		b.Bytes(attrStatus, []byte{0, 0, 0, 0})
		b.Bytes(attrStatusMask, []byte{0, 0, 0, statusSeenReply})
	}
	b.Bytes(attrZone, []byte{0, 0}) // supported from Linux 6.9 on
}

// port returns a port in network byte order.
func port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// answered reports whether a connection has a reply by now; false for UDP. The kernel has no deletion of
// one entry by its status.
func (t *table) answered(e Entry) (answered bool, err error) {
	if e.Protocol == ir.UDP {
		return false, nil
	}
	get := message(msgGet, netlink.Acknowledge, ir.FamilyOf(e.To.Addr()), func(b *codec.Builder) { identify(b, e) })
	_, err = t.writing.Ask(context.Background(), get, func(data []byte) error {
		now, err := decode(data)
		answered = !now.Unanswered
		return err
	})
	if errors.Is(err, unix.ENOENT) { // already expired
		err = nil
	}
	return answered, err
}

// delete deletes entries, at most batch, and returns how many of them existed. It continues after
// refusals and returns all of them.
func (t *table) delete(entries []Entry) (deleted int, err error) {
	if len(entries) == 0 {
		return 0, nil
	}
	msgs := make([]netlink.Message, len(entries))
	for i, e := range entries {
		msgs[i] = message(msgDelete, netlink.Acknowledge, ir.FamilyOf(e.To.Addr()), func(b *codec.Builder) { identify(b, e) })
	}
	var refusals []error
	err = t.writing.Do(context.Background(), func(c *socket.Conn) error {
		sent, err := c.SendMessages(msgs)
		if err != nil {
			return err
		}
		first := sent[0].Header.Sequence
		for m, err := range c.Answers() {
			i := int(m.Header.Sequence - first)
			switch {
			case err != nil && !socket.IsRejection(err):
				return err
			case err == nil:
				deleted++
			case errors.Is(err, unix.ENOENT): // already expired
			case i < len(entries):
				refusals = append(refusals, fmt.Errorf("connection tracking entry %s: %w", entries[i], err))
			}
			if i == len(entries)-1 { // answers arrive in the order of the messages
				break
			}
		}
		return nil
	})
	if err != nil {
		refusals = append(refusals, fmt.Errorf("connection tracking: %w", err))
	}
	return deleted, errors.Join(refusals...)
}

// message returns a message with the attributes that fill appends.
func message(kind netlink.HeaderType, flags netlink.HeaderFlags, family ir.Family, fill func(*codec.Builder)) netlink.Message {
	b := codec.Builder{codec.Family(family), unix.NFNETLINK_V0, 0, 0}
	fill(&b)
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | flags}, Data: b}
}

// identify appends the flow and the kernel's ID of an entry. The ID protects a later entry of the
// same flow.
func identify(b *codec.Builder, e Entry) {
	b.Nest(attrTupleOrig, func(b *codec.Builder) { direction(b, e.Protocol, e.Client, e.To) })
	b.Uint32(attrID, e.ID)
}

// direction appends the source and destination of one direction of a flow.
func direction(b *codec.Builder, proto ir.Protocol, from, to netip.AddrPort) {
	b.Nest(tupleIP, func(b *codec.Builder) {
		src, dst := uint16(ipv4Src), uint16(ipv4Dst)
		if to.Addr().Is6() {
			src, dst = ipv6Src, ipv6Dst
		}
		b.Bytes(src, from.Addr().AsSlice())
		b.Bytes(dst, to.Addr().AsSlice())
	})
	b.Nest(tupleProto, func(b *codec.Builder) {
		b.Bytes(protoNum, []byte{byte(proto)})
		b.Bytes(protoSrcPort, port(from.Port()))
		b.Bytes(protoDstPort, port(to.Port()))
	})
}

// decode decodes an entry. It runs for each entry of the table, so it does not allocate.
func decode(data []byte) (e Entry, err error) {
	if len(data) < codec.NfgenHead {
		return Entry{}, errors.New("message without a netfilter header")
	}
	var a codec.Attr
	for rest := data[codec.NfgenHead:]; len(rest) > 0; {
		if a, rest, err = codec.Cut(rest); err != nil {
			return Entry{}, err
		}
		switch {
		case a.Type == attrTupleOrig:
			e.Client, e.To, e.Protocol, err = tuple(a.Data)
		case a.Type == attrTupleReply:
			e.From, _, _, err = tuple(a.Data)
		case a.Type == attrStatus && len(a.Data) == 4:
			e.Unanswered = binary.BigEndian.Uint32(a.Data)&statusSeenReply == 0
			if binary.BigEndian.Uint32(a.Data)&statusOffload != 0 {
				e.State = "OFFLOAD"
			}
		case a.Type == attrProtoInfo:
			e.State = state(a.Data)
		case a.Type == attrID && len(a.Data) == 4:
			e.ID = binary.BigEndian.Uint32(a.Data)
		case a.Type == attrZone && len(a.Data) == 2:
			e.Zone = binary.BigEndian.Uint16(a.Data)
		}
		if err != nil {
			return Entry{}, err
		}
	}
	return e, nil
}

// state decodes the state of a connection, the first attribute of its protocol; "" if it is not known.
func state(b []byte) string {
	of, _, err1 := codec.Cut(b)
	number, _, err2 := codec.Cut(of.Data)
	if names := states[of.Type]; err1 == nil && err2 == nil && len(number.Data) == 1 && int(number.Data[0]) < len(names) {
		return names[number.Data[0]]
	}
	return ""
}

// tuple decodes one direction of a flow.
func tuple(b []byte) (src, dst netip.AddrPort, proto ir.Protocol, err error) {
	var srcAddr, dstAddr netip.Addr
	var srcPort, dstPort uint16
	var outer, inner codec.Attr
	for len(b) > 0 {
		if outer, b, err = codec.Cut(b); err != nil {
			return src, dst, 0, err
		}
		for group := outer.Data; len(group) > 0 && (outer.Type == tupleIP || outer.Type == tupleProto); {
			if inner, group, err = codec.Cut(group); err != nil {
				return src, dst, 0, err
			}
			switch (attribute{outer.Type, inner.Type}) {
			case attribute{tupleIP, ipv4Src}, attribute{tupleIP, ipv6Src}:
				srcAddr, _ = netip.AddrFromSlice(inner.Data)
			case attribute{tupleIP, ipv4Dst}, attribute{tupleIP, ipv6Dst}:
				dstAddr, _ = netip.AddrFromSlice(inner.Data)
			case attribute{tupleProto, protoNum}:
				proto = ir.Protocol(number(inner.Data, 1))
			case attribute{tupleProto, protoSrcPort}:
				srcPort = number(inner.Data, 2)
			case attribute{tupleProto, protoDstPort}:
				dstPort = number(inner.Data, 2)
			}
		}
	}
	return netip.AddrPortFrom(srcAddr, srcPort), netip.AddrPortFrom(dstAddr, dstPort), proto, nil
}

// attribute is the type of an attribute within another one.
type attribute struct{ outer, inner uint16 }

// number returns a number of some bytes; 0 for a value of another length.
func number(b []byte, size int) (n uint16) {
	if len(b) == size {
		for _, digit := range b {
			n = n<<8 | uint16(digit)
		}
	}
	return n
}
