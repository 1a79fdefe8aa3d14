package nftables

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// typeText returns the declaration of a set's type. nft has no name for the type
// of a slot, so maps with slots are declared by an example.
func (s *Set) typeText(f ir.Family) string {
	types, addr, data := typeNames, map[ir.Family]string{ir.IPv4: "ipv4_addr", ir.IPv6: "ipv6_addr"}[f], "inet_service"
	keyword := "type "
	for _, t := range s.Key {
		if t == TypeSlot {
			types, addr, data, keyword = typeExamples, f.NFT()+" daddr", "th dport", "typeof "
		}
	}
	key := make([]string, len(s.Key))
	for i, t := range s.Key {
		key[i] = cmp.Or(types[t], addr)
	}
	text := keyword + strings.Join(key, " . ")
	switch s.Data {
	case VerdictData:
		text += " : verdict"
	case AddrPortData:
		text += " : " + addr + " . " + data
	case AddrData:
		text += " : " + addr
	}
	return text
}

var (
	typeNames    = [...]string{TypeProto: "inet_proto", TypePort: "inet_service", TypeNet: ""}
	typeExamples = [...]string{TypeProto: "meta l4proto", TypePort: "th dport", TypeSlot: "numgen random mod 2", TypeNet: ""}
)

// KeyText returns an element's key in nft's notation.
func (s *Set) KeyText(k Key) string { return string(s.appendKey(nil, k)) }

func (s *Set) appendKey(b []byte, k Key) []byte {
	addr, port := k.Addr, k.Port
	for i, t := range s.Key {
		if i > 0 {
			b = append(b, " . "...)
		}
		switch t {
		case TypeAddr:
			b = addr.AppendTo(b)
			addr = k.Addr2
		case TypeProto:
			b = append(b, k.Proto.String()...)
		case TypePort:
			b = strconv.AppendUint(b, uint64(port), 10)
			port = k.Port2
		case TypeSlot:
			b = strconv.AppendUint(b, uint64(k.Slot), 10)
		case TypeNet:
			b = netip.PrefixFrom(k.Addr2, int(k.Bits)).AppendTo(b)
		}
	}
	return b
}

// ElementText returns an element in nft's notation.
func (s *Set) ElementText(e *Element) string { return string(s.appendElement(nil, e)) }

func (s *Set) appendElement(b []byte, e *Element) []byte {
	b = s.appendKey(b, e.Key)
	if s.commented() && e.Frontend != nil {
		b = append(b, ` comment "`...)
		b = appendComment(b, e.Frontend.Port)
		b = append(b, '"')
	}
	switch s.Data {
	case VerdictData:
		b = append(b, " : "...)
		b = e.Verdict.append(b)
	case AddrPortData:
		b = append(b, " : "...)
		b = e.To.Addr().AppendTo(b)
		b = append(b, " . "...)
		b = strconv.AppendUint(b, uint64(e.To.Port()), 10)
	}
	return b
}

// commented reports whether elements have their service port as a comment. One
// comment for each frontend is sufficient, so backends have none.
func (s *Set) commented() bool { return s.Data == VerdictData && len(s.Key) <= len(frontendKey) }

// maxComment is nft's maximum length of a comment.
const maxComment = 128

// Comment returns the comment of the element in the set; empty if it has none.
func (s *Set) Comment(e *Element) string {
	if !s.commented() || e.Frontend == nil {
		return ""
	}
	return string(appendComment(nil, e.Frontend.Port))
}

// Comment returns the comment of an element of the set.
func (s SetID) Comment(e *Element) string { return fixedSets[s].Comment(e) }

// appendComment appends ns/name:port without characters that nft cannot quote.
func appendComment(b []byte, p ir.ServicePort) []byte {
	start := len(b)
	b = append(b, p.Service.Namespace...)
	b = append(b, '/')
	b = append(b, p.Service.Name...)
	if p.Port != "" {
		b = append(b, ':')
		b = append(b, p.Port...)
	}
	if len(b)-start > maxComment {
		b = b[:start+maxComment]
	}
	for i := start; i < len(b); i++ {
		if c := b[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b[i] = '_'
		}
	}
	return b
}

func (v Verdict) append(b []byte) []byte {
	switch v.Kind {
	case Drop:
		return append(b, "drop"...)
	case Reject:
		return append(b, "reject"...)
	case RejectWith:
		b = append(b, "reject with "...)
	case Jump:
		b = append(b, "jump "...)
	case Goto:
		b = append(b, "goto "...)
	case Accept:
		b = append(b, "accept"...)
	case Return:
		b = append(b, "return"...)
	case Continue:
		b = append(b, "continue"...)
	}
	return append(b, v.Chain...)
}

// Text returns the rule in nft's syntax.
func (r *Rule) Text(f ir.Family) string { return string(r.appendText(nil, f)) }

func (r *Rule) appendText(b []byte, f ir.Family) []byte {
	for i, s := range r.Stmts {
		if i > 0 {
			b = append(b, ' ')
		}
		b = s.AppendText(b, f)
	}
	return b
}

func (f Field) append(b []byte, family ir.Family, mod uint32) []byte {
	ip := family.NFT()
	switch f {
	case SrcAddr:
		return append(append(b, ip...), " saddr"...)
	case DstAddr:
		return append(append(b, ip...), " daddr"...)
	case L4Proto:
		return append(b, "meta l4proto"...)
	case DstPort:
		return append(b, "th dport"...)
	case OrigSrcAddr:
		return append(append(append(b, "ct original "...), ip...), " saddr"...)
	case OrigDstAddr:
		return append(append(append(b, "ct original "...), ip...), " daddr"...)
	case OrigDstPort:
		return append(b, "ct original proto-dst"...)
	}
	if f == ClientHash {
		b = strconv.AppendUint(append(append(append(b, "jhash "...), ip...), " saddr . th sport mod "...), uint64(mod), 10)
		return append(b, maglevSeed...)
	}
	return strconv.AppendUint(append(b, "numgen random mod "...), uint64(mod), 10)
}

// maglevSeed follows a ClientHash in nft's listing.
var maglevSeed = " seed 0x" + strconv.FormatUint(ir.MaglevSeed, 16)

func appendTerms(b []byte, f ir.Family, terms []Term) []byte {
	for i, t := range terms {
		if i > 0 {
			b = append(b, " . "...)
		}
		b = t.Field.append(b, f, t.Mod)
	}
	return b
}

// appendNot appends the operator between two operands.
func appendNot(b []byte, not bool) []byte {
	if not {
		return append(b, " != "...)
	}
	return append(b, ' ')
}

func appendMark(b []byte, mask uint32) []byte {
	const digits = "0123456789abcdef"
	b = append(b, "0x"...)
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, digits[mask>>shift&0xf])
	}
	return b
}

func (m MatchNet) AppendText(b []byte, f ir.Family) []byte {
	b = appendNot(m.Field.append(b, f, 0), m.Not)
	if m.Prefix.IsSingleIP() {
		return m.Prefix.Addr().AppendTo(b)
	}
	return m.Prefix.AppendTo(b)
}

func (m MatchInterface) AppendText(b []byte, _ ir.Family) []byte {
	b = append(appendNot(append(b, "iifname"...), m.Not), '"')
	b = append(b, m.Name...)
	if m.Prefix {
		b = append(b, '*')
	}
	return append(b, '"')
}

func (m MatchLocal) AppendText(b []byte, _ ir.Family) []byte {
	field := "daddr"
	if m.Field == SrcAddr {
		field = "saddr"
	}
	return append(appendNot(append(b, "fib "+field+" type"...), m.Not), "local"...)
}

func (m MatchProto) AppendText(b []byte, _ ir.Family) []byte {
	return append(append(b, "meta l4proto "...), m.Protocol.String()...)
}

func (s MatchNew) AppendText(b []byte, _ ir.Family) []byte {
	return append(b, "ct state "+cmp.Or(s.State, "new")...)
}

func (MatchDNAT) AppendText(b []byte, _ ir.Family) []byte { return append(b, "ct status dnat"...) }

func (m MatchMark) AppendText(b []byte, _ ir.Family) []byte {
	b = appendMark(append(b, "meta mark & "...), m.Mask)
	if m.Clear {
		return append(b, " == 0x00000000"...)
	}
	return append(b, " != 0x00000000"...)
}

func (m MatchSet) AppendText(b []byte, f ir.Family) []byte {
	b = append(appendNot(appendTerms(b, f, m.Key), m.Not), '@')
	return append(b, m.Set...)
}

func (m SetMark) AppendText(b []byte, _ ir.Family) []byte {
	return appendMark(append(b, "meta mark set meta mark | "...), m.Mask)
}

func (m ClearMark) AppendText(b []byte, _ ir.Family) []byte {
	return appendMark(append(b, "meta mark set meta mark & "...), ^m.Mask)
}

func (m FlipMark) AppendText(b []byte, _ ir.Family) []byte {
	return appendMark(append(b, "meta mark set meta mark ^ "...), m.Mask)
}

func (l LookupVerdict) AppendText(b []byte, f ir.Family) []byte {
	return append(append(appendTerms(b, f, l.Key), " vmap @"...), l.Map...)
}

func (l LookupDNAT) AppendText(b []byte, f ir.Family) []byte {
	b = append(append(b, "dnat "...), f.NFT()...)
	if l.Port == 0 {
		b = append(b, " addr . port"...)
	}
	b = append(append(appendTerms(append(b, " to "...), f, l.Key), " map @"...), l.Map...)
	if l.Port != 0 {
		b = strconv.AppendUint(append(b, " : "...), uint64(l.Port), 10)
	}
	return b
}

func (u Update) AppendText(b []byte, f ir.Family) []byte {
	b = append(append(append(b, "update @"...), u.Map...), " { "...)
	b = append(appendTerms(b, f, []Term{u.Key}), " : "...)
	return append(appendTerms(b, f, []Term{u.Data}), " }"...)
}

func (Masquerade) AppendText(b []byte, _ ir.Family) []byte {
	return append(b, "masquerade fully-random"...)
}

func (v Verdict) AppendText(b []byte, _ ir.Family) []byte { return v.append(b) }

func (Counter) AppendText(b []byte, _ ir.Family) []byte { return append(b, "counter"...) }

func (f Unsupported) AppendText(b []byte, _ ir.Family) []byte {
	return append(append(append(b, '<'), f.What...), '>')
}
