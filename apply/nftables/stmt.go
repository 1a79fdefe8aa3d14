package nftables

import (
	"encoding/binary"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Keys of the kernel's meta and ct expressions.
const (
	metaMark    = 3
	metaIifname = 6
	metaL4Proto = 16
	ctState     = 0
	ctStatus    = 2
	ctSrcIP     = 19
	ctDstIP     = 20
	ctSrcIP6    = 21
	ctDstIP6    = 22
	ctProtoDst  = 12
	stateNew    = 8
	statusDNAT  = 32
)

const (
	interfaceName = 16 // bytes of a name that is compared as a whole
	opEqual       = 0
	opNotEqual    = 1
)

// program is the bytecode of a rule.
type program struct {
	b      builder
	family ir.Family
}

// encodeRule is a rule at the end of a chain.
func encodeRule(chain string, r *rules.Rule, f ir.Family) []byte {
	p := program{family: f}
	p.b.text(1, rules.Table)
	p.b.text(2, chain)
	list := p.b.open(4)
	for _, s := range r.Stmts {
		p.stmt(s)
	}
	p.b.close(list)
	return p.b
}

// expr appends an expression, whose attributes fill appends.
func (p *program) expr(name string, fill func(b *builder)) {
	item := p.b.open(1)
	p.b.text(1, name)
	data := p.b.open(2)
	fill(&p.b)
	p.b.close(data)
	p.b.close(item)
}

// register gives the number of the register that begins n words of four bytes
// after the first: the four of 16 bytes have names of their own.
func register(n int) uint32 {
	if n%4 == 0 {
		return uint32(1 + n/4)
	}
	return uint32(8 + n)
}

func words(bytes int) int { return align(bytes) / 4 }

func (p *program) stmt(s rules.Stmt) {
	switch s := s.(type) {
	case rules.MatchNet:
		p.matchNet(s)
	case rules.MatchInterface:
		p.meta(metaIifname, 0)
		name := []byte(s.Name)
		if !s.Prefix {
			name = append(name, make([]byte, max(0, interfaceName-len(name)))...)
		}
		p.compare(s.Not, name)
	case rules.MatchLocal:
		p.expr("fib", func(b *builder) {
			b.u32(1, register(0))
			b.u32(2, 3)                                                            // the type of
			b.u32(3, map[bool]uint32{true: 1, false: 2}[s.Field == rules.SrcAddr]) // source or destination
		})
		p.compare(false, binary.NativeEndian.AppendUint32(nil, 2)) // local
	case rules.MatchProto:
		p.meta(metaL4Proto, 0)
		p.compare(false, []byte{byte(s.Protocol)})
	case rules.MatchNew:
		p.ct(ctState, 0, false)
		p.bits(stateNew, 0)
		p.compare(true, make([]byte, 4))
	case rules.MatchDNAT:
		p.ct(ctStatus, 0, false)
		p.bits(statusDNAT, 0)
		p.compare(true, make([]byte, 4))
	case rules.MatchMark:
		p.meta(metaMark, 0)
		p.bits(s.Mask, 0)
		p.compare(true, make([]byte, 4))
	case rules.SetMark:
		p.meta(metaMark, 0)
		p.bits(^s.Mask, s.Mask)
		p.setMark()
	case rules.ClearMark:
		p.meta(metaMark, 0)
		p.bits(^s.Mask, 0)
		p.setMark()
	case rules.MatchSet:
		p.key(s.Key)
		p.lookup(s.Set, nil, s.Not)
	case rules.LookupVerdict:
		p.key(s.Key)
		p.lookup(s.Map, &[]uint32{0}[0], false)
	case rules.LookupDNAT:
		p.dnat(s)
	case rules.Update:
		n := p.load(s.Key, 0)
		p.load(s.Data, (n+3)&^3) // nft gives the data a register of 16 bytes
		p.expr("dynset", func(b *builder) {
			b.text(1, s.Map)
			b.u32(3, 1) // update
			b.u32(4, register(0))
			b.u32(5, register((n+3)&^3))
		})
	case rules.Masquerade:
		p.expr("masq", func(b *builder) { b.u32(1, 1<<4) }) // fully random
	case rules.Verdict:
		p.verdict(s)
	}
}

// matchNet compares the bytes of the address that the prefix fixes; a prefix
// that ends within a byte needs a mask.
func (p *program) matchNet(s rules.MatchNet) {
	addr, bits := s.Prefix.Addr().AsSlice(), s.Prefix.Bits()
	offset, n := addrOffset(s.Field, p.family)
	switch {
	case bits%8 == 0 && bits > 0:
		n = bits / 8
		p.payload(1, offset, n, 0)
	default:
		p.payload(1, offset, n, 0)
		mask := make([]byte, n)
		for i := range bits {
			mask[i/8] |= 1 << (7 - i%8)
		}
		p.mask(mask, make([]byte, n))
	}
	p.compare(s.Not, addr[:n])
}

// addrOffset is where an address is in the network header.
func addrOffset(field rules.Field, f ir.Family) (offset, n int) {
	n = addrBytes(f)
	offset = 12
	if f == ir.IPv6 {
		offset = 8
	}
	if field == rules.DstAddr {
		offset += n
	}
	return offset, n
}

func (p *program) payload(base uint32, offset, n, reg int) {
	p.expr("payload", func(b *builder) {
		b.u32(1, register(reg))
		b.u32(2, base)
		b.u32(3, uint32(offset))
		b.u32(4, uint32(n))
	})
}

func (p *program) meta(key uint32, reg int) {
	p.expr("meta", func(b *builder) {
		b.u32(2, key)
		b.u32(1, register(reg))
	})
}

func (p *program) setMark() {
	p.expr("meta", func(b *builder) {
		b.u32(2, metaMark)
		b.u32(3, register(0))
	})
}

func (p *program) ct(key uint32, reg int, original bool) {
	p.expr("ct", func(b *builder) {
		b.u32(1, register(reg))
		b.u32(2, key)
		if original {
			b.bytes(3, []byte{0})
		}
	})
}

// bits keeps the bits in and, then inverts those in xor.
func (p *program) bits(and, xor uint32) {
	p.mask(binary.NativeEndian.AppendUint32(nil, and), binary.NativeEndian.AppendUint32(nil, xor))
}

func (p *program) mask(and, xor []byte) {
	p.expr("bitwise", func(b *builder) {
		b.u32(1, register(0))
		b.u32(2, register(0))
		b.u32(3, uint32(len(and)))
		b.u32(6, 0)
		appendValue(b, 4, and)
		appendValue(b, 5, xor)
	})
}

func appendValue(b *builder, t uint16, v []byte) {
	value := b.open(t)
	b.bytes(1, v)
	b.close(value)
}

func (p *program) compare(not bool, v []byte) {
	op := uint32(opEqual)
	if not {
		op = opNotEqual
	}
	p.expr("cmp", func(b *builder) {
		b.u32(1, register(0))
		b.u32(2, op)
		appendValue(b, 3, v)
	})
}

// key loads a concatenation into registers from the first on, and gives its words.
func (p *program) key(terms []rules.Term) (n int) {
	for _, t := range terms {
		n += p.load(t, n)
	}
	return n
}

// load loads one term into the register, and gives its words.
func (p *program) load(t rules.Term, reg int) int {
	addr := words(addrBytes(p.family))
	switch t.Field {
	case rules.SrcAddr, rules.DstAddr:
		offset, n := addrOffset(t.Field, p.family)
		p.payload(1, offset, n, reg)
		return addr
	case rules.DstPort:
		p.payload(2, 2, 2, reg)
	case rules.L4Proto:
		p.meta(metaL4Proto, reg)
	case rules.OrigSrcAddr:
		p.ct(map[ir.Family]uint32{ir.IPv4: ctSrcIP, ir.IPv6: ctSrcIP6}[p.family], reg, true)
		return addr
	case rules.OrigDstAddr:
		p.ct(map[ir.Family]uint32{ir.IPv4: ctDstIP, ir.IPv6: ctDstIP6}[p.family], reg, true)
		return addr
	case rules.OrigDstPort:
		p.ct(ctProtoDst, reg, true)
	case rules.Random:
		p.expr("numgen", func(b *builder) {
			b.u32(1, register(reg))
			b.u32(2, t.Mod)
			b.u32(3, 1) // random
			b.u32(4, 0)
		})
	}
	return 1
}

// lookup looks the registers up in a set, and puts a map's data into dreg.
func (p *program) lookup(set string, dreg *uint32, not bool) {
	p.expr("lookup", func(b *builder) {
		b.text(1, set)
		b.u32(2, register(0))
		if dreg != nil {
			b.u32(3, *dreg)
		}
		if not {
			b.u32(5, 1)
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
		p.expr("immediate", func(b *builder) {
			b.u32(1, port)
			appendValue(b, 2, []byte{byte(s.Port >> 8), byte(s.Port)})
		})
	}
	p.expr("nat", func(b *builder) {
		b.u32(1, 1) // dnat
		b.u32(2, uint32(nfFamily(p.family)))
		b.u32(3, first)
		b.u32(4, first)
		b.u32(5, port)
		b.u32(6, port)
		b.u32(nftaNATFlags, natAddrs|natPorts) // which the kernel tells back, said or not
	})
}

func (p *program) verdict(v rules.Verdict) {
	if v.Kind == rules.Reject {
		p.expr("reject", func(b *builder) {
			b.u32(1, 0) // ICMP unreachable
			b.bytes(2, []byte{portUnreachable(p.family)})
		})
		return
	}
	p.expr("immediate", func(b *builder) {
		b.u32(1, 0)
		data := b.open(2)
		appendVerdict(b, v)
		b.close(data)
	})
}

// portUnreachable is the ICMP code of a family.
func portUnreachable(f ir.Family) byte {
	if f == ir.IPv6 {
		return 4
	}
	return 3
}
