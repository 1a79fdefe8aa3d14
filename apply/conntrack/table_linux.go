package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
)

// From linux/netfilter/nfnetlink_conntrack.h, as far as x/sys has it not.
const (
	msgGet    = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK)<<8 | 1
	msgDelete = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK)<<8 | 2

	attrTupleOrig  = 1
	attrTupleReply = 2
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

	filterOrig     = 1
	filterProtoNum = 1 << 3
)

// Table is the connection tracking table of a network namespace.
type Table struct{ conn *netlink.Conn }

// Open opens the table of the network namespace that netns is a file
// descriptor of, or of the calling thread's where it is 0.
func Open(netns int) (*Table, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("connection tracking: %w", err)
	}
	return &Table{conn}, nil
}

// Close gives the socket back.
func (t *Table) Close() error { return t.conn.Close() }

// UDP reads the UDP entries of a family. The kernel picks them from 5.8 on;
// an older one sends all, and the others are passed over here. A dump that
// the kernel calls interrupted is done again a few times; after that the
// entries that did come are good enough, since a stale one that was missed is
// found next time.
func (t *Table) UDP(family ir.Family) ([]Entry, error) {
	const tries = 4
	var entries []Entry
	for range tries {
		var whole bool
		var err error
		if entries, whole, err = t.dump(family); err != nil {
			return nil, fmt.Errorf("connection tracking table of %s: %w", family, err)
		}
		if whole {
			break
		}
	}
	return entries, nil
}

// dump reads the table once; whole is false if it may lack entries.
func (t *Table) dump(family ir.Family) (entries []Entry, whole bool, err error) {
	req := encode(func(ae *netlink.AttributeEncoder) {
		ae.Nested(attrFilter, func(ae *netlink.AttributeEncoder) error {
			ae.Uint32(filterOrig, filterProtoNum)
			return nil
		})
		ae.Nested(attrTupleOrig, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(tupleProto, func(ae *netlink.AttributeEncoder) error {
				ae.Uint8(protoNum, uint8(ir.UDP))
				return nil
			})
			return nil
		})
	})
	if _, err := t.conn.Send(message(msgGet, netlink.Dump, family, req)); err != nil {
		return nil, false, err
	}
	whole = true
	for m, err := range t.conn.ReceiveIter() {
		if errors.Is(err, unix.EINTR) {
			return entries, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		whole = whole && m.Header.Flags&netlink.DumpInterrupted == 0
		e, err := decode(m.Data)
		if err != nil {
			return nil, false, err
		}
		if e.Protocol == ir.UDP {
			entries = append(entries, e)
		}
	}
	return entries, whole, nil
}

// Delete deletes entries and tells how many of them there still were. It goes
// on after an error, and gives them all.
func (t *Table) Delete(entries []Entry) (deleted int, err error) {
	const batch = 64 // as many answers as a socket buffer holds with ease
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

func (t *Table) deleteBatch(entries []Entry) (deleted int, err error) {
	msgs := make([]netlink.Message, len(entries))
	for i, e := range entries {
		msgs[i] = message(msgDelete, netlink.Acknowledge, ir.FamilyOf(e.To.Addr()), encode(func(ae *netlink.AttributeEncoder) { identify(ae, e) }))
	}
	if _, err := t.conn.SendMessages(msgs); err != nil {
		return 0, fmt.Errorf("connection tracking: %w", err)
	}
	var errs []error
	for _, e := range entries { // answers come in the order of the messages
		switch _, err := t.conn.Receive(); {
		case err == nil:
			deleted++
		case errors.Is(err, unix.ENOENT): // ended by itself
		case errors.Is(err, unix.ENOBUFS): // answers are lost: there is no use in waiting for more
			return deleted, errors.Join(append(errs, fmt.Errorf("connection tracking: %w", err))...)
		default:
			errs = append(errs, fmt.Errorf("connection tracking entry %s: %w", e, err))
		}
	}
	return deleted, errors.Join(errs...)
}

// message puts the netfilter header before attributes.
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

// encode gives attributes in network byte order. What is encoded here cannot
// fail: it is of fixed, small size.
func encode(fill func(*netlink.AttributeEncoder)) []byte {
	ae := netlink.NewAttributeEncoder()
	fill(ae)
	data, err := ae.Encode()
	if err != nil {
		panic(err)
	}
	return data
}

// identify says which entry is meant: the flow, and the kernel's number, so
// that an entry which took its place meanwhile is left alone.
func identify(ae *netlink.AttributeEncoder, e Entry) {
	ae.Nested(attrTupleOrig, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(tupleIP, func(ae *netlink.AttributeEncoder) error {
			src, dst := uint16(ipv4Src), uint16(ipv4Dst)
			if e.To.Addr().Is6() {
				src, dst = ipv6Src, ipv6Dst
			}
			ae.Bytes(src, e.Client.Addr().AsSlice())
			ae.Bytes(dst, e.To.Addr().AsSlice())
			return nil
		})
		ae.Nested(tupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.ByteOrder = binary.BigEndian
			ae.Uint8(protoNum, uint8(e.Protocol))
			ae.Uint16(protoSrcPort, e.Client.Port())
			ae.Uint16(protoDstPort, e.To.Port())
			return nil
		})
		return nil
	})
	ae.ByteOrder = binary.BigEndian
	ae.Uint32(attrID, e.ID)
}

// decode reads an entry.
func decode(data []byte) (Entry, error) {
	const header = 4
	if len(data) < header {
		return Entry{}, errors.New("message without a netfilter header")
	}
	ad, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return Entry{}, err
	}
	ad.ByteOrder = binary.BigEndian
	var e Entry
	for ad.Next() {
		switch ad.Type() {
		case attrTupleOrig:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				var err error
				e.Client, e.To, e.Protocol, err = tuple(ad)
				return err
			})
		case attrTupleReply:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				var err error
				e.From, _, _, err = tuple(ad)
				return err
			})
		case attrID:
			e.ID = ad.Uint32()
		case attrZone:
			e.Zone = ad.Uint16()
		}
	}
	return e, ad.Err()
}

// tuple reads one direction of a flow.
func tuple(ad *netlink.AttributeDecoder) (src, dst netip.AddrPort, proto ir.Protocol, err error) {
	var srcAddr, dstAddr netip.Addr
	var srcPort, dstPort uint16
	for ad.Next() {
		switch ad.Type() {
		case tupleIP:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case ipv4Src, ipv6Src:
						srcAddr, _ = netip.AddrFromSlice(ad.Bytes())
					case ipv4Dst, ipv6Dst:
						dstAddr, _ = netip.AddrFromSlice(ad.Bytes())
					}
				}
				return nil
			})
		case tupleProto:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case protoNum:
						proto = ir.Protocol(ad.Uint8())
					case protoSrcPort:
						srcPort = ad.Uint16()
					case protoDstPort:
						dstPort = ad.Uint16()
					}
				}
				return nil
			})
		}
	}
	return netip.AddrPortFrom(srcAddr, srcPort), netip.AddrPortFrom(dstAddr, dstPort), proto, ad.Err()
}
