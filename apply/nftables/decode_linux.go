package nftables

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

// This file reads what encode.go writes, as the kernel gives it back.

// decodeSet reads the declaration of a set, without its elements. Of a set that
// cannot be ours it gives the name, and what is foreign. ok tells that the set
// is no part of a rule, with which it comes and goes.
func decodeSet(b []byte, f ir.Family) (s rules.Set, ok bool, err error) {
	a, err := parse(b)
	if err != nil {
		return s, false, err
	}
	s.Name = a.text(unix.NFTA_SET_NAME)
	flags := a.u32(unix.NFTA_SET_FLAGS)
	if flags&unix.NFT_SET_ANONYMOUS != 0 {
		return s, false, nil
	}
	key, known := decodeTypes(a.u32(unix.NFTA_SET_KEY_TYPE))
	if !known {
		s.Unsupported = "another type of key"
		return s, true, nil
	}
	s.Interval = flags&unix.NFT_SET_INTERVAL != 0
	if s.Interval { // ours are of addresses alone
		key[len(key)-1] = rules.TypeNet
	}
	if flags&unix.NFT_SET_TIMEOUT != 0 {
		if t := a[unix.NFTA_SET_TIMEOUT]; len(t) == 8 {
			s.Timeout = time.Duration(binary.BigEndian.Uint64(t)) * time.Millisecond
		}
	}
	if flags&unix.NFT_SET_MAP != 0 {
		addrPort, _ := concat(addrPortType(), f)
		addr, _ := typeOf(rules.TypeAddr, f)
		switch a.u32(unix.NFTA_SET_DATA_TYPE) {
		case unix.NFT_DATA_VERDICT:
			s.Data = rules.VerdictData
		case addrPort:
			s.Data = rules.AddrPortData
		case addr:
			s.Data = rules.AddrData
		default:
			s.Unsupported = "another type of data"
			return s, true, nil
		}
	}
	s.Key = key
	s.Unsupported = foreignIn(&s, a, f)
	return s, true, nil
}

// foreignIn returns what the declaration of a set, as it was read, has and
// its equal of ours has not.
func foreignIn(s *rules.Set, a fields, f ir.Family) string {
	ours, err := parse(encodeSet(s, f, 0))
	if err != nil {
		return err.Error()
	}
	size := func(a fields) uint32 {
		desc, _ := a.under(unix.NFTA_SET_DESC)
		return desc.u32(unix.NFTA_SET_DESC_SIZE)
	}
	has, want := size(a), size(ours)
	if s.Timeout > 0 && has >= rules.MostClients && has%rules.MostClients == 0 {
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
		if !bytes.Equal(a[w.typ], ours[w.typ]) && !(zero(a[w.typ]) && zero(ours[w.typ])) {
			return w.word
		}
	}
	return ""
}

// zero reports whether a value is 0, as it is where the kernel tells what nobody set.
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
	items, err := elementList(b)
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

// elementList returns the elements of a message.
func elementList(b []byte) ([]attr, error) {
	list, err := first(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	if err != nil {
		return nil, err
	}
	return attrs(list)
}

var errForeign = errors.New("is not ours")

func decodeElement(b []byte, s *rules.Set, f ir.Family, note func(string) *ir.Frontend) (e rules.Element, err error) {
	all, err := attrs(b)
	if err != nil {
		return e, err
	}
	var key []byte
	expires := false
	for _, a := range all {
		expires = expires || a.typ == unix.NFTA_SET_ELEM_EXPIRATION
		switch a.typ {
		case unix.NFTA_SET_ELEM_KEY:
			key, err = value(a.data)
		case unix.NFTA_SET_ELEM_DATA:
			err = decodeData(a.data, s, f, &e)
		case unix.NFTA_SET_ELEM_USERDATA:
			if len(a.data) > 2 && a.data[0] == udataElemComment {
				e.Frontend = note(strings.TrimRight(string(a.data[2:]), "\x00"))
			}
		default: // a time, an end of an interval or of its key, a statement, an object
			if s.Timeout == 0 && !zero(a.data) {
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

// sameKey reports whether a key would be encoded to what was read.
func sameKey(s *rules.Set, f ir.Family, k *rules.Key, key []byte) bool {
	var room [attrHeader + 64]byte
	b := builder(room[:0])
	appendKey(&b, s, f, k)
	return bytes.Equal(b[attrHeader:], key)
}

// value returns what an attribute with a value, and nothing else, has.
func value(b []byte) ([]byte, error) {
	a, rest, err := cut(b)
	if err != nil || len(rest) > 0 {
		return nil, errShort
	}
	return a.data, nil
}

func decodeKey(b []byte, s *rules.Set, f ir.Family) (k rules.Key, err error) {
	_, n := concat(s.Key, f)
	if len(b) != n {
		return k, errShort
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
func decodeVerdict(b []byte) (v rules.Verdict, err error) {
	b, err = first(b, unix.NFTA_DATA_VERDICT)
	for len(b) > 0 && err == nil {
		var a attr
		a, b, err = cut(b)
		switch {
		case a.typ == unix.NFTA_VERDICT_CODE && len(a.data) == 4:
			v.Kind = verdictKind(int32(binary.BigEndian.Uint32(a.data)))
		case a.typ == unix.NFTA_VERDICT_CHAIN:
			v.Chain = cString(a.data)
		}
	}
	return v, err
}

// verdictKind is the kind that has a number of the kernel's.
func verdictKind(code int32) rules.VerdictKind {
	switch code {
	case nfDrop:
		return rules.Drop
	case nfAccept:
		return rules.Accept
	case unix.NFT_JUMP:
		return rules.Jump
	case unix.NFT_GOTO:
		return rules.Goto
	case unix.NFT_RETURN:
		return rules.Return
	case unix.NFT_CONTINUE:
		return rules.Continue
	}
	return 0
}

// decodeChain reads a chain without its rules. ok tells that the chain is no
// part of a rule, with which it comes and goes.
func decodeChain(b []byte) (c rules.Chain, ok bool, err error) {
	a, err := parse(b)
	if err != nil {
		return c, false, err
	}
	c.Name = a.text(unix.NFTA_CHAIN_NAME)
	if a[unix.NFTA_CHAIN_HOOK] == nil {
		return c, a.u32(nftaChainFlags)&nftChainBinding == 0, nil
	}
	hook, err := a.under(unix.NFTA_CHAIN_HOOK)
	if err != nil {
		return c, false, err
	}
	number, kind := hook.u32(unix.NFTA_HOOK_HOOKNUM), a.text(unix.NFTA_CHAIN_TYPE)
	c.Base = &rules.Base{NAT: kind == "nat", Priority: int(int32(hook.u32(unix.NFTA_HOOK_PRIORITY))),
		Drop: a[unix.NFTA_CHAIN_POLICY] != nil && a.u32(unix.NFTA_CHAIN_POLICY) == nfDrop}
	switch {
	case number > uint32(rules.Postrouting):
		c.Base.Unsupported = "another hook"
	case kind != chainType(c.Base):
		c.Base.Unsupported = "type " + kind
	}
	if c.Base.Unsupported == "" {
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
	chain = a.text(unix.NFTA_RULE_CHAIN)
	code, err := instructions(a[unix.NFTA_RULE_EXPRESSIONS])
	if err == nil {
		r.Stmts = decodeStmts(code, f)
	}
	if err != nil || !understood(r.Stmts, code, f) {
		r.Stmts = []rules.Stmt{rules.Unsupported{What: describe(code, f)}}
	}
	return chain, r, nil
}

// understood reports whether the statements would be encoded to the same
// instructions, but for zeros, with which the kernel tells what was not said.
func understood(stmts []rules.Stmt, code []instruction, f ir.Family) bool {
	var b builder
	appendExpressions(&b, stmts, f)
	ours, err := instructions(b)
	if err != nil || len(ours) != len(code) {
		return false
	}
	for i, c := range ours {
		if c.name != code[i].name {
			return false
		}
		for t, v := range c.fields {
			nestedVerdict := c.name == "immediate" && t == unix.NFTA_IMMEDIATE_DATA // read whole, with flags of its own
			if !nestedVerdict && !bytes.Equal(v, code[i].fields[t]) {
				return false
			}
		}
		if c.name == "counter" { // it has what it counted
			continue
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
		data, err := e.under(unix.NFTA_EXPR_DATA)
		if err != nil {
			return nil, err
		}
		name := e.text(unix.NFTA_EXPR_NAME)
		if name == "byteorder" && data.u32(unix.NFTA_BYTEORDER_LEN) == 1 {
			continue // nft reverses single bytes, in keys of interval sets
		}
		code = append(code, instruction{name, data})
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
			return []rules.Stmt{rules.Unsupported{What: code[0].name}}
		}
		stmts = append(stmts, s)
		code = code[n:]
	}
	return stmts
}

// decodeStmt returns the statement that the code begins with, and how many
// instructions it has.
func decodeStmt(code []instruction, f ir.Family) (rules.Stmt, int) {
	switch c := code[0]; c.name {
	case "immediate":
		if v, err := decodeVerdict(c.fields[unix.NFTA_IMMEDIATE_DATA]); err == nil && v.Kind != 0 && c.u32(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
			return v, 1
		}
		return nil, 0
	case "counter":
		return rules.Counter{}, 1
	case "reject":
		return rules.Verdict{Kind: rules.Reject}, 1
	case "masq":
		return rules.Masquerade{}, 1
	case "fib":
		field := rules.DstAddr
		if c.u32(unix.NFTA_FIB_FLAGS) == unix.NFTA_FIB_F_SADDR {
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
	n := 0
	for n < len(code) {
		if len(code) > n+2 && code[n+2].name == "hash" { // of the client's address and port
			terms = append(terms, rules.Term{Field: rules.ClientHash, Mod: code[n+2].u32(unix.NFTA_HASH_MODULUS)})
			n += 3
			continue
		}
		t, ok := decodeTerm(code[n], f)
		if !ok {
			break
		}
		terms = append(terms, t)
		n++
	}
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
		return rules.Update{Map: c.text(unix.NFTA_DYNSET_SET_NAME), Key: terms[0], Data: terms[1]}, 1
	case c.name != "lookup":
		return nil, 0
	case c.fields[unix.NFTA_LOOKUP_DREG] == nil:
		return rules.MatchSet{Key: terms, Set: c.text(unix.NFTA_LOOKUP_SET), Not: c.u32(unix.NFTA_LOOKUP_FLAGS) == unix.NFT_LOOKUP_F_INV}, 1
	case c.u32(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT:
		return rules.LookupVerdict{Key: terms, Map: c.text(unix.NFTA_LOOKUP_SET)}, 1
	case len(code) > 1 && code[1].name == "nat":
		return rules.LookupDNAT{Key: terms, Map: c.text(unix.NFTA_LOOKUP_SET)}, 2
	case len(code) > 2 && code[1].name == "immediate" && code[2].name == "nat":
		port, err := value(code[1].fields[unix.NFTA_IMMEDIATE_DATA])
		if err != nil || len(port) != 2 {
			return nil, 0
		}
		return rules.LookupDNAT{Key: terms, Map: c.text(unix.NFTA_LOOKUP_SET), Port: binary.BigEndian.Uint16(port)}, 3
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
		and, err1 = value(rest[0].fields[unix.NFTA_BITWISE_MASK])
		xor, err2 = value(rest[0].fields[unix.NFTA_BITWISE_XOR])
		if err1 != nil || err2 != nil || len(rest) < 2 {
			return nil, 0
		}
		rest, n = rest[1:], 2
	}
	end := rest[0]
	mark := load.name == "meta" && load.u32(unix.NFTA_META_KEY) == unix.NFT_META_MARK && len(and) == 4
	if mark && end.name == "meta" && end.u32(unix.NFTA_META_KEY) == unix.NFT_META_MARK && end.fields[unix.NFTA_META_SREG] != nil {
		if set := binary.NativeEndian.Uint32(xor); set != 0 {
			return rules.SetMark{Mask: set}, n + 1
		}
		return rules.ClearMark{Mask: ^binary.NativeEndian.Uint32(and)}, n + 1
	}
	if end.name != "cmp" {
		return nil, 0
	}
	v, err := value(end.fields[unix.NFTA_CMP_DATA])
	if err != nil {
		return nil, 0
	}
	not := end.u32(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ
	s := comparison(load, and, v, not, f)
	return s, n + 1
}

// comparison is what a loaded value, masked or not, is compared for.
func comparison(load instruction, and, v []byte, not bool, f ir.Family) rules.Stmt {
	switch load.name {
	case "ct":
		switch key := load.u32(unix.NFTA_CT_KEY); {
		case key == unix.NFT_CT_STATE && not:
			return rules.MatchNew{}
		case key == unix.NFT_CT_STATUS && not:
			return rules.MatchDNAT{}
		}
	case "meta":
		switch key := load.u32(unix.NFTA_META_KEY); {
		case key == unix.NFT_META_MARK && len(and) == 4:
			return rules.MatchMark{Mask: binary.NativeEndian.Uint32(and), Clear: !not}
		case key == unix.NFT_META_L4PROTO && len(v) == 1 && !not:
			return rules.MatchProto{Protocol: ir.Protocol(v[0])}
		case key == unix.NFT_META_IIFNAME:
			whole := len(v) == unix.IFNAMSIZ
			return rules.MatchInterface{Name: string(bytes.TrimRight(v, "\x00")), Prefix: !whole, Not: not}
		}
	case "payload":
		if load.u32(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER {
			return netComparison(load, and, v, not, f)
		}
	}
	return nil
}

func netComparison(load instruction, and, v []byte, not bool, f ir.Family) rules.Stmt {
	size := addrBytes(f)
	field := rules.SrcAddr
	offset := int(load.u32(unix.NFTA_PAYLOAD_OFFSET))
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
	switch c.name {
	case "payload":
		base, offset, n := c.u32(unix.NFTA_PAYLOAD_BASE), int(c.u32(unix.NFTA_PAYLOAD_OFFSET)), int(c.u32(unix.NFTA_PAYLOAD_LEN))
		if base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == dstPortOffset && n == portBytes {
			return rules.Term{Field: rules.DstPort}, true
		}
		for _, field := range [...]rules.Field{rules.SrcAddr, rules.DstAddr} {
			if o, size := addrOffset(field, f); base == unix.NFT_PAYLOAD_NETWORK_HEADER && o == offset && size == n {
				return rules.Term{Field: field}, true
			}
		}
	case "meta":
		return rules.Term{Field: rules.L4Proto}, c.u32(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO && c.fields[unix.NFTA_META_DREG] != nil
	case "numgen":
		return rules.Term{Field: rules.Random, Mod: c.u32(unix.NFTA_NG_MODULUS)}, c.u32(unix.NFTA_NG_TYPE) == unix.NFT_NG_RANDOM
	case "ct":
		field, ok := map[uint32]rules.Field{
			unix.NFT_CT_SRC_IP: rules.OrigSrcAddr, unix.NFT_CT_SRC_IP6: rules.OrigSrcAddr,
			unix.NFT_CT_DST_IP: rules.OrigDstAddr, unix.NFT_CT_DST_IP6: rules.OrigDstAddr, unix.NFT_CT_PROTO_DST: rules.OrigDstPort,
		}[c.u32(unix.NFTA_CT_KEY)]
		return rules.Term{Field: field}, ok && bytes.Equal(c.fields[unix.NFTA_CT_DIRECTION], []byte{ipCTDirOrig})
	}
	return rules.Term{}, false
}

// notes returns one frontend for each comment.
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
