package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// This file is netlink's attributes: type, length, value, aligned to four
// bytes. Numbers within nf_tables are big endian, lengths and types native.

const (
	nested      = 1 << 15 // flag of an attribute's type: it holds attributes
	typeMask    = 1<<14 - 1
	attrHeader  = 4
	maxAttr     = 1<<16 - 1 // the length is 16 bits, header included
	netlinkHead = 16
	nfgenHead   = 4 // nfgenmsg: family, version, resource
)

func align(n int) int { return (n + 3) &^ 3 }

// builder appends attributes.
type builder []byte

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

func (b *builder) header(t uint16, n int) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(attrHeader+n))
	*b = binary.NativeEndian.AppendUint16(*b, t)
}

func (b *builder) pad() {
	for len(*b)%4 != 0 {
		*b = append(*b, 0)
	}
}

// open begins an attribute that holds attributes, and gives what close takes.
func (b *builder) open(t uint16) int {
	start := len(*b)
	b.header(t|nested, 0)
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

// attrs gives the attributes in b.
func attrs(b []byte) ([]attr, error) {
	var all []attr
	for len(b) > 0 {
		if len(b) < attrHeader {
			return all, errShort
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrHeader || n > len(b) {
			return all, errShort
		}
		all = append(all, attr{binary.NativeEndian.Uint16(b[2:]) & typeMask, b[attrHeader:n]})
		b = b[min(align(n), len(b)):]
	}
	return all, nil
}

// fields are the attributes in b by type; of several alike, the last.
type fields map[uint16][]byte

func parse(b []byte) (fields, error) {
	all, err := attrs(b)
	f := make(fields, len(all))
	for _, a := range all {
		f[a.typ] = a.data
	}
	return f, err
}

// u32 gives a number, 0 if it is not there.
func (f fields) u32(t uint16) uint32 {
	if b := f[t]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// text gives a string, empty if it is not there.
func (f fields) text(t uint16) string {
	b := f[t]
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// under gives the attributes within one.
func (f fields) under(t uint16) (fields, error) {
	g, err := parse(f[t])
	if err != nil {
		return nil, fmt.Errorf("attribute %d: %w", t, err)
	}
	return g, nil
}
