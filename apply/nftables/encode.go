package nftables

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// This file writes what a Ruleset is made of as attributes of nf_tables, with
// the numbers of linux/netfilter/nf_tables.h. Types, registers and user data
// are those that nft itself would send, so that nft lists the table in the same
// way.

// Messages.
const (
	newTable, getTable, delTable = 0, 1, 2
	newChain, getChain, delChain = 3, 4, 5
	newRule, getRule, delRule    = 6, 7, 8
	newSet, getSet, delSet       = 9, 10, 11
	newElem, getElem, delElem    = 12, 13, 14
	getGen                       = 16
	getObject, delObject         = 19, 20
	getFlowtable, delFlowtable   = 23, 24
)

// Address families of nf_tables.
func nfFamily(f ir.Family) byte {
	if f == ir.IPv6 {
		return 10
	}
	return 2
}

// Data types of nft (include/datatype.h), for its listings.
const (
	typeInteger     = 4
	typeIPv4        = 7
	typeIPv6        = 8
	typeInetProto   = 12
	typeInetService = 13
	typeVerdict     = 0xffffff00
)

// Flags of sets.
const (
	flagInterval = 0x4
	flagMap      = 0x8
	flagTimeout  = 0x10
	flagEval     = 0x20 // dynamic
	flagConcat   = 0x80
)

// word is nft's for a family.
func word(f ir.Family) string {
	if f == ir.IPv6 {
		return "ip6"
	}
	return "ip"
}

func addrBytes(f ir.Family) int { return f.Bits() / 8 }

// typeOf gives nft's number of a part of a key, and its bytes.
func typeOf(t rules.Type, f ir.Family) (id uint32, bytes int) {
	switch t {
	case rules.TypeProto:
		return typeInetProto, 1
	case rules.TypePort:
		return typeInetService, 2
	case rules.TypeSlot:
		return typeInteger, 4
	}
	if f == ir.IPv6 {
		return typeIPv6, 16
	}
	return typeIPv4, 4
}

// concat gives nft's number of a concatenation, six bits for each part, and its
// bytes, each part padded to four.
func concat(parts []rules.Type, f ir.Family) (id uint32, bytes int) {
	for _, t := range parts {
		i, n := typeOf(t, f)
		id, bytes = id<<6|i, bytes+align(n)
	}
	return id, bytes
}

func addrPortType() []rules.Type { return []rules.Type{rules.TypeAddr, rules.TypePort} }

// encodeTable is the table itself.
func encodeTable(name string) []byte {
	var b builder
	b.text(1, name)
	return b
}

// setFlags are the flags of a set.
func setFlags(s *rules.Set) (flags uint32) {
	if s.Data != rules.NoData {
		flags |= flagMap
	}
	if s.Interval {
		flags |= flagInterval | flagConcat
	}
	if s.Timeout > 0 {
		flags |= flagTimeout | flagEval
	}
	return flags
}

// encodeSet is the declaration of a set. id must be unique in its batch.
func encodeSet(s *rules.Set, f ir.Family, id uint32) []byte {
	var b builder
	b.text(1, rules.Table)
	b.text(2, s.Name)
	b.u32(3, setFlags(s))
	key, n := concat(s.Key, f)
	b.u32(4, key)
	b.u32(5, uint32(n))
	switch s.Data {
	case rules.VerdictData:
		b.u32(6, typeVerdict)
		b.u32(7, 16)
	case rules.AddrPortData:
		data, n := concat(addrPortType(), f)
		b.u32(6, data)
		b.u32(7, uint32(n))
	case rules.AddrData:
		data, n := typeOf(rules.TypeAddr, f)
		b.u32(6, data)
		b.u32(7, uint32(n))
	}
	b.u32(10, id)
	if s.Timeout > 0 {
		b.u64(11, uint64(s.Timeout/time.Millisecond))
	}
	if s.Interval {
		desc := b.open(9)
		parts := b.open(2)
		for _, t := range s.Key {
			part := b.open(1)
			_, n := typeOf(t, f)
			b.u32(1, uint32(n))
			b.close(part)
		}
		b.close(parts)
		b.close(desc)
	}
	b.bytes(13, userData(s, f))
	return b
}

// encodeChain is a chain without its rules.
func encodeChain(c *rules.Chain) []byte {
	var b builder
	b.text(1, rules.Table)
	b.text(3, c.Name)
	if c.Base == nil {
		return b
	}
	hook := b.open(4)
	b.u32(1, uint32(c.Base.Hook)) // rules.Hook has the kernel's order
	b.u32(2, uint32(int32(c.Base.Priority)))
	b.close(hook)
	b.u32(5, 1) // policy accept
	b.text(7, chainType(c.Base))
	return b
}

func chainType(base *rules.Base) string {
	if base.NAT {
		return "nat"
	}
	return "filter"
}

// encodeNamed names a chain or a set, at attribute t, to remove or to ask for it.
func encodeNamed(t uint16, name string) []byte {
	var b builder
	b.text(1, rules.Table)
	b.text(t, name)
	return b
}

// encodeOther names a named object or a flowtable.
func encodeOther(o rules.Other) []byte {
	if o.Kind == rules.Flowtable {
		return encodeNamed(nftaFlowtableName, o.Name)
	}
	var b builder
	b.text(nftaObjTable, rules.Table)
	b.text(nftaObjName, o.Name)
	b.u32(nftaObjType, uint32(o.Kind))
	return b
}

// appendElement appends one element. gone leaves out what does not identify it.
func appendElement(b *builder, s *rules.Set, f ir.Family, e *rules.Element, gone bool) {
	item := b.open(1)
	key := b.open(1)
	appendKey(b, s, f, &e.Key, e.Key.Addr2)
	b.close(key)
	if s.Interval {
		end := b.open(10)
		appendKey(b, s, f, &e.Key, lastAddr(netip.PrefixFrom(e.Key.Addr2, int(e.Key.Bits))))
		b.close(end)
	}
	if !gone {
		appendData(b, s, f, e)
		if comment := s.Comment(e); comment != "" {
			b.header(6, 2+len(comment)+1)
			*b = append(*b, 0, byte(len(comment)+1)) // user data 0: a comment
			*b = append(append(*b, comment...), 0)
			b.pad()
		}
	}
	b.close(item)
}

// appendKey appends the value of a key, in which the last address of an
// interval set is net.
func appendKey(b *builder, s *rules.Set, f ir.Family, k *rules.Key, net netip.Addr) {
	_, n := concat(s.Key, f)
	b.header(1, n)
	addr, port := k.Addr, k.Port
	for _, t := range s.Key {
		switch t {
		case rules.TypeAddr:
			appendAddr(b, addr)
			addr = k.Addr2
		case rules.TypeNet:
			appendAddr(b, net)
		case rules.TypeProto:
			*b = append(*b, byte(k.Proto), 0, 0, 0)
		case rules.TypePort:
			*b = append(*b, byte(port>>8), byte(port), 0, 0)
			port = k.Port2
		case rules.TypeSlot:
			*b = binary.NativeEndian.AppendUint32(*b, k.Slot) // numgen's order
		}
	}
}

func appendAddr(b *builder, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		*b = append(*b, v[:]...)
		return
	}
	v := a.As16()
	*b = append(*b, v[:]...)
}

func appendData(b *builder, s *rules.Set, f ir.Family, e *rules.Element) {
	switch s.Data {
	case rules.VerdictData:
		data := b.open(2)
		appendVerdict(b, e.Verdict)
		b.close(data)
	case rules.AddrPortData:
		data := b.open(2)
		b.header(1, addrBytes(f)+4)
		appendAddr(b, e.To.Addr())
		*b = append(*b, byte(e.To.Port()>>8), byte(e.To.Port()), 0, 0)
		b.close(data)
	case rules.AddrData:
		data := b.open(2)
		b.header(1, addrBytes(f))
		appendAddr(b, e.To.Addr())
		b.close(data)
	}
}

// Verdicts, as the kernel numbers them.
const (
	codeDrop = 0
	codeJump = 0xfffffffd // -3
	codeGoto = 0xfffffffc // -4
)

func appendVerdict(b *builder, v rules.Verdict) {
	verdict := b.open(2)
	switch v.Kind {
	case rules.Drop:
		b.u32(1, codeDrop)
	case rules.Jump:
		b.u32(1, codeJump)
		b.text(2, v.Chain)
	case rules.Goto:
		b.u32(1, codeGoto)
		b.text(2, v.Chain)
	}
	b.close(verdict)
}

// lastAddr is the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	a := p.Addr().AsSlice()
	for i := p.Bits(); i < len(a)*8; i++ {
		a[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(a)
	return last
}

// userData is what nft keeps with a set to know how to list it: how keys and
// data are ordered, and, where their type has no name, expressions of that type.
func userData(s *rules.Set, f ir.Family) []byte {
	const bigEndian, concatExpr = 2, 13
	var u udata
	order := func(single bool) uint32 {
		if single {
			return bigEndian
		}
		return 0
	}
	u.u32(0, order(len(s.Key) == 1))
	if s.Data != rules.NoData {
		u.u32(1, order(s.Data == rules.AddrData))
	}
	if len(s.Key) > 1 {
		var parts udata
		if hasSlot(s) {
			for i, t := range s.Key {
				parts.bytes(byte(i), exampleOf(t, f))
			}
		}
		u.bytes(3, expression(concatExpr, parts))
	}
	if hasSlot(s) {
		var parts udata
		for i, t := range addrPortType() {
			parts.bytes(byte(i), exampleOf(t, f))
		}
		u.bytes(4, expression(concatExpr, parts))
	}
	if s.Data != rules.NoData {
		u.u32(6, 0) // data are no intervals
	}
	return u
}

func hasSlot(s *rules.Set) bool {
	for _, t := range s.Key {
		if t == rules.TypeSlot {
			return true
		}
	}
	return false
}

// udata is user data: type and length are a byte each, nothing is aligned, and
// numbers are native.
type udata []byte

func (u *udata) bytes(t byte, v []byte) { *u = append(append(*u, t, byte(len(v))), v...) }

func (u *udata) u32(t byte, v uint32) { u.bytes(t, binary.NativeEndian.AppendUint32(nil, v)) }

// expression is nft's memory of an expression of a kind.
func expression(kind uint32, data udata) []byte {
	var u udata
	u.u32(0, kind)
	u.bytes(1, data)
	return u
}

// exampleOf is the expression after which a part of a key is declared: ip
// daddr, meta l4proto, th dport or numgen random mod 2.
func exampleOf(t rules.Type, f ir.Family) []byte {
	const payload, meta, numgen = 7, 9, 23
	var u udata
	switch t {
	case rules.TypeProto:
		u.u32(0, metaL4Proto)
		return expression(meta, u)
	case rules.TypePort:
		u.u32(0, 11) // transport header
		u.u32(1, 2)  // dport
		return expression(payload, u)
	case rules.TypeSlot:
		u.u32(0, 1) // random
		u.u32(1, 2) // mod 2
		u.u32(2, 0)
		return expression(numgen, u)
	}
	if f == ir.IPv6 {
		u.u32(0, 13) // ip6
		u.u32(1, 9)  // daddr
	} else {
		u.u32(0, 12) // ip
		u.u32(1, 12) // daddr
	}
	return expression(payload, u)
}
