package codec

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// describe returns the text of an unsupported rule, similar to nft's, by which people can find it.
// It contains the kernel's names of unknown instructions, and numbers for unknown keys.
func describe(code []Instruction, f ir.Family) string {
	d := description{family: f, registers: map[uint32]loaded{}}
	for _, c := range code {
		d.instruction(c)
	}
	return strings.Join(d.words, " ")
}

type description struct {
	family    ir.Family
	words     []string
	registers map[uint32]loaded
}

// loaded is the content of a register: a part of a packet, or a number.
type loaded struct {
	name   string
	show   func([]byte) string // formats a value of its type
	number []byte              // a constant; nil for a part of a packet
	bits   bool                // result of a bitwise operation
}

// text returns the text of a value that is assigned to another one.
func (l loaded) text(of loaded) string {
	if l.number != nil {
		return of.show(l.number)
	}
	return l.name
}

func (d *description) print(format string, args ...any) {
	d.words = append(d.words, fmt.Sprintf(format, args...))
}

// load records the value that an instruction stores in its register.
func (d *description) load(register []byte, l loaded) {
	if len(register) == 4 {
		d.registers[binary.BigEndian.Uint32(register)] = l
	}
}

// loadOrSet records the load of a value into a register, or prints its assignment from another one.
func (d *description) loadOrSet(l loaded, to []byte, from uint32) {
	if to == nil {
		d.print("%s set %s", l.name, d.from(from).text(l))
	}
	d.load(to, l)
}

// from returns the value that an instruction reads from a register.
func (d *description) from(register uint32) loaded {
	if l, ok := d.registers[register]; ok {
		return l
	}
	return loaded{name: "?", show: hexText}
}

func (d *description) instruction(c Instruction) {
	switch c.Name {
	case "payload":
		if c.Fields[unix.NFTA_PAYLOAD_DREG] == nil {
			d.print("set %s", payloadName(c, d.family).name)
			return
		}
		d.load(c.Fields[unix.NFTA_PAYLOAD_DREG], payloadName(c, d.family))
	case "meta":
		d.loadOrSet(metaName(c.Uint32(unix.NFTA_META_KEY)), c.Fields[unix.NFTA_META_DREG], c.Uint32(unix.NFTA_META_SREG))
	case "ct":
		d.loadOrSet(ctName(c.Uint32(unix.NFTA_CT_KEY)), c.Fields[unix.NFTA_CT_DREG], c.Uint32(unix.NFTA_CT_SREG))
	case "bitwise":
		of := d.from(c.Uint32(unix.NFTA_BITWISE_SREG))
		mask, _ := Value(c.Fields[unix.NFTA_BITWISE_MASK])
		flip, _ := Value(c.Fields[unix.NFTA_BITWISE_XOR])
		of.name, of.bits = of.name+bitsText(mask, flip, of.show), true
		d.load(c.Fields[unix.NFTA_BITWISE_DREG], of)
	case "byteorder":
		of := d.from(c.Uint32(unix.NFTA_BYTEORDER_SREG))
		if show := of.show; c.Uint32(unix.NFTA_BYTEORDER_SIZE) == 4 {
			of.show = func(v []byte) string { return show(swapped(v)) }
		}
		d.load(c.Fields[unix.NFTA_BYTEORDER_DREG], of)
	case "cmp":
		of := d.from(c.Uint32(unix.NFTA_CMP_SREG))
		v, _ := Value(c.Fields[unix.NFTA_CMP_DATA])
		op := operator(c.Uint32(unix.NFTA_CMP_OP))
		if of.bits && op == "" {
			op = " =="
		}
		d.print("%s%s %s", of.name, op, of.show(v))
	case "range":
		of := d.from(c.Uint32(unix.NFTA_RANGE_SREG))
		from, _ := Value(c.Fields[unix.NFTA_RANGE_FROM_DATA])
		to, _ := Value(c.Fields[unix.NFTA_RANGE_TO_DATA])
		d.print("%s%s %s-%s", of.name, operator(c.Uint32(unix.NFTA_RANGE_OP)), of.show(from), of.show(to))
	case "lookup":
		d.lookup(c)
	case "immediate":
		d.immediate(c)
	case "log":
		if prefix := c.Text(unix.NFTA_LOG_PREFIX); prefix != "" {
			d.print("log prefix %q", prefix)
			return
		}
		d.print("log")
	case "masq":
		d.print("masquerade")
	case "redir":
		d.print("redirect")
	case "reject":
		v := decodeReject(c, d.family)
		d.print("%s", v.AppendText(nil, d.family))
	case "nat":
		d.print("%s", [...]string{"snat", "dnat"}[min(c.Uint32(unix.NFTA_NAT_TYPE), 1)])
	default:
		d.print("%s", c.Name)
	}
}

func (d *description) lookup(c Instruction) {
	// The key may use several registers; the first one names it.
	of, set := d.from(c.Uint32(unix.NFTA_LOOKUP_SREG)), c.Text(unix.NFTA_LOOKUP_SET)
	switch {
	case c.Fields[unix.NFTA_LOOKUP_DREG] == nil && c.Uint32(unix.NFTA_LOOKUP_FLAGS) == unix.NFT_LOOKUP_F_INV:
		d.print("%s != @%s", of.name, set)
	case c.Fields[unix.NFTA_LOOKUP_DREG] == nil:
		d.print("%s @%s", of.name, set)
	case c.Uint32(unix.NFTA_LOOKUP_DREG) == unix.NFT_REG_VERDICT:
		d.print("%s vmap @%s", of.name, set)
	default:
		d.load(c.Fields[unix.NFTA_LOOKUP_DREG], loaded{name: of.name + " map @" + set, show: hexText})
	}
}

func (d *description) immediate(c Instruction) {
	data := c.Fields[unix.NFTA_IMMEDIATE_DATA]
	if c.Uint32(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT {
		v, _ := Value(data)
		d.load(c.Fields[unix.NFTA_IMMEDIATE_DREG], loaded{name: hexText(v), show: hexText, number: v})
		return
	}
	nested, err := First(data, unix.NFTA_DATA_VERDICT)
	if err != nil {
		return
	}
	verdict, err := Parse(nested)
	if err != nil {
		return
	}
	chain := verdict.Text(unix.NFTA_VERDICT_CHAIN)
	switch code := int32(verdict.Uint32(unix.NFTA_VERDICT_CODE)); code {
	case nfDrop:
		d.print("drop")
	case nfAccept:
		d.print("accept")
	case unix.NFT_JUMP:
		d.print("jump %s", chain)
	case unix.NFT_GOTO:
		d.print("goto %s", chain)
	case unix.NFT_RETURN:
		d.print("return")
	case unix.NFT_CONTINUE:
		d.print("continue")
	default:
		d.print("verdict %d", code)
	}
}

// operator returns nft's operator of a comparison; equality has none.
func operator(op uint32) string {
	signs := [...]string{unix.NFT_CMP_EQ: "", unix.NFT_CMP_NEQ: " !=", unix.NFT_CMP_LT: " <", unix.NFT_CMP_LTE: " <=", unix.NFT_CMP_GT: " >", unix.NFT_CMP_GTE: " >="}
	if int(op) < len(signs) {
		return signs[op]
	}
	return " ?"
}

// payloadName describes the loaded part of a packet.
func payloadName(c Instruction, f ir.Family) loaded {
	base, offset, length := c.Uint32(unix.NFTA_PAYLOAD_BASE), c.Uint32(unix.NFTA_PAYLOAD_OFFSET), c.Uint32(unix.NFTA_PAYLOAD_LEN)
	if base == unix.NFT_PAYLOAD_NETWORK_HEADER {
		for field, name := range map[rules.Field]string{rules.SrcAddr: "saddr", rules.DstAddr: "daddr"} {
			if o, size := addrOffset(field, f); o == int(offset) && int(length) <= size {
				return loaded{name: f.NFT() + " " + name, show: func(v []byte) string { return addrText(v, size) }}
			}
		}
	}
	if base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && length == 2 && (offset == 0 || offset == 2) {
		return loaded{name: [...]string{0: "th sport", 2: "th dport"}[offset], show: numberText}
	}
	name := "nh"
	switch base {
	case unix.NFT_PAYLOAD_LL_HEADER:
		name = "ll"
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		name = "th"
	}
	return loaded{name: fmt.Sprintf("@%s,%d,%d", name, 8*offset, 8*length), show: hexText}
}

func metaName(key uint32) loaded {
	switch key {
	case unix.NFT_META_L4PROTO:
		return loaded{name: "meta l4proto", show: func(v []byte) string {
			if len(v) == 1 {
				return ir.Protocol(v[0]).String()
			}
			return hexText(v)
		}}
	case unix.NFT_META_IIFNAME:
		return loaded{name: "iifname", show: nameText}
	case unix.NFT_META_OIFNAME:
		return loaded{name: "oifname", show: nameText}
	case unix.NFT_META_MARK:
		return loaded{name: "meta mark", show: hostText}
	case unix.NFT_META_SKUID:
		return loaded{name: "meta skuid", show: func(v []byte) string { return numberText(swapped(v)) }}
	case unix.NFT_META_NFPROTO:
		return loaded{name: "meta nfproto", show: numberText}
	}
	return loaded{name: "meta key " + strconv.Itoa(int(key)), show: hexText}
}

func ctName(key uint32) loaded {
	switch key {
	case unix.NFT_CT_STATE:
		return loaded{name: "ct state", show: hostText}
	case unix.NFT_CT_STATUS:
		return loaded{name: "ct status", show: hostText}
	case unix.NFT_CT_MARK:
		return loaded{name: "ct mark", show: hostText}
	}
	return loaded{name: "ct key " + strconv.Itoa(int(key)), show: hexText}
}

// addrText returns an address, or a prefix if v is shorter than size.
func addrText(v []byte, size int) string {
	if len(v) == 0 || len(v) > size {
		return hexText(v)
	}
	whole := make([]byte, size)
	copy(whole, v)
	a, _ := netip.AddrFromSlice(whole)
	if len(v) < size {
		return netip.PrefixFrom(a, 8*len(v)).String()
	}
	return a.String()
}

func numberText(v []byte) string {
	n := uint64(0)
	for _, b := range v {
		n = n<<8 | uint64(b)
	}
	return strconv.FormatUint(n, 10)
}

// hostText returns a number in host byte order.
func hostText(v []byte) string {
	if len(v) != 4 {
		return hexText(v)
	}
	return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(v))
}

// swapped converts a number of 4 bytes between host and network byte order.
func swapped(v []byte) []byte {
	if len(v) != 4 {
		return v
	}
	return binary.BigEndian.AppendUint32(nil, binary.NativeEndian.Uint32(v))
}

// bitsText returns the text of a bitwise operation that masks a value and then flips bits.
// A bit that is cleared and then flipped is set.
func bitsText(mask, flip []byte, show func([]byte) string) string {
	n := len(mask)
	if n == 0 || len(flip) != n {
		return " ?" // another operation
	}
	and, xor, or := make([]byte, n), make([]byte, n), make([]byte, n)
	for i := range n {
		and[i], xor[i], or[i] = mask[i]|flip[i], mask[i]&flip[i], flip[i]&^mask[i]
	}
	text := ""
	if slices.ContainsFunc(and, func(b byte) bool { return b != 0xff }) {
		text += " & " + show(and)
	}
	if slices.ContainsFunc(xor, func(b byte) bool { return b != 0 }) {
		text += " ^ " + show(xor)
	}
	if slices.ContainsFunc(or, func(b byte) bool { return b != 0 }) {
		text += " | " + show(or)
	}
	return text
}

func nameText(v []byte) string {
	if len(v) == unix.IFNAMSIZ {
		return strconv.Quote(strings.TrimRight(string(v), "\x00"))
	}
	return strconv.Quote(string(v) + "*")
}

func hexText(v []byte) string { return fmt.Sprintf("0x%x", v) }
