package codec

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
	AttrHeader  = unix.SizeofNlAttr
	NetlinkHead = unix.NLMSG_HDRLEN
	NfgenHead   = 4 // nfgenmsg: family, version, resource
)

func Align(n int) int { return (n + 3) &^ 3 }

// Builder appends attributes. netlink.AttributeEncoder, which allocates for each
// attribute and copies it once for each that it is in, takes thirty times as long
// for elements (BenchmarkElements), and for rules adds a seventh to all that is
// allocated when a node's tables are filled (cmd/proxyc.TestCounts).
type Builder []byte

// Encode returns the attributes that fill appends.
func Encode(fill func(b *Builder)) []byte {
	var b Builder
	fill(&b)
	return b
}

func (b *Builder) bytes(t uint16, v []byte) {
	b.header(t, len(v))
	*b = append(*b, v...)
	b.pad()
}

// Text appends a string, which ends in a zero byte.
func (b *Builder) Text(t uint16, s string) {
	b.header(t, len(s)+1)
	*b = append(append(*b, s...), 0)
	b.pad()
}

func (b *Builder) Uint32(t uint16, v uint32) {
	b.header(t, 4)
	*b = binary.BigEndian.AppendUint32(*b, v)
}

func (b *Builder) u64(t uint16, v uint64) {
	b.header(t, 8)
	*b = binary.BigEndian.AppendUint64(*b, v)
}

// Value appends an attribute that holds a value.
func (b *Builder) value(t uint16, v []byte) {
	start := b.Open(t)
	b.bytes(unix.NFTA_DATA_VALUE, v)
	b.Close(start)
}

// Nest appends an attribute that holds those that fill appends.
func (b *Builder) Nest(t uint16, fill func(b *Builder)) {
	start := b.Open(t)
	fill(b)
	b.Close(start)
}

func (b *Builder) header(t uint16, n int) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(AttrHeader+n))
	*b = binary.NativeEndian.AppendUint16(*b, t)
}

func (b *Builder) pad() {
	for len(*b)%4 != 0 {
		*b = append(*b, 0)
	}
}

// Open begins an attribute that holds attributes, and returns the argument of Close.
func (b *Builder) Open(t uint16) int {
	start := len(*b)
	b.header(t|unix.NLA_F_NESTED, 0)
	return start
}

func (b *Builder) Close(start int) {
	binary.NativeEndian.PutUint16((*b)[start:], uint16(len(*b)-start))
}

// Attr is one attribute as it was read.
type Attr struct {
	Type uint16 // without flags
	Data []byte
}

var ErrShort = errors.New("netlink attribute is cut short")

// cut returns the first attribute in b, and what comes after it. Both are parts of
// b: the values of elements are too many to be copied, as netlink.AttributeDecoder
// does (BenchmarkElements).
func cut(b []byte) (a Attr, rest []byte, err error) {
	if len(b) < AttrHeader {
		return a, nil, ErrShort
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < AttrHeader || n > len(b) {
		return a, nil, ErrShort
	}
	return Attr{binary.NativeEndian.Uint16(b[2:]) & typeMask, b[AttrHeader:n]}, b[min(Align(n), len(b)):], nil
}

// Attrs returns the attributes in b.
func Attrs(b []byte) ([]Attr, error) {
	n := 0
	for rest := b; len(rest) > 0; n++ {
		var err error
		if _, rest, err = cut(rest); err != nil {
			return nil, err
		}
	}
	all := make([]Attr, n)
	for i := range all {
		all[i], b, _ = cut(b)
	}
	return all, nil
}

// First returns the value of the first attribute of a type in b, nil if there is none.
func First(b []byte, t uint16) ([]byte, error) {
	for len(b) > 0 {
		a, rest, err := cut(b)
		if err != nil || a.Type == t {
			return a.Data, err
		}
		b = rest
	}
	return nil, nil
}

// Fields are the attributes in b by type; of several alike, the last.
type Fields map[uint16][]byte

func Parse(b []byte) (Fields, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return nil, err
	}
	f := make(Fields, ad.Len())
	for ad.Next() {
		f[ad.Type()] = ad.Bytes()
	}
	return f, ad.Err()
}

// Uint32 returns a number, 0 if it is not there.
func (f Fields) Uint32(t uint16) uint32 {
	if b := f[t]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Text returns a string, empty if it is not there.
func (f Fields) Text(t uint16) string { return CString(f[t]) }

// CString is a string up to its zero byte.
func CString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// under returns the attributes within one.
func (f Fields) under(t uint16) (Fields, error) {
	g, err := Parse(f[t])
	if err != nil {
		return nil, fmt.Errorf("attribute %d: %w", t, err)
	}
	return g, nil
}
