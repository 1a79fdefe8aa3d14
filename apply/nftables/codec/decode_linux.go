package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// This file decodes the attributes that encode_linux.go writes, as the kernel returns them.

// DecodeSet reads the declaration of a set, without its elements. For a set that
// proxyc cannot have written, it returns the name and the foreign part. ok is false for
// an anonymous set, which belongs to a rule.
func DecodeSet(a Fields, f ir.Family) (s rules.Set, ok bool) {
	s.Name = a.Text(unix.NFTA_SET_NAME)
	flags := a.Uint32(unix.NFTA_SET_FLAGS)
	if flags&unix.NFT_SET_ANONYMOUS != 0 {
		return s, false
	}
	key, known := decodeTypes(a.Uint32(unix.NFTA_SET_KEY_TYPE))
	if !known {
		s.Unsupported = "another type of key"
		return s, true
	}
	s.Interval = flags&unix.NFT_SET_INTERVAL != 0
	if s.Interval { // ours are of addresses alone
		key[len(key)-1] = rules.TypeNet
	}
	if flags&unix.NFT_SET_TIMEOUT != 0 {
		s.Timeout = time.Duration(a.Uint64(unix.NFTA_SET_TIMEOUT)) * time.Millisecond
	}
	if flags&unix.NFT_SET_MAP != 0 {
		addrPort, _ := concat(addrPortType(), f)
		addr, _ := typeOf(rules.TypeAddr, f)
		switch a.Uint32(unix.NFTA_SET_DATA_TYPE) {
		case unix.NFT_DATA_VERDICT:
			s.Data = rules.VerdictData
		case addrPort:
			s.Data = rules.AddrPortData
		case addr:
			s.Data = rules.AddrData
		default:
			s.Unsupported = "another type of data"
			return s, true
		}
	}
	s.Key = key
	_, s.Counter = packetsIn(a[nftaSetExpr])
	s.Unsupported = foreignAttribute(&s, a, f)
	return s, true
}

// foreignAttribute returns the first attribute of a set's declaration, as read, that proxyc would
// not have written.
func foreignAttribute(s *rules.Set, a Fields, f ir.Family) string {
	ours, err := Parse(EncodeSet(s, f, 0))
	if err != nil {
		return err.Error()
	}
	size := func(a Fields) uint32 {
		desc, _ := a.under(unix.NFTA_SET_DESC)
		return desc.Uint32(unix.NFTA_SET_DESC_SIZE)
	}
	has, want := size(a), size(ours)
	if s.Timeout > 0 && has >= rules.MaxClients && has%rules.MaxClients == 0 {
		s.Size = has
	} else if has != want {
		return fmt.Sprintf("size %d", has)
	}
	words := [...]struct {
		typ  uint16
		word string
	}{
		{unix.NFTA_SET_FLAGS, "flags"}, {unix.NFTA_SET_KEY_TYPE, "type"}, {unix.NFTA_SET_KEY_LEN, "length of keys"},
		{unix.NFTA_SET_DATA_TYPE, "type of data"}, {unix.NFTA_SET_DATA_LEN, "length of data"}, {unix.NFTA_SET_TIMEOUT, "timeout"},
		{unix.NFTA_SET_POLICY, "policy"}, {unix.NFTA_SET_GC_INTERVAL, "gc-interval"}, {unix.NFTA_SET_OBJ_TYPE, "objects"},
		{nftaSetExpr, "statement"}, {nftaSetExpressions, "statements"},
	}
	for _, w := range words {
		if !bytes.Equal(a[w.typ], ours[w.typ]) && !(zero(a[w.typ]) && zero(ours[w.typ])) && !(s.Counter && w.typ == nftaSetExpr) {
			return w.word
		}
	}
	return ""
}

// zero reports whether a value is 0. The kernel returns unset attributes as 0.
func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// decodeTypes splits nft's number of a concatenation.
func decodeTypes(id uint32) (key []rules.Type, ok bool) {
	known := map[uint32]rules.Type{
		typeIPv4: rules.TypeAddr, typeIPv6: rules.TypeAddr, typeInetProto: rules.TypeProto,
		typeInetService: rules.TypePort, typeInteger: rules.TypeSlot,
	}
	for shift := 24; shift >= 0; shift -= 6 {
		part := id >> shift & 0x3f
		if part == 0 && len(key) == 0 {
			continue
		}
		t, ok := known[part]
		if !ok {
			return nil, false
		}
		key = append(key, t)
	}
	return key, len(key) > 0
}

// DecodeElements appends the elements in a message to those of the set, and sets Foreign if some
// cannot be ours. Frontends are decoded from comments, and contain only the service port.
func DecodeElements(b []byte, s *rules.Set, f ir.Family, comments *Comments) error {
	items, err := ElementList(b)
	if err != nil {
		return err
	}
	for _, item := range items {
		if e, err := decodeElement(item.Data, s, f, comments); err == nil {
			s.Elements = append(s.Elements, e)
		} else {
			s.Foreign = true
		}
	}
	return nil
}

// DecodeCounts calls each with the elements that have a counter, and their packets.
func DecodeCounts(items []Attr, s *rules.Set, f ir.Family, each func(rules.Key, uint64)) {
	for _, item := range items {
		expression, _ := First(item.Data, unix.NFTA_SET_ELEM_EXPR)
		packets, counted := packetsIn(expression)
		attr, _ := First(item.Data, unix.NFTA_SET_ELEM_KEY)
		value, _ := Value(attr)
		if key, err := decodeKey(value, s, f); counted && err == nil {
			each(key, packets)
		}
	}
}

// packetsIn returns the packets of a counter; false if the expression is another one.
func packetsIn(expression []byte) (packets uint64, counter bool) {
	name, _ := First(expression, unix.NFTA_EXPR_NAME)
	data, _ := First(expression, unix.NFTA_EXPR_DATA)
	value, _ := First(data, unix.NFTA_COUNTER_PACKETS)
	if CString(name) != counterName || len(value) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(value), true
}

// counterName is the kernel's name of the expression that counts packets.
const counterName = "counter"

// ElementList returns the elements of a message.
func ElementList(b []byte) ([]Attr, error) {
	list, err := First(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	if err != nil {
		return nil, err
	}
	return Attrs(list)
}

var errForeign = errors.New("is not ours")

func decodeElement(b []byte, s *rules.Set, f ir.Family, comments *Comments) (e rules.Element, err error) {
	all, err := Attrs(b)
	if err != nil {
		return e, err
	}
	var key []byte
	expires := false
	for _, a := range all {
		expires = expires || a.Type == unix.NFTA_SET_ELEM_EXPIRATION
		switch a.Type {
		case unix.NFTA_SET_ELEM_KEY:
			key, err = Value(a.Data)
		case unix.NFTA_SET_ELEM_DATA:
			err = decodeData(a.Data, s, f, &e)
		case unix.NFTA_SET_ELEM_USERDATA:
			if len(a.Data) > 2 && a.Data[0] == UdataElemComment {
				e.Frontend = comments.frontend(strings.TrimRight(string(a.Data[2:]), "\x00"))
			}
		default: // a timeout, the end of an interval, a statement or an object
			if s.Timeout == 0 && !zero(a.Data) && !(s.Counter && a.Type == unix.NFTA_SET_ELEM_EXPR) {
				err = errForeign
			}
		}
		if err != nil {
			return e, err
		}
	}
	s.Permanent = s.Permanent || s.Timeout > 0 && !expires
	e.Key, err = decodeKey(key, s, f)
	if err == nil && !sameKey(s, f, &e.Key, key) {
		err = errForeign
	}
	e.Origin = &ir.Origin{}
	return e, err
}

// sameKey reports whether a key would be encoded to the bytes that were read.
func sameKey(s *rules.Set, f ir.Family, k *rules.Key, key []byte) bool {
	var room [AttrHeader + 64]byte
	b := Builder(room[:0])
	AppendKey(&b, s, f, k)
	return bytes.Equal(b[AttrHeader:], key)
}

// Value returns the value of an attribute that contains only a value.
func Value(b []byte) ([]byte, error) {
	a, rest, err := Cut(b)
	if err != nil || len(rest) > 0 {
		return nil, ErrShort
	}
	return a.Data, nil
}

func decodeKey(b []byte, s *rules.Set, f ir.Family) (k rules.Key, err error) {
	_, n := concat(s.Key, f)
	if len(b) != n {
		return k, ErrShort
	}
	addrs, ports := 0, 0
	for at, i := 0, 0; i < len(s.Key); i++ {
		t := s.Key[i]
		_, n := typeOf(t, f)
		part := b[at : at+n]
		switch t {
		case rules.TypeAddr:
			a, _ := netip.AddrFromSlice(part)
			if addrs++; addrs == 1 {
				k.Addr = a
			} else {
				k.Addr2 = a
			}
		case rules.TypeProto:
			k.Proto = ir.Protocol(part[0])
		case rules.TypePort:
			if ports++; ports == 1 {
				k.Port = binary.BigEndian.Uint16(part)
			} else {
				k.Port2 = binary.BigEndian.Uint16(part)
			}
		case rules.TypeSlot:
			k.Slot = binary.NativeEndian.Uint32(part)
		}
		at += Align(n)
	}
	return k, nil
}

func decodeData(b []byte, s *rules.Set, f ir.Family, e *rules.Element) error {
	if s.Data == rules.VerdictData {
		v, err := DecodeVerdict(b)
		e.Verdict = v
		return err
	}
	v, err := Value(b)
	if err != nil {
		return err
	}
	n := addrBytes(f)
	if len(v) < n || s.Data == rules.AddrPortData && len(v) < n+2 {
		return ErrShort
	}
	a, _ := netip.AddrFromSlice(v[:n])
	port := uint16(0)
	if s.Data == rules.AddrPortData {
		port = binary.BigEndian.Uint16(v[n:])
	}
	e.To = netip.AddrPortFrom(a, port)
	return nil
}

// DecodeVerdict decodes NFTA_DATA_VERDICT in b. The kind of a verdict that proxyc never uses is 0.
func DecodeVerdict(b []byte) (v rules.Verdict, err error) {
	b, err = First(b, unix.NFTA_DATA_VERDICT)
	for len(b) > 0 && err == nil {
		var a Attr
		a, b, err = Cut(b)
		switch {
		case a.Type == unix.NFTA_VERDICT_CODE && len(a.Data) == 4:
			v.Kind = verdictKind(int32(binary.BigEndian.Uint32(a.Data)))
		case a.Type == unix.NFTA_VERDICT_CHAIN:
			v.Chain = CString(a.Data)
		}
	}
	return v, err
}

// OtherHook is Base.Unsupported of a base chain at a hook that render/nftables does not have.
const OtherHook = "another hook"

// DecodeChain reads a chain without its rules. ok is false for a
// chain that belongs to a rule.
func DecodeChain(a Fields) (c rules.Chain, ok bool, err error) {
	c.Name = a.Text(unix.NFTA_CHAIN_NAME)
	if a[unix.NFTA_CHAIN_HOOK] == nil {
		return c, a.Uint32(nftaChainFlags)&nftChainBinding == 0, nil
	}
	hook, err := a.under(unix.NFTA_CHAIN_HOOK)
	if err != nil {
		return c, false, err
	}
	number, kind := hook.Uint32(unix.NFTA_HOOK_HOOKNUM), a.Text(unix.NFTA_CHAIN_TYPE)
	c.Base = &rules.Base{NAT: kind == "nat", Priority: int(int32(hook.Uint32(unix.NFTA_HOOK_PRIORITY))),
		Drop: a[unix.NFTA_CHAIN_POLICY] != nil && a.Uint32(unix.NFTA_CHAIN_POLICY) == nfDrop}
	switch {
	case number > uint32(rules.Postrouting):
		c.Base.Unsupported = OtherHook
	case kind != c.Base.Type():
		c.Base.Unsupported = "type " + kind
	}
	if number <= uint32(rules.Postrouting) {
		c.Base.Hook = rules.Hook(number)
	}
	return c, true, nil
}

// Comments shares the frontends of elements with equal comments.
type Comments struct{ byComment map[string]*ir.Frontend }

func (n *Comments) frontend(comment string) *ir.Frontend {
	if f, ok := n.byComment[comment]; ok {
		return f
	}
	service, port, _ := strings.Cut(comment, ":")
	namespace, name, _ := strings.Cut(service, "/")
	f := &ir.Frontend{Port: ir.ServicePort{Service: ir.Name{Namespace: namespace, Name: name}, Port: port}}
	ir.SetIn(&n.byComment, comment, f)
	return f
}

// TableFlags returns nft's words for flags of a table.
func TableFlags(flags uint32) string {
	switch {
	case flags&unix.NFT_TABLE_F_DORMANT != 0: // nothing in it is in force
		return "dormant"
	case flags == NFTTablePersist:
		return FlagPersist
	case flags == NFTTableOwner|NFTTablePersist:
		return FlagsOwned
	case flags != 0:
		return fmt.Sprintf("%#x", flags)
	}
	return ""
}
