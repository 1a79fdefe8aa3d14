package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// DecodeRule decodes a rule, and the name of its chain.
func DecodeRule(a Fields, f ir.Family) (chain string, r rules.Rule) {
	code, err := Instructions(a[unix.NFTA_RULE_EXPRESSIONS])
	if err == nil {
		r.Stmts = decodeStmts(code, f)
	}
	if err != nil || !sameInstructions(r.Stmts, code, f) {
		r.Stmts = []rules.Stmt{unsupported(a, code, f)}
	}
	return a.Text(unix.NFTA_RULE_CHAIN), r
}

// unsupported describes a rule by its known statements, other instructions in the kernel's words, and its
// handle, which `nft -a` lists.
func unsupported(a Fields, code []Instruction, f ir.Family) rules.Unsupported {
	var text []byte
	for len(code) > 0 {
		s, n := decodeStmt(code, f)
		if s != nil && sameInstructions([]rules.Stmt{s}, code[:n], f) {
			text = s.AppendText(text, f)
		} else if port, ok := comparedPort(code); ok {
			text, n = fmt.Appendf(text, "th dport %d", port), 2
		} else {
			text, n = append(text, code[0].Name...), 1
		}
		text, code = append(text, ' '), code[n:]
	}
	return rules.Unsupported{What: fmt.Sprintf("%s# handle %d", text, a.Uint64(unix.NFTA_RULE_HANDLE))}
}

// comparedPort decodes a comparison with one destination port.
func comparedPort(code []Instruction) (uint16, bool) {
	if t, ok := decodeTerm(code[0], ir.IPv4); !ok || t.Field != rules.DstPort || len(code) < 2 || code[1].Name != "cmp" || code[1].Uint32(unix.NFTA_CMP_OP) != unix.NFT_CMP_EQ {
		return 0, false
	}
	v, err := Value(code[1].Fields[unix.NFTA_CMP_DATA])
	if err != nil || len(v) != portBytes {
		return 0, false
	}
	return binary.BigEndian.Uint16(v), true
}

// sameInstructions reports whether the statements would be encoded to the same instructions.
// It ignores zeros, since the kernel returns unset attributes as 0.
func sameInstructions(stmts []rules.Stmt, code []Instruction, f ir.Family) bool {
	var b Builder
	appendExpressions(&b, stmts, f)
	ours, err := Instructions(b)
	if err != nil || len(ours) != len(code) {
		return false
	}
	for i, c := range ours {
		if c.Name != code[i].Name {
			return false
		}
		for t, v := range c.Fields {
			nestedVerdict := c.Name == "immediate" && t == unix.NFTA_IMMEDIATE_DATA // nested, and the kernel returns other flags
			if !nestedVerdict && !bytes.Equal(v, code[i].Fields[t]) {
				return false
			}
		}
		if c.Name == "counter" { // contains the counts
			continue
		}
		for t, v := range code[i].Fields {
			if c.Fields[t] == nil && !zero(v) {
				return false
			}
		}
	}
	return true
}

// Packets returns how many packets the counter of a rule has counted; 0 without one.
func Packets(a Fields) uint64 {
	code, err := Instructions(a[unix.NFTA_RULE_EXPRESSIONS])
	if err != nil {
		return 0
	}
	for _, c := range code {
		if c.Name == "counter" {
			return c.Uint64(unix.NFTA_COUNTER_PACKETS)
		}
	}
	return 0
}

// Instruction is one expression of a rule.
type Instruction struct {
	Name string
	Fields
}

// Instructions reads a list of expressions.
func Instructions(b []byte) ([]Instruction, error) {
	list, err := Attrs(b)
	if err != nil {
		return nil, err
	}
	var code []Instruction
	for _, item := range list {
		e, err := Parse(item.Data)
		if err != nil {
			return nil, err
		}
		data, err := e.under(unix.NFTA_EXPR_DATA)
		if err != nil {
			return nil, err
		}
		name := e.Text(unix.NFTA_EXPR_NAME)
		if name == "byteorder" && data.Uint32(unix.NFTA_BYTEORDER_LEN) == 1 {
			continue // nft reverses single bytes, in keys of interval sets
		}
		code = append(code, Instruction{name, data})
	}
	return code, nil
}

// decodeStmts decodes the statements of a rule. It returns nil if one is unknown.
func decodeStmts(code []Instruction, f ir.Family) []rules.Stmt {
	var stmts []rules.Stmt
	for len(code) > 0 {
		s, n := decodeStmt(code, f)
		if s == nil {
			return nil
		}
		stmts = append(stmts, s)
		code = code[n:]
	}
	return stmts
}

// decodeReject decodes the answer of a rejecting rule.
func decodeReject(c Instruction, f ir.Family) rules.Verdict {
	kind, code := c.Uint32(unix.NFTA_REJECT_TYPE), byte(0)
	if data := c.Fields[unix.NFTA_REJECT_ICMP_CODE]; len(data) > 0 {
		code = data[0]
	}
	switch {
	case kind == unix.NFT_REJECT_TCP_RST:
		return rules.Verdict{Kind: rules.RejectWith, Chain: "tcp reset"}
	case kind == unix.NFT_REJECT_ICMP_UNREACH && code == portUnreachable(f), kind == unix.NFT_REJECT_ICMPX_UNREACH && code == unix.NFT_REJECT_ICMPX_PORT_UNREACH:
		return rules.Verdict{Kind: rules.Reject}
	case kind == unix.NFT_REJECT_ICMPX_UNREACH:
		return rules.Verdict{Kind: rules.RejectWith, Chain: fmt.Sprintf("icmpx %d", code)}
	}
	return rules.Verdict{Kind: rules.RejectWith, Chain: fmt.Sprintf("icmp %d", code)}
}

// decodeStmt decodes the first statement in the code, and returns the number of its instructions.
func decodeStmt(code []Instruction, f ir.Family) (rules.Stmt, int) {
	switch c := code[0]; c.Name {
	case "immediate":
		if v, err := DecodeVerdict(c.Fields[unix.NFTA_IMMEDIATE_DATA]); err == nil && v.Kind != 0 && c.Uint32(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
			return v, 1
		}
		return nil, 0
	case "counter":
		return rules.Counter{}, 1
	case "reject":
		return decodeReject(c, f), 1
	case "masq":
		return rules.Masquerade{}, 1
	case "fib":
		field := rules.DstAddr
		if c.Uint32(unix.NFTA_FIB_FLAGS) == unix.NFTA_FIB_F_SADDR {
			field = rules.SrcAddr
		}
		if len(code) > 1 && code[1].Name == "cmp" {
			return rules.MatchLocal{Field: field, Not: code[1].Uint32(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ}, 2
		}
		return nil, 0
	}
	if s, n := decodeMatch(code, f); s != nil {
		return s, n
	}
	var terms []rules.Term
	n := 0
	for n < len(code) {
		if len(code) > n+2 && code[n+2].Name == "hash" { // of the client's address and port
			terms = append(terms, rules.Term{Field: rules.ClientHash, Mod: code[n+2].Uint32(unix.NFTA_HASH_MODULUS)})
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

// decodeLookup decodes the statement that uses the terms in the registers.
func decodeLookup(terms []rules.Term, code []Instruction) (rules.Stmt, int) {
	c := code[0]
	switch {
	case c.Name == "dynset" && len(terms) == 2:
		return rules.Update{Map: c.Text(unix.NFTA_DYNSET_SET_NAME), Key: terms[0], Data: terms[1]}, 1
	case c.Name != "lookup":
		return nil, 0
	case c.Fields[unix.NFTA_LOOKUP_DREG] == nil:
		return rules.MatchSet{Key: terms, Set: c.Text(unix.NFTA_LOOKUP_SET), Not: c.Uint32(unix.NFTA_LOOKUP_FLAGS) == unix.NFT_LOOKUP_F_INV}, 1
	case c.Uint32(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT:
		return rules.LookupVerdict{Key: terms, Map: c.Text(unix.NFTA_LOOKUP_SET)}, 1
	case len(code) > 1 && code[1].Name == "nat":
		return rules.LookupDNAT{Key: terms, Map: c.Text(unix.NFTA_LOOKUP_SET)}, 2
	case len(code) > 2 && code[1].Name == "immediate" && code[2].Name == "nat":
		port, err := Value(code[1].Fields[unix.NFTA_IMMEDIATE_DATA])
		if err != nil || len(port) != 2 {
			return nil, 0
		}
		return rules.LookupDNAT{Key: terms, Map: c.Text(unix.NFTA_LOOKUP_SET), Port: binary.BigEndian.Uint16(port)}, 3
	}
	return nil, 0
}

// decodeMatch decodes a comparison, or a change of the mark.
func decodeMatch(code []Instruction, f ir.Family) (rules.Stmt, int) {
	if len(code) < 2 {
		return nil, 0
	}
	load, rest := code[0], code[1:]
	var and, xor []byte
	n := 1
	if rest[0].Name == "bitwise" {
		var err1, err2 error
		and, err1 = Value(rest[0].Fields[unix.NFTA_BITWISE_MASK])
		xor, err2 = Value(rest[0].Fields[unix.NFTA_BITWISE_XOR])
		if err1 != nil || err2 != nil || len(rest) < 2 {
			return nil, 0
		}
		rest, n = rest[1:], 2
	}
	end := rest[0]
	mark := load.Name == "meta" && load.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_MARK && len(and) == 4
	if mark && end.Name == "meta" && end.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_MARK && end.Fields[unix.NFTA_META_SREG] != nil {
		if set := binary.NativeEndian.Uint32(xor); set != 0 {
			return rules.SetMark{Mask: set}, n + 1
		}
		return rules.ClearMark{Mask: ^binary.NativeEndian.Uint32(and)}, n + 1
	}
	if end.Name != "cmp" {
		return nil, 0
	}
	v, err := Value(end.Fields[unix.NFTA_CMP_DATA])
	if err != nil {
		return nil, 0
	}
	not := end.Uint32(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ
	s := comparison(load, and, v, not, f)
	return s, n + 1
}

// comparison decodes the value that a loaded value, masked or not, is compared with.
func comparison(load Instruction, and, v []byte, not bool, f ir.Family) rules.Stmt {
	switch load.Name {
	case "ct":
		switch key := load.Uint32(unix.NFTA_CT_KEY); {
		case key == unix.NFT_CT_STATE && not:
			return rules.MatchNew{}
		case key == unix.NFT_CT_STATUS && not:
			return rules.MatchDNAT{}
		}
	case "meta":
		switch key := load.Uint32(unix.NFTA_META_KEY); {
		case key == unix.NFT_META_MARK && len(and) == 4:
			return rules.MatchMark{Mask: binary.NativeEndian.Uint32(and), Clear: !not}
		case key == unix.NFT_META_L4PROTO && len(v) == 1 && !not:
			return rules.MatchProto{Protocol: ir.Protocol(v[0])}
		case key == unix.NFT_META_IIFNAME:
			whole := len(v) == unix.IFNAMSIZ
			return rules.MatchInterface{Name: string(bytes.TrimRight(v, "\x00")), Prefix: !whole, Not: not}
		}
	case "payload":
		if load.Uint32(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER {
			return netComparison(load, and, v, not, f)
		}
	}
	return nil
}

func netComparison(load Instruction, and, v []byte, not bool, f ir.Family) rules.Stmt {
	size := addrBytes(f)
	field := rules.SrcAddr
	offset := int(load.Uint32(unix.NFTA_PAYLOAD_OFFSET))
	if src, _ := addrOffset(rules.SrcAddr, f); offset != src {
		field = rules.DstAddr
		if dst, _ := addrOffset(rules.DstAddr, f); offset != dst {
			return nil
		}
	}
	length := len(v) * 8
	if and != nil {
		length = commonBits(and, bytes.Repeat([]byte{0xff}, len(and)))
	}
	if len(v) > size {
		return nil
	}
	a, _ := netip.AddrFromSlice(append(bytes.Clone(v), make([]byte, size-len(v))...))
	return rules.MatchNet{Field: field, Prefix: netip.PrefixFrom(a, length), Not: not}
}

// decodeTerm reads a part of a key.
func decodeTerm(c Instruction, f ir.Family) (rules.Term, bool) {
	switch c.Name {
	case "payload":
		base, offset, n := c.Uint32(unix.NFTA_PAYLOAD_BASE), int(c.Uint32(unix.NFTA_PAYLOAD_OFFSET)), int(c.Uint32(unix.NFTA_PAYLOAD_LEN))
		if base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == dstPortOffset && n == portBytes {
			return rules.Term{Field: rules.DstPort}, true
		}
		for _, field := range [...]rules.Field{rules.SrcAddr, rules.DstAddr} {
			if o, size := addrOffset(field, f); base == unix.NFT_PAYLOAD_NETWORK_HEADER && o == offset && size == n {
				return rules.Term{Field: field}, true
			}
		}
	case "meta":
		return rules.Term{Field: rules.L4Proto}, c.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO && c.Fields[unix.NFTA_META_DREG] != nil
	case "numgen":
		return rules.Term{Field: rules.Random, Mod: c.Uint32(unix.NFTA_NG_MODULUS)}, c.Uint32(unix.NFTA_NG_TYPE) == unix.NFT_NG_RANDOM
	case "ct":
		field, ok := map[uint32]rules.Field{
			unix.NFT_CT_SRC_IP: rules.OrigSrcAddr, unix.NFT_CT_SRC_IP6: rules.OrigSrcAddr,
			unix.NFT_CT_DST_IP: rules.OrigDstAddr, unix.NFT_CT_DST_IP6: rules.OrigDstAddr, unix.NFT_CT_PROTO_DST: rules.OrigDstPort,
		}[c.Uint32(unix.NFTA_CT_KEY)]
		return rules.Term{Field: field}, ok && bytes.Equal(c.Fields[unix.NFTA_CT_DIRECTION], []byte{ipCTDirOrig})
	}
	return rules.Term{}, false
}

// commonBits returns the number of leading bits that a and b have in common.
func commonBits(a, b []byte) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return i*8 + bits.LeadingZeros8(x)
		}
	}
	return len(a) * 8
}
