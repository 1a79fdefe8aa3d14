package nftables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// This file reads what encode.go writes, as the kernel gives it back.

// decodeSet reads the declaration of a set, without its elements. Of a set that
// cannot be ours it gives the name, and what is foreign. ok tells that the set
// is no part of a rule, with which it comes and goes.
func decodeSet(b []byte, f ir.Family) (s rules.Set, ok bool, err error) {
	a, err := parse(b)
	if err != nil {
		return s, false, err
	}
	s.Name = a.text(nftaSetName)
	flags := a.u32(nftaSetFlags)
	if flags&flagAnonymous != 0 {
		return s, false, nil
	}
	key, known := decodeTypes(a.u32(nftaSetKeyType))
	if !known {
		s.Foreign = "another type of key"
		return s, true, nil
	}
	s.Interval = flags&flagInterval != 0
	if s.Interval {
		key[len(key)-1] = rules.TypeNet
	}
	if flags&flagTimeout != 0 {
		if t := a[nftaSetTimeout]; len(t) == 8 {
			s.Timeout = time.Duration(binary.BigEndian.Uint64(t)) * time.Millisecond
		}
	}
	if flags&flagMap != 0 {
		addrPort, _ := concat(addrPortType(), f)
		addr, _ := typeOf(rules.TypeAddr, f)
		switch a.u32(nftaSetDataType) {
		case typeVerdict:
			s.Data = rules.VerdictData
		case addrPort:
			s.Data = rules.AddrPortData
		case addr:
			s.Data = rules.AddrData
		default:
			s.Foreign = "another type of data"
			return s, true, nil
		}
	}
	s.Key = key
	s.Foreign = foreignIn(&s, a, f)
	return s, true, nil
}

// mostClients is the size that the kernel gives a map without one when a rule
// updates it.
const mostClients = 65535

// foreignIn gives what the declaration of a set, as it was read, has and
// its equal of ours has not.
func foreignIn(s *rules.Set, a fields, f ir.Family) string {
	ours, err := parse(encodeSet(s, f, 0))
	if err != nil {
		return err.Error()
	}
	size := func(a fields) uint32 {
		desc, _ := a.under(nftaSetDesc)
		return desc.u32(nftaSetDescSize)
	}
	has, want := size(a), size(ours)
	if has != want && !(s.Timeout > 0 && want == 0 && has == mostClients) {
		return fmt.Sprintf("size %d", has)
	}
	words := [...]struct {
		typ  uint16
		word string
	}{
		{nftaSetFlags, "flags"}, {nftaSetKeyType, "type"}, {nftaSetKeyLen, "length of keys"},
		{nftaSetDataType, "type of data"}, {nftaSetDataLen, "length of data"}, {nftaSetTimeout, "timeout"},
		{nftaSetPolicy, "policy"}, {nftaSetGCInterval, "gc-interval"}, {nftaSetObjType, "objects"},
		{nftaSetExpr, "statement"}, {nftaSetExpressions, "statements"},
	}
	for _, w := range words {
		if !bytes.Equal(a[w.typ], ours[w.typ]) && !(zero(a[w.typ]) && zero(ours[w.typ])) {
			return w.word
		}
	}
	return ""
}

// zero tells whether a value is 0, as it is where the kernel tells what nobody set.
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

// decodeElements appends the elements of one message to those of the set, or
// notes that there are some which cannot be ours. The frontends of elements with
// a comment have no more than their service port.
func decodeElements(b []byte, s *rules.Set, f ir.Family, note func(comment string) *ir.Frontend) error {
	a, err := parse(b)
	if err != nil {
		return err
	}
	items, err := attrs(a[3])
	if err != nil {
		return err
	}
	for _, item := range items {
		if e, err := decodeElement(item.data, s, f, note); err == nil {
			s.Elements = append(s.Elements, e)
		} else {
			s.Strays = true
		}
	}
	return nil
}

var errForeign = errors.New("is not ours")

func decodeElement(b []byte, s *rules.Set, f ir.Family, note func(string) *ir.Frontend) (e rules.Element, err error) {
	all, err := attrs(b)
	if err != nil {
		return e, err
	}
	var key, end []byte
	for _, a := range all {
		switch a.typ {
		case nftaElemKey:
			key, err = value(a.data)
		case nftaElemKeyEnd:
			end, err = value(a.data)
		case nftaElemData:
			err = decodeData(a.data, s, f, &e)
		case nftaElemUserData:
			if len(a.data) > 2 && a.data[0] == 0 {
				e.Frontend = note(strings.TrimRight(string(a.data[2:]), "\x00"))
			}
		default: // a time, an end of an interval, a statement, an object
			if s.Timeout == 0 && !zero(a.data) {
				err = errForeign
			}
		}
		if err != nil {
			return e, err
		}
	}
	e.Key, err = decodeKey(key, end, s, f)
	if err == nil && !sameKey(s, f, &e.Key, key, end) {
		err = errForeign
	}
	e.Origin = &ir.Origin{}
	return e, err
}

// sameKey tells whether a key would be encoded to what was read.
func sameKey(s *rules.Set, f ir.Family, k *rules.Key, key, end []byte) bool {
	var room [2 * (attrHeader + 64)]byte
	b := builder(room[:0])
	appendKey(&b, s, f, k, k.Addr2)
	if !bytes.Equal(b[attrHeader:], key) || !s.Interval {
		return bytes.Equal(b[attrHeader:], key)
	}
	b = b[:0]
	appendKey(&b, s, f, k, lastAddr(netip.PrefixFrom(k.Addr2, int(k.Bits))))
	return bytes.Equal(b[attrHeader:], end)
}

// value gives what an attribute with a value, and nothing else, has.
func value(b []byte) ([]byte, error) {
	all, err := attrs(b)
	if err != nil || len(all) != 1 {
		return nil, errShort
	}
	return all[0].data, nil
}

func decodeKey(b, end []byte, s *rules.Set, f ir.Family) (k rules.Key, err error) {
	_, n := concat(s.Key, f)
	if len(b) != n || s.Interval && len(end) != n {
		return k, errShort
	}
	addrs, ports := 0, 0
	for at, i := 0, 0; i < len(s.Key); i++ {
		t := s.Key[i]
		_, n := typeOf(t, f)
		part := b[at : at+n]
		switch t {
		case rules.TypeAddr, rules.TypeNet:
			a, _ := netip.AddrFromSlice(part)
			if t == rules.TypeNet {
				last, _ := netip.AddrFromSlice(end[at : at+n])
				k.Bits = uint8(commonBits(part, last.AsSlice()))
			}
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
		at += align(n)
	}
	return k, nil
}

// commonBits is how many leading bits a and b have in common.
func commonBits(a, b []byte) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			n := 0
			for x&0x80 == 0 {
				x <<= 1
				n++
			}
			return i*8 + n
		}
	}
	return len(a) * 8
}

func decodeData(b []byte, s *rules.Set, f ir.Family, e *rules.Element) error {
	if s.Data == rules.VerdictData {
		v, err := decodeVerdict(b)
		e.Verdict = v
		return err
	}
	v, err := value(b)
	if err != nil {
		return err
	}
	n := addrBytes(f)
	if len(v) < n || s.Data == rules.AddrPortData && len(v) < n+2 {
		return errShort
	}
	a, _ := netip.AddrFromSlice(v[:n])
	port := uint16(0)
	if s.Data == rules.AddrPortData {
		port = binary.BigEndian.Uint16(v[n:])
	}
	e.To = netip.AddrPortFrom(a, port)
	return nil
}

// decodeVerdict reads NFTA_DATA_VERDICT within b. What we never use is no kind of verdict.
func decodeVerdict(b []byte) (rules.Verdict, error) {
	data, err := parse(b)
	if err != nil {
		return rules.Verdict{}, err
	}
	v, err := data.under(2)
	if err != nil {
		return rules.Verdict{}, err
	}
	switch v.u32(1) {
	case codeDrop:
		return rules.Verdict{Kind: rules.Drop}, nil
	case codeJump:
		return rules.Verdict{Kind: rules.Jump, Chain: v.text(2)}, nil
	case codeGoto:
		return rules.Verdict{Kind: rules.Goto, Chain: v.text(2)}, nil
	}
	return rules.Verdict{}, nil
}

// decodeChain reads a chain without its rules. ok tells that the chain is no
// part of a rule, with which it comes and goes.
func decodeChain(b []byte) (c rules.Chain, ok bool, err error) {
	a, err := parse(b)
	if err != nil {
		return c, false, err
	}
	c.Name = a.text(nftaChainName)
	if a[nftaChainHook] == nil {
		return c, a.u32(nftaChainFlags)&flagBinding == 0, nil
	}
	hook, err := a.under(nftaChainHook)
	if err != nil {
		return c, false, err
	}
	number, kind := hook.u32(nftaHookNum), a.text(nftaChainType)
	c.Base = &rules.Base{NAT: kind == "nat", Priority: int(int32(hook.u32(nftaHookPriority))),
		Drop: a[nftaChainPolicy] != nil && a.u32(nftaChainPolicy) == 0}
	switch {
	case number > uint32(rules.Postrouting):
		c.Base.Foreign = "another hook"
	case kind != chainType(c.Base):
		c.Base.Foreign = "type " + kind
	}
	if c.Base.Foreign == "" {
		c.Base.Hook = rules.Hook(number)
	}
	return c, true, nil
}

// decodeRule reads a rule, and the name of its chain.
func decodeRule(b []byte, f ir.Family) (chain string, r rules.Rule, err error) {
	a, err := parse(b)
	if err != nil {
		return "", r, err
	}
	chain = a.text(2)
	code, err := instructions(a[4])
	if err == nil {
		r.Stmts = decodeStmts(code, f)
	}
	if err != nil || !understood(r.Stmts, code, f) {
		r.Stmts = []rules.Stmt{rules.Foreign{What: describe(code, f)}}
	}
	return chain, r, nil
}

// understood tells whether the statements would be encoded to the same
// instructions, but for zeros, with which the kernel tells what was not said.
func understood(stmts []rules.Stmt, code []instruction, f ir.Family) bool {
	p := program{family: f}
	for _, s := range stmts {
		p.stmt(s)
	}
	ours, err := instructions(p.b)
	if err != nil || len(ours) != len(code) {
		return false
	}
	for i, c := range ours {
		if c.name != code[i].name {
			return false
		}
		for t, v := range c.fields {
			nestedVerdict := c.name == "immediate" && t == 2 // read whole, with flags of its own
			if !nestedVerdict && !bytes.Equal(v, code[i].fields[t]) {
				return false
			}
		}
		for t, v := range code[i].fields {
			if c.fields[t] == nil && !zero(v) {
				return false
			}
		}
	}
	return true
}

// instruction is one expression of a rule.
type instruction struct {
	name string
	fields
}

// instructions reads a list of expressions.
func instructions(b []byte) ([]instruction, error) {
	list, err := attrs(b)
	if err != nil {
		return nil, err
	}
	var code []instruction
	for _, item := range list {
		e, err := parse(item.data)
		if err != nil {
			return nil, err
		}
		data, err := e.under(2)
		if err != nil {
			return nil, err
		}
		if e.text(1) == "byteorder" && data.u32(4) == 1 {
			continue // nft reverses single bytes, in keys of interval sets
		}
		code = append(code, instruction{e.text(1), data})
	}
	return code, nil
}

// decodeStmts reads statements off the code, one after the other. What is none
// of ours makes the whole rule foreign.
func decodeStmts(code []instruction, f ir.Family) []rules.Stmt {
	var stmts []rules.Stmt
	for len(code) > 0 {
		s, n := decodeStmt(code, f)
		if s == nil {
			return []rules.Stmt{rules.Foreign{What: code[0].name}}
		}
		stmts = append(stmts, s)
		code = code[n:]
	}
	return stmts
}

// decodeStmt gives the statement that the code begins with, and how many
// instructions it has.
func decodeStmt(code []instruction, f ir.Family) (rules.Stmt, int) {
	switch c := code[0]; c.name {
	case "immediate":
		if v, err := decodeVerdict(c.fields[2]); err == nil && v.Kind != 0 && c.u32(1) == 0 {
			return v, 1
		}
		return nil, 0
	case "reject":
		return rules.Verdict{Kind: rules.Reject}, 1
	case "masq":
		return rules.Masquerade{}, 1
	case "fib":
		field := rules.DstAddr
		if c.u32(3) == 1 {
			field = rules.SrcAddr
		}
		if len(code) > 1 && code[1].name == "cmp" {
			return rules.MatchLocal{Field: field}, 2
		}
		return nil, 0
	}
	if s, n := decodeMatch(code, f); s != nil {
		return s, n
	}
	var terms []rules.Term
	for len(terms) < len(code) {
		t, ok := decodeTerm(code[len(terms)], f)
		if !ok {
			break
		}
		terms = append(terms, t)
	}
	n := len(terms)
	if n == 0 || n == len(code) {
		return nil, 0
	}
	s, more := decodeLookup(terms, code[n:])
	return s, n + more
}

// decodeLookup reads what is done with the terms in the registers.
func decodeLookup(terms []rules.Term, code []instruction) (rules.Stmt, int) {
	c := code[0]
	switch {
	case c.name == "dynset" && len(terms) == 2:
		return rules.Update{Map: c.text(1), Key: terms[0], Data: terms[1]}, 1
	case c.name != "lookup":
		return nil, 0
	case c.fields[3] == nil:
		return rules.MatchSet{Key: terms, Set: c.text(1), Not: c.u32(5) == 1}, 1
	case c.u32(3) == 0:
		return rules.LookupVerdict{Key: terms, Map: c.text(1)}, 1
	case len(code) > 1 && code[1].name == "nat":
		return rules.LookupDNAT{Key: terms, Map: c.text(1)}, 2
	case len(code) > 2 && code[1].name == "immediate" && code[2].name == "nat":
		port, err := value(code[1].fields[2])
		if err != nil || len(port) != 2 {
			return nil, 0
		}
		return rules.LookupDNAT{Key: terms, Map: c.text(1), Port: binary.BigEndian.Uint16(port)}, 3
	}
	return nil, 0
}

// decodeMatch reads a comparison, or what is done to the mark.
func decodeMatch(code []instruction, f ir.Family) (rules.Stmt, int) {
	if len(code) < 2 {
		return nil, 0
	}
	load, rest := code[0], code[1:]
	var and, xor []byte
	n := 1
	if rest[0].name == "bitwise" {
		var err1, err2 error
		and, err1 = value(rest[0].fields[4])
		xor, err2 = value(rest[0].fields[5])
		if err1 != nil || err2 != nil || len(rest) < 2 {
			return nil, 0
		}
		rest, n = rest[1:], 2
	}
	end := rest[0]
	mark := load.name == "meta" && load.u32(2) == metaMark && len(and) == 4
	if mark && end.name == "meta" && end.u32(2) == metaMark && end.fields[3] != nil {
		if set := binary.NativeEndian.Uint32(xor); set != 0 {
			return rules.SetMark{Mask: set}, n + 1
		}
		return rules.ClearMark{Mask: ^binary.NativeEndian.Uint32(and)}, n + 1
	}
	if end.name != "cmp" {
		return nil, 0
	}
	v, err := value(end.fields[3])
	if err != nil {
		return nil, 0
	}
	not := end.u32(2) == opNotEqual
	s := comparison(load, and, v, not, f)
	return s, n + 1
}

// comparison is what a loaded value, masked or not, is compared for.
func comparison(load instruction, and, v []byte, not bool, f ir.Family) rules.Stmt {
	key := load.u32(2)
	switch {
	case load.name == "ct" && key == ctState && not:
		return rules.MatchNew{}
	case load.name == "ct" && key == ctStatus && not:
		return rules.MatchDNAT{}
	case load.name == "meta" && key == metaMark && len(and) == 4 && not:
		return rules.MatchMark{Mask: binary.NativeEndian.Uint32(and)}
	case load.name == "meta" && key == metaL4Proto && len(v) == 1 && !not:
		return rules.MatchProto{Protocol: ir.Protocol(v[0])}
	case load.name == "meta" && key == metaIifname:
		whole := len(v) == interfaceName
		return rules.MatchInterface{Name: string(bytes.TrimRight(v, "\x00")), Prefix: !whole, Not: not}
	case load.name == "payload" && key == 1:
		return netComparison(load, and, v, not, f)
	}
	return nil
}

func netComparison(load instruction, and, v []byte, not bool, f ir.Family) rules.Stmt {
	size := addrBytes(f)
	field := rules.SrcAddr
	offset := int(load.u32(3))
	if src, _ := addrOffset(rules.SrcAddr, f); offset != src {
		field = rules.DstAddr
		if dst, _ := addrOffset(rules.DstAddr, f); offset != dst {
			return nil
		}
	}
	bits := len(v) * 8
	if and != nil {
		all := bytes.Repeat([]byte{0xff}, len(and))
		bits = commonBits(and, all)
	}
	if len(v) > size {
		return nil
	}
	a, _ := netip.AddrFromSlice(append(bytes.Clone(v), make([]byte, size-len(v))...))
	return rules.MatchNet{Field: field, Prefix: netip.PrefixFrom(a, bits), Not: not}
}

// decodeTerm reads a part of a key.
func decodeTerm(c instruction, f ir.Family) (rules.Term, bool) {
	key := c.u32(2)
	switch c.name {
	case "payload":
		offset, n := int(c.u32(3)), int(c.u32(4))
		if key == 2 && offset == 2 && n == 2 {
			return rules.Term{Field: rules.DstPort}, true
		}
		for _, field := range [...]rules.Field{rules.SrcAddr, rules.DstAddr} {
			if o, size := addrOffset(field, f); key == 1 && o == offset && size == n {
				return rules.Term{Field: field}, true
			}
		}
	case "meta":
		return rules.Term{Field: rules.L4Proto}, key == metaL4Proto && c.fields[1] != nil
	case "numgen":
		return rules.Term{Field: rules.Random, Mod: key}, c.u32(3) == 1
	case "ct":
		field, ok := map[uint32]rules.Field{
			ctSrcIP: rules.OrigSrcAddr, ctSrcIP6: rules.OrigSrcAddr,
			ctDstIP: rules.OrigDstAddr, ctDstIP6: rules.OrigDstAddr, ctProtoDst: rules.OrigDstPort,
		}[key]
		return rules.Term{Field: field}, ok && len(c.fields[3]) == 1 && c.fields[3][0] == 0
	}
	return rules.Term{}, false
}

// notes gives one frontend for each comment.
type notes struct{ byComment map[string]*ir.Frontend }

func (n *notes) frontend(comment string) *ir.Frontend {
	if f, ok := n.byComment[comment]; ok {
		return f
	}
	if n.byComment == nil {
		n.byComment = map[string]*ir.Frontend{}
	}
	service, port, _ := strings.Cut(comment, ":")
	namespace, name, _ := strings.Cut(service, "/")
	f := &ir.Frontend{Port: ir.ServicePort{Service: ir.Name{Namespace: namespace, Name: name}, Port: port}}
	n.byComment[comment] = f
	return f
}
