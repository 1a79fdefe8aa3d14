package codec

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// program encodes the statements of a rule.
type program struct {
	bytecode
	family ir.Family
}

// bytecode appends the instructions of a rule: the list of its expressions.
type bytecode struct{ b *Builder }

// EncodeRule encodes a rule of a chain.
func EncodeRule(chain string, r *rules.Rule, f ir.Family) []byte {
	return Encode(func(b *Builder) {
		b.Text(unix.NFTA_RULE_TABLE, rules.Table)
		b.Text(unix.NFTA_RULE_CHAIN, chain)
		b.Nest(unix.NFTA_RULE_EXPRESSIONS, func(b *Builder) { appendExpressions(b, r.Stmts, f) })
	})
}

// appendExpressions appends the instructions for statements.
func appendExpressions(b *Builder, stmts []rules.Stmt, f ir.Family) {
	p := program{bytecode{b}, f}
	for _, s := range stmts {
		p.stmt(s)
	}
}

// expr appends an expression, with the attributes that fill appends.
func (c *bytecode) expr(name string, fill func(b *Builder)) {
	c.b.Nest(unix.NFTA_LIST_ELEM, func(b *Builder) {
		b.Text(unix.NFTA_EXPR_NAME, name)
		b.Nest(unix.NFTA_EXPR_DATA, fill)
	})
}

// Offsets and size of the ports in every transport header.
const srcPortOffset, dstPortOffset, portBytes = 0, 2, 2

// register returns the number of the register at an offset of n words of four bytes. The four
// registers of 16 bytes have numbers of their own.
func register(n int) uint32 {
	if n%4 == 0 {
		return uint32(unix.NFT_REG_1 + n/4)
	}
	return uint32(unix.NFT_REG32_00 + n)
}

func words(bytes int) int { return Align(bytes) / 4 }

func (p *program) stmt(s rules.Stmt) {
	switch s := s.(type) {
	case rules.Counter:
		p.expr("counter", func(*Builder) {})
	case rules.MatchNet:
		p.matchNet(s)
	case rules.MatchInterface:
		p.matchInterface(s)
	case rules.MatchLocal:
		p.matchLocal(s)
	case rules.MatchProto:
		p.meta(unix.NFT_META_L4PROTO, 0)
		p.compare(false, []byte{byte(s.Protocol)})
	case rules.MatchNew:
		p.ct(unix.NFT_CT_STATE, 0, false)
		p.bits(ctStateNew, 0)
		p.compare(true, make([]byte, 4))
	case rules.MatchDNAT:
		p.ct(unix.NFT_CT_STATUS, 0, false)
		p.bits(ipsDstNAT, 0)
		p.compare(true, make([]byte, 4))
	case rules.MatchMark:
		p.meta(unix.NFT_META_MARK, 0)
		p.bits(s.Mask, 0)
		p.compare(!s.Clear, make([]byte, 4))
	case rules.SetMark:
		p.meta(unix.NFT_META_MARK, 0)
		p.bits(^s.Mask, s.Mask)
		p.setMark()
	case rules.ClearMark:
		p.meta(unix.NFT_META_MARK, 0)
		p.bits(^s.Mask, 0)
		p.setMark()
	case rules.MatchSet:
		p.key(s.Key)
		p.lookup(s.Set, nil, s.Not)
	case rules.LookupVerdict:
		p.key(s.Key)
		verdict := uint32(unix.NFT_REG_VERDICT)
		p.lookup(s.Map, &verdict, false)
	case rules.LookupDNAT:
		p.dnat(s)
	case rules.Update:
		p.update(s)
	case rules.Masquerade:
		p.expr("masq", func(b *Builder) {
			b.Uint32(unix.NFTA_MASQ_FLAGS, unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)
		})
	case rules.Verdict:
		p.verdict(s)
	}
}

func (p *program) matchInterface(s rules.MatchInterface) {
	p.meta(unix.NFT_META_IIFNAME, 0)
	name := []byte(s.Name)
	if !s.Prefix {
		name = append(name, make([]byte, max(0, unix.IFNAMSIZ-len(name)))...)
	}
	p.compare(s.Not, name)
}

func (p *program) matchLocal(s rules.MatchLocal) {
	of := uint32(unix.NFTA_FIB_F_DADDR)
	if s.Field == rules.SrcAddr {
		of = unix.NFTA_FIB_F_SADDR
	}
	p.expr("fib", func(b *Builder) {
		b.Uint32(unix.NFTA_FIB_DREG, register(0))
		b.Uint32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		b.Uint32(unix.NFTA_FIB_FLAGS, of)
	})
	p.compare(s.Not, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
}

func (p *program) update(s rules.Update) {
	n := p.load(s.Key, 0)
	data := (n + 3) &^ 3 // nft loads the data into a register of 16 bytes
	p.load(s.Data, data)
	p.expr("dynset", func(b *Builder) {
		b.Text(unix.NFTA_DYNSET_SET_NAME, s.Map)
		b.Uint32(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		b.Uint32(unix.NFTA_DYNSET_SREG_KEY, register(0))
		b.Uint32(unix.NFTA_DYNSET_SREG_DATA, register(data))
	})
}

// matchNet compares the bytes of the address that the prefix determines. A prefix that ends within
// a byte needs a mask.
func (p *program) matchNet(s rules.MatchNet) {
	addr, bits := s.Prefix.Addr().AsSlice(), s.Prefix.Bits()
	offset, n := addrOffset(s.Field, p.family)
	bytes := bits%8 == 0 && bits > 0
	if bytes {
		n = bits / 8
	}
	p.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, n, 0)
	if !bytes {
		mask := make([]byte, n)
		for i := range bits {
			mask[i/8] |= 1 << (7 - i%8)
		}
		p.mask(mask, make([]byte, n))
	}
	p.compare(s.Not, addr[:n])
}

// addrOffset returns the offset and size of an address in the network header.
func addrOffset(field rules.Field, f ir.Family) (offset, n int) {
	n = addrBytes(f)
	offset = ir.Pick(f, 12, 8)
	if field == rules.DstAddr {
		offset += n
	}
	return offset, n
}

func (c *bytecode) payload(base uint32, offset, n, reg int) {
	c.expr("payload", func(b *Builder) {
		b.Uint32(unix.NFTA_PAYLOAD_DREG, register(reg))
		b.Uint32(unix.NFTA_PAYLOAD_BASE, base)
		b.Uint32(unix.NFTA_PAYLOAD_OFFSET, uint32(offset))
		b.Uint32(unix.NFTA_PAYLOAD_LEN, uint32(n))
	})
}

func (c *bytecode) meta(key uint32, reg int) {
	c.expr("meta", func(b *Builder) {
		b.Uint32(unix.NFTA_META_KEY, key)
		b.Uint32(unix.NFTA_META_DREG, register(reg))
	})
}

func (c *bytecode) setMark() {
	c.expr("meta", func(b *Builder) {
		b.Uint32(unix.NFTA_META_KEY, unix.NFT_META_MARK)
		b.Uint32(unix.NFTA_META_SREG, register(0))
	})
}

func (c *bytecode) ct(key uint32, reg int, original bool) {
	c.expr("ct", func(b *Builder) {
		b.Uint32(unix.NFTA_CT_DREG, register(reg))
		b.Uint32(unix.NFTA_CT_KEY, key)
		if original {
			b.Bytes(unix.NFTA_CT_DIRECTION, []byte{ipCTDirOrig})
		}
	})
}

// bits keeps the bits in and, then inverts those in xor.
func (c *bytecode) bits(and, xor uint32) {
	c.mask(binary.NativeEndian.AppendUint32(nil, and), binary.NativeEndian.AppendUint32(nil, xor))
}

func (c *bytecode) mask(and, xor []byte) {
	c.expr("bitwise", func(b *Builder) {
		b.Uint32(unix.NFTA_BITWISE_SREG, register(0))
		b.Uint32(unix.NFTA_BITWISE_DREG, register(0))
		b.Uint32(unix.NFTA_BITWISE_LEN, uint32(len(and)))
		b.Uint32(nftaBitwiseOp, nftBitwiseMaskXor)
		b.value(unix.NFTA_BITWISE_MASK, and)
		b.value(unix.NFTA_BITWISE_XOR, xor)
	})
}

func (c *bytecode) compare(not bool, v []byte) {
	op := uint32(unix.NFT_CMP_EQ)
	if not {
		op = unix.NFT_CMP_NEQ
	}
	c.expr("cmp", func(b *Builder) {
		b.Uint32(unix.NFTA_CMP_SREG, register(0))
		b.Uint32(unix.NFTA_CMP_OP, op)
		b.value(unix.NFTA_CMP_DATA, v)
	})
}

// key loads a concatenation into the registers, and returns its size in words.
func (p *program) key(terms []rules.Term) (n int) {
	for _, t := range terms {
		n += p.load(t, n)
	}
	return n
}

// load loads a term into a register, and returns its size in words.
func (p *program) load(t rules.Term, reg int) int {
	addr := words(addrBytes(p.family))
	switch t.Field {
	case rules.SrcAddr, rules.DstAddr:
		offset, n := addrOffset(t.Field, p.family)
		p.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, n, reg)
		return addr
	case rules.DstPort:
		p.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, dstPortOffset, portBytes, reg)
	case rules.L4Proto:
		p.meta(unix.NFT_META_L4PROTO, reg)
	case rules.OrigSrcAddr:
		p.ct(map[ir.Family]uint32{ir.IPv4: unix.NFT_CT_SRC_IP, ir.IPv6: unix.NFT_CT_SRC_IP6}[p.family], reg, true)
		return addr
	case rules.OrigDstAddr:
		p.ct(map[ir.Family]uint32{ir.IPv4: unix.NFT_CT_DST_IP, ir.IPv6: unix.NFT_CT_DST_IP6}[p.family], reg, true)
		return addr
	case rules.OrigDstPort:
		p.ct(unix.NFT_CT_PROTO_DST, reg, true)
	case rules.Random:
		p.expr("numgen", func(b *Builder) {
			b.Uint32(unix.NFTA_NG_DREG, register(reg))
			b.Uint32(unix.NFTA_NG_MODULUS, t.Mod)
			b.Uint32(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
			b.Uint32(unix.NFTA_NG_OFFSET, 0)
		})
	case rules.ClientHash:
		// The hash's input is after the key and four registers that nft leaves free.
		from := reg + 1 + 4
		offset, n := addrOffset(rules.SrcAddr, p.family)
		p.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, n, from)
		p.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, srcPortOffset, portBytes, from+addr)
		p.expr("hash", func(b *Builder) {
			b.Uint32(unix.NFTA_HASH_SREG, register(from))
			b.Uint32(unix.NFTA_HASH_DREG, register(reg))
			b.Uint32(unix.NFTA_HASH_LEN, uint32(4*(addr+1)))
			b.Uint32(unix.NFTA_HASH_MODULUS, t.Mod)
			b.Uint32(unix.NFTA_HASH_SEED, ir.MaglevSeed)
			b.Uint32(unix.NFTA_HASH_TYPE, unix.NFT_HASH_JENKINS)
		})
	}
	return 1
}

// lookup looks up the registers in a set, and stores a map's data in dreg if that is not nil.
func (c *bytecode) lookup(set string, dreg *uint32, not bool) {
	c.expr("lookup", func(b *Builder) {
		b.Text(unix.NFTA_LOOKUP_SET, set)
		b.Uint32(unix.NFTA_LOOKUP_SREG, register(0))
		if dreg != nil {
			b.Uint32(unix.NFTA_LOOKUP_DREG, *dreg)
		}
		if not {
			b.Uint32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

func (p *program) dnat(s rules.LookupDNAT) {
	p.key(s.Key)
	first := register(0)
	p.lookup(s.Map, &first, false)
	port := register(words(addrBytes(p.family)))
	if s.Port != 0 {
		port = register(4)
		p.expr("immediate", func(b *Builder) {
			b.Uint32(unix.NFTA_IMMEDIATE_DREG, port)
			b.value(unix.NFTA_IMMEDIATE_DATA, binary.BigEndian.AppendUint16(nil, s.Port))
		})
	}
	p.expr("nat", func(b *Builder) {
		b.Uint32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		b.Uint32(unix.NFTA_NAT_FAMILY, uint32(Family(p.family)))
		b.Uint32(unix.NFTA_NAT_REG_ADDR_MIN, first)
		b.Uint32(unix.NFTA_NAT_REG_ADDR_MAX, first)
		b.Uint32(unix.NFTA_NAT_REG_PROTO_MIN, port)
		b.Uint32(unix.NFTA_NAT_REG_PROTO_MAX, port)
		// The kernel returns these flags whether or not they were sent.
		b.Uint32(unix.NFTA_NAT_FLAGS, unix.NF_NAT_RANGE_MAP_IPS|unix.NF_NAT_RANGE_PROTO_SPECIFIED)
	})
}

func (p *program) verdict(v rules.Verdict) {
	if v.Kind == rules.Reject {
		p.expr("reject", func(b *Builder) {
			b.Uint32(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMP_UNREACH)
			b.Bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{portUnreachable(p.family)})
		})
		return
	}
	p.expr("immediate", func(b *Builder) {
		b.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b.Nest(unix.NFTA_IMMEDIATE_DATA, func(b *Builder) { appendVerdict(b, v) })
	})
}

// portUnreachable returns the ICMP code of a family.
func portUnreachable(f ir.Family) byte {
	return ir.Pick[byte](f, icmpPortUnreachable, icmpv6PortUnreachable)
}
