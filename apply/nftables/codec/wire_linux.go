package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// This file implements netlink's attributes: length, type and value, aligned to four bytes. Numbers
// in nf_tables are big endian, lengths and types native.

const (
	typeMask    = unix.NLA_F_NET_BYTEORDER - 1 // without flags
	AttrHeader  = unix.SizeofNlAttr
	NetlinkHead = unix.NLMSG_HDRLEN
	NfgenHead   = 4 // nfgenmsg: family, version, resource
)

func Align(n int) int { return (n + 3) &^ 3 }

// Builder appends attributes. netlink.AttributeEncoder allocates for each attribute, and copies it
// once per level. It takes thirty times as long for elements (BenchmarkElements). For rules, it
// would add a seventh to all allocations when a node's tables are filled (cmd/proxyc.TestCounts).
type Builder []byte

// Encode returns the attributes that fill appends.
func Encode(fill func(b *Builder)) []byte {
	var b Builder
	fill(&b)
	return b
}

// Bytes appends bytes as they are.
func (b *Builder) Bytes(t uint16, v []byte) {
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

func (b *Builder) Uint64(t uint16, v uint64) {
	b.header(t, 8)
	*b = binary.BigEndian.AppendUint64(*b, v)
}

// value appends an attribute that contains a value.
func (b *Builder) value(t uint16, v []byte) {
	start := b.Open(t)
	b.Bytes(unix.NFTA_DATA_VALUE, v)
	b.Close(start)
}

// Nest appends an attribute with nested ones, which fill appends.
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

// Open starts an attribute with nested ones, and returns the argument of Close.
func (b *Builder) Open(t uint16) int {
	start := len(*b)
	b.header(t|unix.NLA_F_NESTED, 0)
	return start
}

func (b *Builder) Close(start int) {
	binary.NativeEndian.PutUint16((*b)[start:], uint16(len(*b)-start))
}

// Attr is an attribute that was read.
type Attr struct {
	Type uint16 // without flags
	Data []byte
}

var ErrShort = errors.New("netlink attribute is cut short")

// Cut returns the first attribute in b, and the rest. Both are parts of b: there are too many
// values of elements to copy, as netlink.AttributeDecoder does (BenchmarkElements).
func Cut(b []byte) (a Attr, rest []byte, err error) {
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
		if _, rest, err = Cut(rest); err != nil {
			return nil, err
		}
	}
	all := make([]Attr, n)
	for i := range all {
		all[i], b, _ = Cut(b)
	}
	return all, nil
}

// First returns the value of the first attribute of a type in b, or nil.
func First(b []byte, t uint16) ([]byte, error) {
	for len(b) > 0 {
		a, rest, err := Cut(b)
		if err != nil || a.Type == t {
			return a.Data, err
		}
		b = rest
	}
	return nil, nil
}

// Fields are attributes by type. If a type is repeated, the last one is kept.
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

// Uint32 returns a number, or 0.
func (f Fields) Uint32(t uint16) uint32 {
	if b := f[t]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Uint64 returns a number, or 0.
func (f Fields) Uint64(t uint16) uint64 {
	if b := f[t]; len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Text returns a string, or "".
func (f Fields) Text(t uint16) string { return CString(f[t]) }

// CString returns a string up to its zero byte.
func CString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// under returns nested attributes.
func (f Fields) under(t uint16) (Fields, error) {
	g, err := Parse(f[t])
	if err != nil {
		return nil, fmt.Errorf("attribute %d: %w", t, err)
	}
	return g, nil
}
