package nftables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// This file is netlink's attributes: type, length, value, aligned to four
// bytes. Numbers within nf_tables are big endian, lengths and types native.

const (
	typeMask    = unix.NLA_F_NET_BYTEORDER - 1 // without flags
	attrHeader  = unix.SizeofNlAttr
	netlinkHead = unix.NLMSG_HDRLEN
	nfgenHead   = 4 // nfgenmsg: family, version, resource
)

func align(n int) int { return (n + 3) &^ 3 }

// builder appends attributes. netlink.AttributeEncoder, which allocates for each
// attribute and copies it once for each that it is in, takes thirty times as long
// for elements (BenchmarkElements), and for rules adds a seventh to all that is
// allocated when a node's tables are filled (cmd/proxyc.TestCounts).
type builder []byte

// encode returns the attributes that fill appends.
func encode(fill func(b *builder)) []byte {
	var b builder
	fill(&b)
	return b
}

func (b *builder) bytes(t uint16, v []byte) {
	b.header(t, len(v))
	*b = append(*b, v...)
	b.pad()
}

// text appends a string, which ends in a zero byte.
func (b *builder) text(t uint16, s string) {
	b.header(t, len(s)+1)
	*b = append(append(*b, s...), 0)
	b.pad()
}

func (b *builder) u32(t uint16, v uint32) {
	b.header(t, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

func (b *builder) u64(t uint16, v uint64) {
	b.header(t, 8)
	*b = binary.BigEndian.AppendUint64(*b, v)
}

// value appends an attribute that holds a value.
func (b *builder) value(t uint16, v []byte) {
	start := b.open(t)
	b.bytes(unix.NFTA_DATA_VALUE, v)
	b.close(start)
}

// nest appends an attribute that holds those that fill appends.
func (b *builder) nest(t uint16, fill func(b *builder)) {
	start := b.open(t)
	fill(b)
	b.close(start)
}

func (b *builder) header(t uint16, n int) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(attrHeader+n))
	*b = binary.NativeEndian.AppendUint16(*b, t)
}

func (b *builder) pad() {
	for len(*b)%4 != 0 {
		*b = append(*b, 0)
	}
}

// open begins an attribute that holds attributes, and returns what close takes.
func (b *builder) open(t uint16) int {
	start := len(*b)
	b.header(t|unix.NLA_F_NESTED, 0)
	return start
}

func (b *builder) close(start int) {
	binary.NativeEndian.PutUint16((*b)[start:], uint16(len(*b)-start))
}

// attr is one attribute as it was read.
type attr struct {
	typ  uint16 // without flags
	data []byte
}

var errShort = errors.New("netlink attribute is cut short")

// cut returns the first attribute in b, and what comes after it. Both are parts of
// b: the values of elements are too many to be copied, as netlink.AttributeDecoder
// does (BenchmarkElements).
func cut(b []byte) (a attr, rest []byte, err error) {
	if len(b) < attrHeader {
		return a, nil, errShort
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < attrHeader || n > len(b) {
		return a, nil, errShort
	}
	return attr{binary.NativeEndian.Uint16(b[2:]) & typeMask, b[attrHeader:n]}, b[min(align(n), len(b)):], nil
}

// attrs returns the attributes in b.
func attrs(b []byte) ([]attr, error) {
	n := 0
	for rest := b; len(rest) > 0; n++ {
		var err error
		if _, rest, err = cut(rest); err != nil {
			return nil, err
		}
	}
	all := make([]attr, n)
	for i := range all {
		all[i], b, _ = cut(b)
	}
	return all, nil
}

// first returns the value of the first attribute of a type in b, nil if there is none.
func first(b []byte, t uint16) ([]byte, error) {
	for len(b) > 0 {
		a, rest, err := cut(b)
		if err != nil || a.typ == t {
			return a.data, err
		}
		b = rest
	}
	return nil, nil
}

// fields are the attributes in b by type; of several alike, the last.
type fields map[uint16][]byte

func parse(b []byte) (fields, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return nil, err
	}
	f := make(fields, ad.Len())
	for ad.Next() {
		f[ad.Type()] = ad.Bytes()
	}
	return f, ad.Err()
}

// u32 returns a number, 0 if it is not there.
func (f fields) u32(t uint16) uint32 {
	if b := f[t]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// text returns a string, empty if it is not there.
func (f fields) text(t uint16) string { return cString(f[t]) }

// cString is a string up to its zero byte.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// under returns the attributes within one.
func (f fields) under(t uint16) (fields, error) {
	g, err := parse(f[t])
	if err != nil {
		return nil, fmt.Errorf("attribute %d: %w", t, err)
	}
	return g, nil
}
