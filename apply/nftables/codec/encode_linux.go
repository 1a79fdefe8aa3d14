package codec

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// This file encodes the parts of a Ruleset as attributes of nf_tables, with the numbers of
// linux/netfilter/nf_tables.h. Types, registers and user data are the same as nft's, so that nft
// lists the table in the same way.

// Family returns the number of a family in nf_tables.
func Family(f ir.Family) byte { return ir.Pick[byte](f, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6) }

// Data types of nft (include/datatype.h), for its listings.
const (
	typeInteger     = 4
	typeIPv4        = 7
	typeIPv6        = 8
	typeInetProto   = 12
	typeInetService = 13
)

func addrBytes(f ir.Family) int { return f.Bits() / 8 }

// typeOf returns nft's number of a type, and its size.
func typeOf(t rules.Type, f ir.Family) (id uint32, bytes int) {
	switch t {
	case rules.TypeProto:
		return typeInetProto, 1
	case rules.TypePort:
		return typeInetService, 2
	case rules.TypeSlot:
		return typeInteger, 4
	}
	return ir.Pick[uint32](f, typeIPv4, typeIPv6), addrBytes(f)
}

// concat returns nft's number of a concatenation, with six bits per part, and its size. Each part
// is padded to four bytes.
func concat(parts []rules.Type, f ir.Family) (id uint32, bytes int) {
	for _, t := range parts {
		i, n := typeOf(t, f)
		id, bytes = id<<6|i, bytes+Align(n)
	}
	return id, bytes
}

func addrPortType() []rules.Type { return []rules.Type{rules.TypeAddr, rules.TypePort} }

// EncodeTable encodes a table's name.
func EncodeTable(name string) []byte {
	return Encode(func(b *Builder) { b.Text(unix.NFTA_TABLE_NAME, name) })
}

// EncodeTableWith encodes a table with flags: none, or FlagsOwned.
func EncodeTableWith(name, flags string) []byte {
	return Encode(func(b *Builder) {
		b.Text(unix.NFTA_TABLE_NAME, name)
		if flags == FlagsOwned {
			b.Uint32(unix.NFTA_TABLE_FLAGS, NFTTableOwner|NFTTablePersist)
		}
	})
}

// setFlags returns the flags of a set.
func setFlags(s *rules.Set) (flags uint32) {
	if s.Data != rules.NoData {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.Timeout > 0 {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	return flags
}

// EncodeSet encodes the declaration of a set. id must be unique in its batch.
func EncodeSet(s *rules.Set, f ir.Family, id uint32) []byte {
	return Encode(func(b *Builder) {
		b.Text(unix.NFTA_SET_TABLE, rules.Table)
		b.Text(unix.NFTA_SET_NAME, s.Name)
		b.Uint32(unix.NFTA_SET_FLAGS, setFlags(s))
		key, n := concat(s.Key, f)
		b.Uint32(unix.NFTA_SET_KEY_TYPE, key)
		b.Uint32(unix.NFTA_SET_KEY_LEN, uint32(n))
		if s.Data != rules.NoData {
			data, n := dataType(s.Data, f)
			b.Uint32(unix.NFTA_SET_DATA_TYPE, data)
			b.Uint32(unix.NFTA_SET_DATA_LEN, uint32(n))
		}
		b.Uint32(unix.NFTA_SET_ID, id)
		if s.Timeout > 0 {
			b.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.Timeout/time.Millisecond))
		}
		if s.Counter {
			b.Nest(nftaSetExpr, func(b *Builder) {
				b.Text(unix.NFTA_EXPR_NAME, counterName)
				b.Nest(unix.NFTA_EXPR_DATA, func(*Builder) {})
			})
		}
		b.Bytes(unix.NFTA_SET_USERDATA, userData(s, f))
	})
}

// dataType returns nft's number of the type of a map's data, and its size.
func dataType(d rules.Data, f ir.Family) (id uint32, bytes int) {
	switch d {
	case rules.VerdictData:
		return unix.NFT_DATA_VERDICT, verdictBytes
	case rules.AddrPortData:
		return concat(addrPortType(), f)
	}
	return typeOf(rules.TypeAddr, f)
}

// EncodeSize encodes the declaration of an existing set with its size.
func EncodeSize(s *rules.Set, f ir.Family, id uint32) []byte {
	b := Builder(EncodeSet(s, f, id))
	b.Nest(unix.NFTA_SET_DESC, func(b *Builder) { b.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size) })
	return b
}

// EncodeChain encodes a chain without its rules.
func EncodeChain(c *rules.Chain) []byte {
	return Encode(func(b *Builder) {
		b.Text(unix.NFTA_CHAIN_TABLE, rules.Table)
		b.Text(unix.NFTA_CHAIN_NAME, c.Name)
		if c.Base == nil {
			return
		}
		b.Nest(unix.NFTA_CHAIN_HOOK, func(b *Builder) {
			b.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(c.Base.Hook)) // rules.Hook has the kernel's order
			b.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.Base.Priority)))
		})
		b.Uint32(unix.NFTA_CHAIN_POLICY, nfAccept)
		b.Text(unix.NFTA_CHAIN_TYPE, c.Base.Type())
	})
}

// The following functions identify objects of our table, to remove or list them.

func ChainNamed(name string) []byte {
	return inTable(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, name)
}

func RulesOf(chain string) []byte { return inTable(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, chain) }

func SetNamed(name string) []byte { return inTable(unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, name) }

func ElementsIn(set string) []byte {
	return inTable(unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET, set)
}

// ElementOf identifies one element of a set.
func ElementOf(s *rules.Set, f ir.Family, e *rules.Element) []byte {
	b := Builder(ElementsIn(s.Name))
	list := b.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	AppendElement(&b, s, f, e, true)
	b.Close(list)
	return b
}

func inTable(table, attr uint16, name string) []byte {
	return Encode(func(b *Builder) {
		b.Text(table, rules.Table)
		b.Text(attr, name)
	})
}

// EncodeObject identifies a named object or a flowtable.
func EncodeObject(o rules.Object) []byte {
	if o.Kind == rules.Flowtable {
		return inTable(NFTAFlowtableTable, NFTAFlowtableName, o.Name)
	}
	return Encode(func(b *Builder) {
		b.Text(unix.NFTA_OBJ_TABLE, rules.Table)
		b.Text(unix.NFTA_OBJ_NAME, o.Name)
		b.Uint32(unix.NFTA_OBJ_TYPE, uint32(o.Kind))
	})
}

// AppendElement appends an element. If keyOnly is set, it appends the key only.
func AppendElement(b *Builder, s *rules.Set, f ir.Family, e *rules.Element, keyOnly bool) {
	if s.Interval {
		appendInterval(b, f, netip.PrefixFrom(e.Key.Addr2, int(e.Key.Bits)))
		return
	}
	item := b.Open(unix.NFTA_LIST_ELEM)
	key := b.Open(unix.NFTA_SET_ELEM_KEY)
	AppendKey(b, s, f, &e.Key)
	b.Close(key)
	if !keyOnly {
		AppendData(b, s, f, e)
		if comment := s.Comment(e); comment != "" {
			b.header(unix.NFTA_SET_ELEM_USERDATA, 2+len(comment)+1)
			*b = append(*b, UdataElemComment, byte(len(comment)+1))
			*b = append(append(*b, comment...), 0)
			b.pad()
		}
	}
	b.Close(item)
}

// appendInterval appends an interval, which is two elements in the kernel: its start, and the
// address after its end. An interval up to the last address has no second element; nft marks the
// first one.
func appendInterval(b *Builder, f ir.Family, p netip.Prefix) {
	behind := ir.LastOf(p).Next()
	edge := func(a netip.Addr, end bool) {
		item := b.Open(unix.NFTA_LIST_ELEM)
		if end {
			b.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		}
		key := b.Open(unix.NFTA_SET_ELEM_KEY)
		b.header(unix.NFTA_DATA_VALUE, addrBytes(f))
		AppendAddr(b, a)
		b.Close(key)
		if !end && !behind.IsValid() {
			var open udata
			open.u32(udataElemFlags, udataElemIntervalOpen)
			b.Bytes(unix.NFTA_SET_ELEM_USERDATA, open)
		}
		b.Close(item)
	}
	edge(p.Addr(), false)
	if behind.IsValid() {
		edge(behind, true)
	}
}

// AppendKey appends the value of a key.
func AppendKey(b *Builder, s *rules.Set, f ir.Family, k *rules.Key) {
	_, n := concat(s.Key, f)
	b.header(unix.NFTA_DATA_VALUE, n)
	addr, port := k.Addr, k.Port
	for _, t := range s.Key {
		switch t {
		case rules.TypeAddr:
			AppendAddr(b, addr)
			addr = k.Addr2
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

func AppendAddr(b *Builder, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		*b = append(*b, v[:]...)
		return
	}
	v := a.As16()
	*b = append(*b, v[:]...)
}

func AppendData(b *Builder, s *rules.Set, f ir.Family, e *rules.Element) {
	if s.Data == rules.NoData {
		return
	}
	data := b.Open(unix.NFTA_SET_ELEM_DATA)
	switch s.Data {
	case rules.VerdictData:
		appendVerdict(b, e.Verdict)
	case rules.AddrPortData:
		b.header(unix.NFTA_DATA_VALUE, addrBytes(f)+4)
		AppendAddr(b, e.To.Addr())
		*b = append(*b, byte(e.To.Port()>>8), byte(e.To.Port()), 0, 0)
	case rules.AddrData:
		b.header(unix.NFTA_DATA_VALUE, addrBytes(f))
		AppendAddr(b, e.To.Addr())
	}
	b.Close(data)
}

func appendVerdict(b *Builder, v rules.Verdict) {
	verdict := b.Open(unix.NFTA_DATA_VERDICT)
	b.Uint32(unix.NFTA_VERDICT_CODE, verdictCode(v))
	if v.Chain != "" {
		b.Text(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	b.Close(verdict)
}

// verdictCodes are the kernel's numbers of verdicts.
var verdictCodes = [...]struct {
	kind rules.VerdictKind
	code int32
}{
	{rules.Accept, nfAccept}, {rules.Drop, nfDrop}, {rules.Jump, unix.NFT_JUMP}, {rules.Goto, unix.NFT_GOTO},
	{rules.Return, unix.NFT_RETURN}, {rules.Continue, unix.NFT_CONTINUE},
}

// verdictCode returns the kernel's number of a verdict.
func verdictCode(v rules.Verdict) uint32 {
	for _, of := range &verdictCodes {
		if of.kind == v.Kind {
			return uint32(of.code)
		}
	}
	return nfDrop
}

// verdictKind returns the kind of a verdict by its number; 0 if proxyc never uses it.
func verdictKind(code int32) rules.VerdictKind {
	for _, of := range &verdictCodes {
		if of.code == code {
			return of.kind
		}
	}
	return 0
}

// userData returns the user data with which nft lists a set: the byte order of keys and data, and
// an expression for each type without a name.
func userData(s *rules.Set, f ir.Family) []byte {
	var u udata
	order := func(single bool) uint32 {
		if single {
			return byteOrderBig
		}
		return 0
	}
	u.u32(udataSetKeyByteOrder, order(len(s.Key) == 1))
	if s.Data != rules.NoData {
		u.u32(udataSetDataByteOrder, order(s.Data == rules.AddrData))
	}
	if len(s.Key) > 1 {
		var parts udata
		if hasSlot(s) {
			for i, t := range s.Key {
				parts.bytes(byte(i), typeofExpr(t, f))
			}
		}
		u.bytes(udataSetKeyTypeof, expression(exprConcat, parts))
	}
	if hasSlot(s) {
		var parts udata
		for i, t := range addrPortType() {
			parts.bytes(byte(i), typeofExpr(t, f))
		}
		u.bytes(udataSetDataTypeof, expression(exprConcat, parts))
	}
	if s.Data != rules.NoData {
		u.u32(udataSetDataInterval, 0) // data are not intervals
	}
	return u
}

func hasSlot(s *rules.Set) bool { return slices.Contains(s.Key, rules.TypeSlot) }

// udata is user data: type and length are a byte each, nothing is aligned, and
// numbers are native.
type udata []byte

func (u *udata) bytes(t byte, v []byte) { *u = append(append(*u, t, byte(len(v))), v...) }

func (u *udata) u32(t byte, v uint32) { u.bytes(t, binary.NativeEndian.AppendUint32(nil, v)) }

// expression returns nft's user data for an expression of a kind.
func expression(kind uint32, data udata) []byte {
	var u udata
	u.u32(udataSetTypeofExpr, kind)
	u.bytes(udataSetTypeofData, data)
	return u
}

// typeofExpr returns the expression by which a part of a key is declared: ip daddr, meta l4proto,
// th dport or numgen random mod 2.
func typeofExpr(t rules.Type, f ir.Family) []byte {
	var u udata
	switch t {
	case rules.TypeProto:
		u.u32(udataMetaKey, unix.NFT_META_L4PROTO)
		return expression(exprMeta, u)
	case rules.TypePort:
		u.u32(udataPayloadDesc, descTransport)
		u.u32(udataPayloadType, fieldDstPort)
		return expression(exprPayload, u)
	case rules.TypeSlot:
		u.u32(udataNumgenType, unix.NFT_NG_RANDOM)
		u.u32(udataNumgenMod, 2)
		u.u32(udataNumgenOffset, 0)
		return expression(exprNumgen, u)
	}
	u.u32(udataPayloadDesc, ir.Pick[uint32](f, descIP, descIP6))
	u.u32(udataPayloadType, ir.Pick[uint32](f, fieldIPDstAddr, fieldIP6DstAddr))
	return expression(exprPayload, u)
}
