package parse

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/eval"
)

// operand is an expression of a packet that rules of other programs compare.
type operand struct {
	// get returns the value. why is not empty if the value is unknown. has is
	// false if the expression does not apply to the packet.
	get   func(p *eval.Passing) (v scalar, has bool, why string)
	parse func(text string) (lo, hi scalar, ok bool)
}

// scalar is a value of an operand.
type scalar struct {
	addr   netip.Addr
	number uint64
	name   string // of an interface; in rules it may end with "*"
}

// within reports whether a value is in a range.
func (v scalar) within(lo, hi scalar) bool {
	switch {
	case lo.addr.IsValid():
		return lo.addr.BitLen() == v.addr.BitLen() && lo.addr.Compare(v.addr) <= 0 && v.addr.Compare(hi.addr) <= 0
	case lo.name != "":
		stem, prefix := strings.CutSuffix(lo.name, "*")
		return v.name != "" && sim.Interface{Name: stem, Prefix: prefix}.Matches(v.name)
	}
	return lo.number <= v.number && v.number <= hi.number
}

// entry is an element that operands are compared with.
type entry struct {
	lo, hi  []scalar
	verdict nftables.Verdict
}

// compares parses comparisons that p.match does not support: operands and a
// value, a set or a verdict map.
func (p *listParser) compares() ([]nftables.Stmt, bool) {
	from := p.at
	var ops []operand
	for {
		o, ok := p.operand()
		if !ok {
			return nil, false
		}
		ops = append(ops, o)
		if !p.take(".") {
			break
		}
	}
	isMap := p.take("vmap")
	not := !isMap && p.take("!=")
	if !not {
		p.take("==")
	}
	entries, ok := p.entries(ops, isMap)
	if !ok {
		return nil, false
	}
	return []nftables.Stmt{eval.Foreign{Text: p.since(from), Run: func(q *eval.Passing) nftables.Verdict {
		values, has := make([]scalar, len(ops)), true
		for i, o := range ops {
			v, applies, why := o.get(q)
			if why != "" {
				q.Doubt(why)
				return nftables.Verdict{}
			}
			values[i], has = v, has && applies
		}
		i := -1
		if has {
			i = slices.IndexFunc(entries, func(e entry) bool { return e.holds(values) })
		}
		switch {
		case !has, !isMap && (i >= 0) == not, isMap && i < 0:
			return nftables.Verdict{}
		case isMap:
			return entries[i].verdict
		}
		return q.Matched()
	}}}, true
}

func (e *entry) holds(values []scalar) bool {
	for i, v := range values {
		if !v.within(e.lo[i], e.hi[i]) {
			return false
		}
	}
	return true
}

// since returns the words that were read from a position on.
func (p *listParser) since(from int) string {
	var words []string
	for _, t := range p.toks[from:p.at] {
		switch {
		case t.quoted:
			words = append(words, strconv.Quote(t.text))
		case t.text != "\n":
			words = append(words, t.text)
		}
	}
	return strings.Join(words, " ")
}

// entries parses the right side of a comparison.
func (p *listParser) entries(ops []operand, isMap bool) (all []entry, ok bool) {
	ok = true
	add := func(l *listed) {
		e, fits := p.entry(ops, l, isMap)
		all, ok = append(all, e), ok && fits
	}
	if name, named := strings.CutPrefix(p.peek(), "@"); named {
		p.next()
		lists, known := p.lists[name]
		err := p.inLists(lists, func() error { return p.eachElement(add) })
		return all, ok && known && err == nil
	}
	if p.peek() == "{" {
		return all, p.eachElement(add) == nil && ok
	}
	if isMap || p.end() {
		return nil, false
	}
	var one listed
	for i := range ops {
		if i > 0 {
			if !p.take(".") {
				return nil, false
			}
			one.key = append(one.key, token{text: "."})
		}
		if p.end() {
			return nil, false
		}
		one.key = append(one.key, p.toks[p.at])
		p.next()
	}
	add(&one)
	return all, ok
}

func (p *listParser) entry(ops []operand, l *listed, isMap bool) (e entry, ok bool) {
	if len(l.key) != 2*len(ops)-1 || len(l.data) > 0 != isMap {
		return e, false
	}
	for i, o := range ops {
		lo, hi, ok := o.parse(l.key[2*i].text)
		if !ok {
			return e, false
		}
		e.lo, e.hi = append(e.lo, lo), append(e.hi, hi)
	}
	if isMap {
		e.verdict, ok = p.verdictOf(l.data)
		return e, ok
	}
	return e, true
}

func parseAddrs(text string) (lo, hi scalar, ok bool) {
	of := prefixesOf(text)
	if len(of) == 0 {
		return lo, hi, false
	}
	return scalar{addr: of[0].Addr()}, scalar{addr: ir.LastOf(of[len(of)-1])}, true
}

func parseNumbers(text string) (lo, hi scalar, ok bool) {
	a, b, ranged := strings.Cut(text, "-")
	if !ranged {
		b = a
	}
	first, err1 := strconv.ParseUint(a, 0, 32)
	last, err2 := strconv.ParseUint(b, 0, 32)
	return scalar{number: first}, scalar{number: last}, err1 == nil && err2 == nil
}

func parseNames(text string) (lo, hi scalar, ok bool) {
	return scalar{name: text}, scalar{name: text}, text != "" && !strings.ContainsAny(text, "\\")
}

func parseProtocols(text string) (lo, hi scalar, ok bool) {
	n, known := protocolOf(text)
	if !known && !slices.Contains(append(notTransport, "ipencap", "ipv6", "dccp", "udplite", "comp"), text) {
		return lo, hi, false
	}
	return scalar{number: uint64(n)}, scalar{number: uint64(n)}, true // 0: an unsupported protocol
}

const noSourcePort = "the source port of the packet is not known: give --from IP:PORT"

// operand parses one operand.
func (p *listParser) operand() (o operand, ok bool) {
	value := func(parse func(string) (scalar, scalar, bool), get func(q *eval.Passing) scalar) (operand, bool) {
		return operand{parse: parse, get: func(q *eval.Passing) (scalar, bool, string) { return get(q), true, "" }}, true
	}
	ip := p.r.Family.NFT()
	switch {
	case p.take(ip, "saddr"):
		return value(parseAddrs, func(q *eval.Passing) scalar { return scalar{addr: q.Src()} })
	case p.take(ip, "daddr"):
		return value(parseAddrs, func(q *eval.Passing) scalar { return scalar{addr: q.Dst()} })
	case p.take("meta", "l4proto"), ip == "ip" && p.take("ip", "protocol"), ip == "ip6" && p.take("ip6", "nexthdr"):
		return value(parseProtocols, func(q *eval.Passing) scalar { return scalar{number: uint64(q.First().Protocol)} })
	case p.take("iifname"), p.take("iif"):
		return operand{parse: parseNames, get: func(q *eval.Passing) (scalar, bool, string) {
			name, known := q.In()
			return interfaceValue(name, known)
		}}, true
	case p.take("oifname"), p.take("oif"):
		return operand{parse: parseNames, get: func(q *eval.Passing) (scalar, bool, string) {
			name, known := q.Out()
			return interfaceValue(name, known)
		}}, true
	case p.take("meta", "mark"):
		return p.masked(packetMark)
	case p.take("ct", "mark"):
		return p.masked(connectionMark)
	}
	return p.portOperand()
}

func packetMark(q *eval.Passing) uint32 {
	mark, _ := q.Mark()
	return mark
}

func connectionMark(q *eval.Passing) uint32 {
	_, mark := q.Mark()
	return mark
}

// interfaceValue returns the value of an interface. A packet without one has an
// empty name.
func interfaceValue(name string, known bool) (scalar, bool, string) {
	if !known {
		return scalar{}, false, "the interface of the packet is not known here"
	}
	return scalar{name: name}, true, ""
}

// masked parses a mask after a mark.
func (p *listParser) masked(get func(*eval.Passing) uint32) (operand, bool) {
	mask := uint64(math.MaxUint32)
	if p.take("&") || p.take("and") {
		var err error
		if mask, err = strconv.ParseUint(p.next(), 0, 32); err != nil {
			return operand{}, false
		}
	}
	return operand{parse: parseNumbers, get: func(q *eval.Passing) (scalar, bool, string) {
		return scalar{number: uint64(get(q)) & mask}, true, ""
	}}, true
}

// portOperand parses "tcp dport", "th sport" and similar operands.
func (p *listParser) portOperand() (operand, bool) {
	for _, protocol := range [...]ir.Protocol{0, ir.TCP, ir.UDP, ir.SCTP} {
		word := "th"
		if protocol != 0 {
			word = strings.ToLower(protocol.String())
		}
		of := func(q *eval.Passing) bool { return protocol == 0 || q.First().Protocol == protocol }
		switch {
		case p.take(word, "dport"):
			return operand{parse: parseNumbers, get: func(q *eval.Passing) (scalar, bool, string) {
				return scalar{number: uint64(q.Port())}, of(q), ""
			}}, true
		case p.take(word, "sport"):
			return operand{parse: parseNumbers, get: func(q *eval.Passing) (scalar, bool, string) {
				if of(q) && q.First().SrcPort == 0 {
					return scalar{}, false, noSourcePort
				}
				return scalar{number: uint64(q.First().SrcPort)}, of(q), ""
			}}, true
		}
	}
	return operand{}, false
}

// does parses statements that change a packet, or that depend on the node or on a
// random choice.
func (p *listParser) does() ([]nftables.Stmt, bool) {
	from := p.at
	one := func(run func(*eval.Passing) nftables.Verdict) ([]nftables.Stmt, bool) {
		return []nftables.Stmt{eval.Foreign{Text: p.since(from), Run: run}}, true
	}
	when := func(ask func(*eval.Passing) bool) ([]nftables.Stmt, bool) {
		return one(func(q *eval.Passing) nftables.Verdict {
			if ask(q) {
				return q.Matched()
			}
			return nftables.Verdict{}
		})
	}
	switch {
	case p.take("meta", "mark", "set"), p.take("ct", "mark", "set"):
		ofConnection := p.toks[from].text == "ct"
		change, ok := p.markValue()
		if !ok {
			return nil, false
		}
		return one(func(q *eval.Passing) nftables.Verdict {
			packet, connection := q.Mark()
			if n := change(q); ofConnection {
				connection = n
			} else {
				packet = n
			}
			q.SetMark(packet, connection)
			return nftables.Verdict{Kind: nftables.Continue}
		})
	case p.take("notrack"):
		return one(func(q *eval.Passing) nftables.Verdict { q.Untrack(); return nftables.Verdict{Kind: nftables.Continue} })
	case p.take("fib"):
		return p.fib(when)
	case p.take("numgen", "random", "mod"), p.take("meta", "random", "&", "2147483647", "<"):
		share, ok := p.share(p.toks[from].text == "numgen")
		if !ok {
			return nil, false
		}
		return when(func(q *eval.Passing) bool { return q.Choose(share) })
	case p.take("tcp", "flags"):
		return p.tcpFlags(when)
	case p.take("limit", "rate"), p.take("limit", "name"):
		// A limit of statements without an effect on the packet has none either.
		return nil, !slices.ContainsFunc(strings.Fields(p.rest()), func(word string) bool { return slices.Contains(effects, word) })
	case p.take("snat"):
		p.rest()
		return one(func(q *eval.Passing) nftables.Verdict { q.Masquerade(); return nftables.Verdict{Kind: nftables.Accept} })
	}
	return nil, false
}

// effects are the statements that a limit of them makes depend on other packets.
var effects = []string{"accept", "drop", "return", "reject", "jump", "goto", "set", "dnat", "snat", "masquerade", "queue", "redirect"}

// share parses "3", or "3 < 2" (numgen random mod), or a share of 1<<31 (meta random).
func (p *listParser) share(numgen bool) (share float64, ok bool) {
	n, err := strconv.ParseUint(p.next(), 10, 32)
	if !numgen {
		return float64(n) / (1 << 31), err == nil
	}
	share = 1 / float64(n)
	least := p.take("<")
	k, err2 := strconv.ParseUint(p.next(), 10, 32)
	if least {
		share *= float64(k)
	}
	return share, err == nil && err2 == nil && n > 0 && k < n
}

// markValue parses "meta mark & 0xfff0ffff | 0x10000", "mark and 0x…" or a
// number.
func (p *listParser) markValue() (value func(*eval.Passing) uint32, ok bool) {
	switch {
	case p.take("meta", "mark"), p.take("mark"):
		value = packetMark
	case p.take("ct", "mark"):
		value = connectionMark
	default:
		n, err := strconv.ParseUint(p.next(), 0, 32)
		return func(*eval.Passing) uint32 { return uint32(n) }, err == nil
	}
	for !p.end() {
		was, op := value, p.peek()
		if !slices.Contains([]string{"&", "and", "|", "or", "^", "xor"}, op) {
			break
		}
		p.next()
		n, err := strconv.ParseUint(p.next(), 0, 32)
		if err != nil {
			return nil, false
		}
		value = func(q *eval.Passing) uint32 {
			switch op {
			case "&", "and":
				return was(q) & uint32(n)
			case "|", "or":
				return was(q) | uint32(n)
			}
			return was(q) ^ uint32(n)
		}
	}
	return value, true
}

// fib parses "saddr . mark . iif oif 0" and "daddr type local".
func (p *listParser) fib(when func(func(*eval.Passing) bool) ([]nftables.Stmt, bool)) ([]nftables.Stmt, bool) {
	keys := []string{p.next()}
	for p.take(".") {
		keys = append(keys, p.next())
	}
	has := func(key string) bool { return slices.Contains(keys, key) }
	addr := func(q *eval.Passing) netip.Addr {
		if has("saddr") {
			return q.Src()
		}
		return q.Dst()
	}
	result, not := p.next(), p.take("!=")
	if !not {
		p.take("eq")
	}
	word := p.next()
	switch {
	case result == "type" && word == "local" && !has("mark"):
		return when(func(q *eval.Passing) bool {
			ok, known := isLocal(q, addr(q), has("iif"), has("oif"))
			if !known {
				q.Doubt("which interface has an address is not known")
			}
			return known && ok != not
		})
	case result == "type" && word == "multicast":
		return when(func(q *eval.Passing) bool { return addr(q).IsMulticast() != not })
	case result == "oif" && (word == "0" || word == "missing" || word == "exists") && has("saddr") && has("iif"):
		missing := (word != "exists") != not
		return when(func(q *eval.Passing) bool {
			ok, known := q.Returns(has("mark"), false)
			if !known {
				q.Doubt("the route to the source is not known")
			}
			return known && ok != missing
		})
	}
	return nil, false
}

// isLocal reports whether the node has an address; with iif and oif, whether that interface
// of the packet has it.
func isLocal(q *eval.Passing, addr netip.Addr, iif, oif bool) (ok, known bool) {
	on, known := "", true
	switch {
	case oif:
		on, known = q.Out()
	case iif:
		on, _ = q.In()
	default:
		return q.Own(addr), true
	}
	if !known {
		return false, false
	}
	return q.Carries(addr, on)
}

// tcpFlags parses "syn / syn,rst", "syn,ack" for any of them, "! syn", "== syn" and "!= syn".
func (p *listParser) tcpFlags(when func(func(*eval.Passing) bool) ([]nftables.Stmt, bool)) ([]nftables.Stmt, bool) {
	known := true
	bits := func() (bits int) {
		for more := true; more; more = p.take(",") {
			for name := range strings.FieldsFuncSeq(p.next(), func(r rune) bool { return r == ',' }) {
				i := slices.Index(sim.TCPFlags[:], name)
				known = known && i >= 0
				bits |= 1 << max(0, i)
			}
		}
		return bits
	}
	none, equal, not := p.take("!"), p.take("=="), p.take("!=")
	want := bits()
	mask := 0xff
	switch {
	case p.take("/"):
		mask = bits()
	case none:
		want, mask = 0, want
	case !equal && !not: // any
		want, mask, not = 0, want, true
	}
	if !known {
		return nil, false
	}
	return when(func(q *eval.Passing) bool {
		return q.First().Protocol == ir.TCP && not != (q.First().TCPFlags()&mask == want)
	})
}
