package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

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
	attrID         = 12
	attrZone       = 18
	attrFilter     = 25

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

	filterOrig         = 1
	filterIPDst        = 1 << 1
	filterProtoNum     = 1 << 3
	filterProtoDstPort = 1 << 5
)

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
// kernel ignores or rejects the filter, filtered is false, and each receives all UDP entries of the
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
	var req []byte
	if *filtered {
		req = encode(f.encode)
	}
	return t.reading.Ask(context.Background(), message(msgGet, netlink.Dump, f.family, req), func(data []byte) error {
		e, err := decode(data)
		if err != nil {
			return err
		}
		*filtered = *filtered && f.matches(e)
		if e.Protocol != ir.UDP {
			return nil
		}
		return each(e)
	})
}

// encode adds the filter to a request.
func (f filter) encode(ae *netlink.AttributeEncoder) {
	flags := uint32(filterProtoNum)
	if f.addr.IsValid() {
		flags |= filterIPDst
	}
	if f.port != 0 {
		flags |= filterProtoDstPort
	}
	ae.Nested(attrFilter, func(ae *netlink.AttributeEncoder) error {
		ae.Uint32(filterOrig, flags)
		return nil
	})
	ae.Nested(attrTupleOrig, func(ae *netlink.AttributeEncoder) error {
		if f.addr.IsValid() {
			ae.Nested(tupleIP, func(ae *netlink.AttributeEncoder) error {
				dst := uint16(ipv4Dst)
				if f.family == ir.IPv6 {
					dst = ipv6Dst
				}
				ae.Bytes(dst, f.addr.AsSlice())
				return nil
			})
		}
		ae.Nested(tupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.ByteOrder = binary.BigEndian
			ae.Uint8(protoNum, uint8(ir.UDP))
			if f.port != 0 {
				ae.Uint16(protoDstPort, f.port)
			}
			return nil
		})
		return nil
	})
	ae.Bytes(attrZone, []byte{0, 0}) // supported from Linux 6.9 on
}

// delete deletes entries, and returns how many of them existed. It continues after errors and
// returns all of them.
func (t *table) delete(entries []Entry) (deleted int, err error) {
	var errs []error
	for len(entries) > 0 {
		n := min(batch, len(entries))
		some, err := t.deleteBatch(entries[:n])
		deleted += some
		errs = append(errs, err)
		entries = entries[n:]
	}
	return deleted, errors.Join(errs...)
}

func (t *table) deleteBatch(entries []Entry) (deleted int, err error) {
	msgs := make([]netlink.Message, len(entries))
	for i, e := range entries {
		msgs[i] = message(msgDelete, netlink.Acknowledge, ir.FamilyOf(e.To.Addr()), encode(func(ae *netlink.AttributeEncoder) { identify(ae, e) }))
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

// message prepends the netfilter header to attributes.
func message(kind netlink.HeaderType, flags netlink.HeaderFlags, family ir.Family, attrs []byte) netlink.Message {
	af := byte(unix.AF_INET)
	if family == ir.IPv6 {
		af = unix.AF_INET6
	}
	return netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   append([]byte{af, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

// encode returns attributes in network byte order. It panics on errors, which cannot occur: all
// attributes are small and of fixed size.
func encode(fill func(*netlink.AttributeEncoder)) []byte {
	ae := netlink.NewAttributeEncoder()
	fill(ae)
	data, err := ae.Encode()
	if err != nil {
		panic(err)
	}
	return data
}

// identify adds the flow and the kernel's ID of an entry. The ID protects a later entry of the same
// flow.
func identify(ae *netlink.AttributeEncoder, e Entry) {
	ae.Nested(attrTupleOrig, func(ae *netlink.AttributeEncoder) error {
		direction(ae, e.Protocol, e.Client, e.To)
		return nil
	})
	ae.ByteOrder = binary.BigEndian
	ae.Uint32(attrID, e.ID)
}

// direction adds the source and destination of one direction of a flow.
func direction(ae *netlink.AttributeEncoder, proto ir.Protocol, from, to netip.AddrPort) {
	ae.Nested(tupleIP, func(ae *netlink.AttributeEncoder) error {
		src, dst := uint16(ipv4Src), uint16(ipv4Dst)
		if to.Addr().Is6() {
			src, dst = ipv6Src, ipv6Dst
		}
		ae.Bytes(src, from.Addr().AsSlice())
		ae.Bytes(dst, to.Addr().AsSlice())
		return nil
	})
	ae.Nested(tupleProto, func(ae *netlink.AttributeEncoder) error {
		ae.ByteOrder = binary.BigEndian
		ae.Uint8(protoNum, uint8(proto))
		ae.Uint16(protoSrcPort, from.Port())
		ae.Uint16(protoDstPort, to.Port())
		return nil
	})
}

var errCut = errors.New("an attribute is cut off")

// decode decodes an entry. It runs for each entry of the table, so it does not allocate.
func decode(data []byte) (e Entry, err error) {
	const header = 4
	if len(data) < header {
		return Entry{}, errors.New("message without a netfilter header")
	}
	var kind uint16
	var value []byte
	for rest := data[header:]; len(rest) > 0; {
		if kind, value, rest, err = attribute(rest); err != nil {
			return Entry{}, err
		}
		switch {
		case kind == attrTupleOrig:
			e.Client, e.To, e.Protocol, err = tuple(value)
		case kind == attrTupleReply:
			e.From, _, _, err = tuple(value)
		case kind == attrStatus && len(value) == 4:
			e.Unanswered = binary.BigEndian.Uint32(value)&statusSeenReply == 0
		case kind == attrID && len(value) == 4:
			e.ID = binary.BigEndian.Uint32(value)
		case kind == attrZone && len(value) == 2:
			e.Zone = binary.BigEndian.Uint16(value)
		}
		if err != nil {
			return Entry{}, err
		}
	}
	return e, nil
}

// attribute splits off the first attribute.
func attribute(b []byte) (kind uint16, value, rest []byte, err error) {
	const header = 4
	if len(b) < header {
		return 0, nil, nil, errCut
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < header || n > len(b) {
		return 0, nil, nil, errCut
	}
	kind = binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return kind, b[header:n], b[min(len(b), (n+3)&^3):], nil
}

// tuple decodes one direction of a flow.
func tuple(b []byte) (src, dst netip.AddrPort, proto ir.Protocol, err error) {
	var srcAddr, dstAddr netip.Addr
	var srcPort, dstPort uint16
	var outer, inner uint16
	var group, value []byte
	for len(b) > 0 {
		if outer, group, b, err = attribute(b); err != nil {
			return src, dst, 0, err
		}
		for len(group) > 0 && (outer == tupleIP || outer == tupleProto) {
			if inner, value, group, err = attribute(group); err != nil {
				return src, dst, 0, err
			}
			switch {
			case outer == tupleIP && (inner == ipv4Src || inner == ipv6Src):
				srcAddr, _ = netip.AddrFromSlice(value)
			case outer == tupleIP && (inner == ipv4Dst || inner == ipv6Dst):
				dstAddr, _ = netip.AddrFromSlice(value)
			case outer == tupleProto && inner == protoNum && len(value) == 1:
				proto = ir.Protocol(value[0])
			case outer == tupleProto && inner == protoSrcPort && len(value) == 2:
				srcPort = binary.BigEndian.Uint16(value)
			case outer == tupleProto && inner == protoDstPort && len(value) == 2:
				dstPort = binary.BigEndian.Uint16(value)
			}
		}
	}
	return netip.AddrPortFrom(srcAddr, srcPort), netip.AddrPortFrom(dstAddr, dstPort), proto, nil
}
