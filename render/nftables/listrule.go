package nftables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

func (p *listParser) chain(c *Chain) error {
	if !p.take("{") {
		return p.errorf("must be followed by {, got %q", p.peek())
	}
	for {
		p.skipLines()
		switch {
		case p.end():
			return p.errorf("ends in the middle of a chain")
		case p.take("}"):
			return nil
		case p.take("comment"):
			p.next()
		case p.take("type"):
			p.base(c)
		case p.take("policy"):
			if c.Base == nil {
				return p.errorf("has a policy and no hook")
			}
			switch policy := p.next(); policy {
			case "accept":
			case "drop":
				c.Base.Drop = true
			default:
				c.Base.Unsupported = "policy " + policy
			}
		default:
			c.Rules = append(c.Rules, p.rule())
		}
	}
}

// base reads "filter hook input priority filter - 10; policy accept;".
func (p *listParser) base(c *Chain) {
	c.Base = &Base{}
	kind := p.next()
	c.Base.NAT = kind == "nat"
	if kind != "nat" && kind != "filter" {
		c.Base.Unsupported = "type " + kind
	}
	if !p.take("hook") {
		c.Base.Unsupported = "type " + kind + " without a hook"
	}
	hook := p.next()
	known := false
	for h := Prerouting; h <= Postrouting; h++ {
		if h.String() == hook {
			c.Base.Hook, known = h, true
		}
	}
	if !known {
		c.Base.Unsupported = "hook " + hook
	}
	if !p.take("priority") {
		c.Base.Unsupported = p.rest() // a device
		return
	}
	names := map[string]int{"raw": -300, "mangle": -150, "dstnat": PriorityDNAT, "filter": PriorityFilter, "security": 50, "srcnat": PrioritySNAT}
	first := p.next()
	n, err := strconv.Atoi(first)
	named, known := names[first]
	if err != nil && !known {
		c.Base.Unsupported = "priority " + first
	}
	c.Base.Priority = n + named
	if sign := p.peek(); sign == "+" || sign == "-" {
		p.next()
		n, err := strconv.Atoi(sign + p.next())
		if err != nil {
			c.Base.Unsupported = "priority " + first
		}
		c.Base.Priority += n
	}
	if c.Base.NAT && (c.Base.Hook == Forward || c.Base.Priority <= priorityConntrack) {
		c.Base.Unsupported = "type nat where the kernel has none"
	}
	if next := p.peek(); next != ";" && next != "\n" {
		c.Base.Unsupported = "priority " + p.rest()
	}
}

// rule reads a line. From the first statement that is not known on, it is one
// Unsupported; so it is from a verdict on that something follows.
func (p *listParser) rule() (r Rule) {
	if p.whole && p.ofOther() {
		p.rest()
		return Rule{Stmts: []Stmt{MatchProto{}}}
	}
	for !p.end() && p.peek() != "\n" {
		from := p.at
		p.portOf = 0
		stmts, ok := p.stmt()
		if ok && len(stmts) > 0 && ends(stmts[len(stmts)-1]) {
			if p.take("comment") {
				p.next()
			}
			ok = p.end() || p.peek() == "\n"
		} else if ok && len(stmts) > 0 && !p.end() {
			_, asks := stmts[len(stmts)-1].(LookupVerdict)
			ok = !asks || slices.Contains(afterVerdicts[:], p.peek())
		}
		if !ok || p.goesOn() {
			p.at = from
			r.Stmts = append(r.Stmts, Unsupported{p.rest()})
			break
		}
		if p.portOf != 0 {
			r.Stmts = append(r.Stmts, MatchProto{p.portOf})
		}
		r.Stmts = append(r.Stmts, stmts...)
	}
	return r
}

// afterVerdicts is what may follow a verdict map in a rule.
var afterVerdicts = [...]string{"\n", "goto", "jump", "accept", "drop", "return", "reject", "comment"}

// ends reports whether nothing follows a statement in a rule.
func ends(s Stmt) bool {
	switch s.(type) {
	case Verdict, Masquerade, LookupDNAT:
		return true
	}
	return false
}

// goesOn reports whether what was read is a part of more: "new" of "new,related".
func (p *listParser) goesOn() bool {
	if p.end() || p.toks[p.at].quoted {
		return false
	}
	c := p.toks[p.at].text
	return c != "" && strings.Contains(",/|&^.-<>=!:", c[:1])
}

// stmt reads one statement; what has no effect on packets gives none. Of tables of other programs
// it reads more.
func (p *listParser) stmt() ([]Stmt, bool) {
	from := p.at
	stmts, ok := p.known()
	if !p.whole || ok && !p.goesOn() && !p.odd(stmts) {
		return stmts, ok
	}
	for _, more := range [...]func() ([]Stmt, bool){p.does, p.compares} {
		at := p.at
		p.at, p.portOf = from, 0
		if others, fits := more(); fits && !p.goesOn() {
			return others, true
		}
		p.at = at
	}
	return stmts, ok
}

// odd reports whether a statement looks into a set that is not understood.
func (p *listParser) odd(stmts []Stmt) bool {
	for _, s := range stmts {
		name, _ := keyOf(s)
		i := slices.IndexFunc(p.r.Sets, func(s Set) bool { return s.Name == name })
		if name != "" && i >= 0 && (p.r.Sets[i].Unsupported != "" || p.r.Sets[i].Strays || oddShape(p.r.Sets[i].Key, p.r.Sets[i].Interval) != "") {
			return true
		}
	}
	return false
}

// known reads one statement of the kinds that proxies write.
func (p *listParser) known() ([]Stmt, bool) {
	one := func(s Stmt) ([]Stmt, bool) { return []Stmt{s}, true }
	switch {
	case p.take("comment"):
		p.next()
		return nil, true
	case p.take("counter"):
		for p.take("packets") || p.take("bytes") {
			p.next()
		}
		return one(Counter{})
	case p.take("ct", "state", "new"), p.take("ct", "state", "0x8"):
		return one(MatchNew{})
	case p.take("ct", "state", "invalid"): // kube-proxy before 1.31 drops such; a first packet is none
		return one(MatchProto{})
	case p.take("ct", "status", "dnat"), p.take("ct", "status", "0x20"):
		return one(MatchDNAT{})
	case p.take("fib", "saddr", "type", "local"), p.take("fib", "saddr", "type", "2"):
		return one(MatchLocal{SrcAddr})
	case p.take("fib", "daddr", "type", "local"), p.take("fib", "daddr", "type", "2"):
		return one(MatchLocal{DstAddr})
	case p.take("iifname"):
		not := p.take("!=")
		if p.end() || strings.ContainsAny(p.peek(), "{@\\") || p.peek() == "\n" || p.isMap() {
			return nil, false
		}
		stem, prefix := strings.CutSuffix(p.next(), "*")
		return one(MatchInterface{stem, prefix, not})
	case p.take("meta", "mark"):
		return p.mark()
	case p.take("masquerade"):
		for p.take("fully-random") || p.take("random") || p.take("persistent") {
		}
		return one(Masquerade{})
	case p.take("reject"):
		if p.take("with") {
			if !p.take("icmp") && !p.take("icmpv6") && !p.take("icmpx") {
				return nil, false
			}
			p.take("type")
			if !p.take("port-unreachable") {
				return nil, false
			}
		}
		return one(Verdict{Kind: Reject})
	case p.take("drop"):
		return one(Verdict{Kind: Drop})
	case p.take("accept"):
		return one(Verdict{Kind: Accept})
	case p.take("return"):
		return one(Verdict{Kind: Return})
	case p.take("jump"):
		return one(Verdict{Jump, p.next()})
	case p.take("goto"):
		return one(Verdict{Goto, p.next()})
	case p.take("dnat"):
		return p.dnat()
	case p.take("update"):
		return p.update()
	}
	if p.whole {
		if stmts, ok := p.others(); ok {
			return stmts, true
		}
	}
	if from := p.at; p.take("meta", "l4proto") {
		if proto, ok := protocolOf(p.peek()); ok {
			p.next()
			return one(MatchProto{proto})
		}
		p.at = from
	}
	return p.match()
}

// mark reads what follows "meta mark".
func (p *listParser) mark() ([]Stmt, bool) {
	number := func() (uint32, bool) {
		n, err := strconv.ParseUint(p.next(), 0, 32)
		return uint32(n), err == nil
	}
	and := func() bool { return p.take("&") || p.take("and") }
	if p.take("set", "meta", "mark") || p.take("set", "mark") {
		switch {
		case p.take("|"), p.take("or"):
			n, ok := number()
			return []Stmt{SetMark{n}}, ok
		case and():
			n, ok := number()
			return []Stmt{ClearMark{^n}}, ok
		case p.take("^"), p.take("xor"):
			n, ok := number()
			return []Stmt{FlipMark{n}}, ok
		}
		return nil, false
	}
	if !and() {
		return nil, false
	}
	n, ok := number()
	clear := p.take("==")
	if !ok || !clear && !p.take("!=") {
		return nil, false
	}
	zero, ok := number()
	return []Stmt{MatchMark{n, clear}}, ok && zero == 0
}

// match reads "TERMS [!=] @SET | { … } | VALUE", or "TERMS vmap …".
func (p *listParser) match() ([]Stmt, bool) {
	key := p.terms()
	if key == nil {
		return nil, false
	}
	types := make([]Type, len(key))
	for i, t := range key {
		types[i] = typeOf(t.Field)
	}
	if p.take("vmap") {
		name, ok := p.mapOf(Set{Key: types, Data: VerdictData})
		return []Stmt{LookupVerdict{key, name}}, ok
	}
	not := p.take("!=")
	switch next := p.peek(); {
	case strings.HasPrefix(next, "@"):
		return []Stmt{MatchSet{key, p.next()[1:], not}}, true
	case next == "{":
		if types[len(types)-1] == TypeAddr {
			types[len(types)-1] = TypeNet
		}
		name, ok := p.mapOf(Set{Key: types, Interval: types[len(types)-1] == TypeNet})
		return []Stmt{MatchSet{key, name, not}}, ok
	case len(key) == 1 && types[0] == TypeAddr:
		if of := prefixesOf(next); len(of) == 1 && p.r.Family.Has(of[0].Addr()) {
			p.next()
			return []Stmt{MatchNet{key[0].Field, of[0], not}}, true
		}
	case len(key) == 1 && types[0] == TypePort:
		if n, ok := portOf(next); ok {
			p.next()
			s := Set{Key: types, Elements: []Element{{Key: Key{Port: n}}}}
			return []Stmt{MatchSet{key, p.add(s), not}}, true
		}
	}
	return nil, false
}

// mapOf reads "@NAME", or elements in braces, which become a set of their own.
func (p *listParser) mapOf(s Set) (name string, ok bool) {
	if name, ok = strings.CutPrefix(p.peek(), "@"); ok {
		p.next()
		return name, true
	}
	if p.elements(&s) != nil {
		return "", false
	}
	return p.add(s), true
}

// dnat reads what follows "dnat".
func (p *listParser) dnat() ([]Stmt, bool) {
	p.take(p.r.Family.NFT())
	addrPort := p.take("addr", ".", "port")
	if !p.take("to") {
		return nil, false
	}
	if key := p.terms(); key != nil {
		if !p.take("map") {
			return nil, false
		}
		types := make([]Type, len(key))
		for i, t := range key {
			types[i] = typeOf(t.Field)
		}
		l := LookupDNAT{Key: key}
		var ok bool
		if l.Map, ok = p.mapOf(Set{Key: types, Data: AddrPortData}); !ok {
			return nil, false
		}
		port, with := "", p.take(":")
		if with {
			port = p.next()
		} else {
			l.Map, port, with = strings.Cut(l.Map, ":") // nft 1.0.6 leaves no space
		}
		if with {
			l.Port, ok = portOf(port)
			ok = ok && l.Port != 0
		}
		return []Stmt{l}, ok
	}
	if p.end() || addrPort {
		return nil, false
	}
	to, ok := destinationOf(p.toks[p.at : p.at+1])
	if !ok || !p.r.Family.Has(to.Addr()) {
		return nil, false
	}
	p.next()
	return []Stmt{LookupDNAT{Map: p.constant(to)}}, true
}

// constant makes a map that has one answer.
func (p *listParser) constant(to netip.AddrPort) string {
	return p.add(Set{Data: AddrPortData, Elements: []Element{{To: to}}})
}

// update reads "@SET { KEY [: DATA] }". No rule of ours or of kube-proxy's says a time.
func (p *listParser) update() ([]Stmt, bool) {
	name, ok := strings.CutPrefix(p.next(), "@")
	if !ok || !p.take("{") {
		return nil, false
	}
	key := p.terms()
	if len(key) != 1 {
		return nil, false
	}
	u := Update{Map: name, Key: key[0]}
	if p.take(":") {
		data := p.terms()
		if len(data) != 1 {
			return nil, false
		}
		u.Data = data[0]
	}
	return []Stmt{u}, p.take("}")
}

// terms reads "ip daddr . meta l4proto . th dport"; nil: there are none.
func (p *listParser) terms() []Term {
	var terms []Term
	for {
		t, ok := p.term()
		if !ok {
			return nil
		}
		terms = append(terms, t)
		if !p.take(".") {
			return terms
		}
	}
}

func (p *listParser) term() (Term, bool) {
	switch ip := p.r.Family.NFT(); {
	case p.take(ip, "saddr"):
		return Term{Field: SrcAddr}, true
	case p.take(ip, "daddr"):
		return Term{Field: DstAddr}, true
	case p.take("ct", "original", ip, "saddr"):
		return Term{Field: OrigSrcAddr}, true
	case p.take("ct", "original", ip, "daddr"):
		return Term{Field: OrigDstAddr}, true
	case p.dport():
		return Term{Field: DstPort}, true
	case p.take("meta", "l4proto"), ip == "ip" && p.take("ip", "protocol"):
		return Term{Field: L4Proto}, true
	case p.take("th", "dport"):
		return Term{Field: DstPort}, true
	case p.take("ct", "original", "proto-dst"):
		return Term{Field: OrigDstPort}, true
	case p.take("numgen", "random", "mod"):
		n, err := strconv.ParseUint(p.next(), 10, 32)
		return Term{Field: Random, Mod: uint32(n)}, err == nil && n > 0
	case p.take("jhash", ip, "saddr", ".", "th", "sport", "mod"):
		n, err := strconv.ParseUint(p.next(), 10, 32)
		seeded := p.take("seed")
		seed, seedErr := strconv.ParseUint(p.next(), 0, 32)
		return Term{Field: ClientHash, Mod: uint32(n)}, err == nil && n > 0 && seeded && seedErr == nil && seed == ir.MaglevSeed && !p.take("offset")
	}
	return Term{}, false
}

// dport reads "tcp dport", which asks for the protocol, too.
func (p *listParser) dport() bool {
	for _, protocol := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		if p.take(strings.ToLower(protocol.String()), "dport") {
			p.portOf = protocol
			return true
		}
	}
	return false
}
