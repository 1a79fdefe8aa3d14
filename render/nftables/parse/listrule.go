package parse

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
)

func (p *listParser) chain(c *nftables.Chain) error {
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

// base parses "filter hook input priority filter - 10; policy accept;".
func (p *listParser) base(c *nftables.Chain) {
	c.Base = &nftables.Base{}
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
	for h := nftables.Prerouting; h <= nftables.Postrouting; h++ {
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
	names := map[string]int{"raw": -300, "mangle": -150, "dstnat": nftables.PriorityDNAT, "filter": nftables.PriorityFilter, "security": 50, "srcnat": nftables.PrioritySNAT}
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
	if c.Base.NAT && (c.Base.Hook == nftables.Forward || c.Base.Priority <= nftables.PriorityConntrack) {
		c.Base.Unsupported = "type nat where the kernel has none"
	}
	if next := p.peek(); next != ";" && next != "\n" {
		c.Base.Unsupported = "priority " + p.rest()
	}
}

// rule parses a line. The first unknown statement and everything after it become
// one Unsupported. So does a verdict that is followed by other statements.
func (p *listParser) rule() (r nftables.Rule) {
	if p.whole && p.ofOther() {
		p.rest()
		return nftables.Rule{Stmts: []nftables.Stmt{nftables.MatchProto{}}}
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
			_, asks := stmts[len(stmts)-1].(nftables.LookupVerdict)
			ok = !asks || slices.Contains(afterVerdicts[:], p.peek())
		}
		if !ok || p.goesOn() {
			p.at = from
			r.Stmts = append(r.Stmts, nftables.Unsupported{What: p.rest()})
			break
		}
		if p.portOf != 0 {
			r.Stmts = append(r.Stmts, nftables.MatchProto{Protocol: p.portOf})
		}
		r.Stmts = append(r.Stmts, stmts...)
	}
	return r
}

// afterVerdicts may follow a verdict map in a rule.
var afterVerdicts = [...]string{"\n", "goto", "jump", "accept", "drop", "return", "reject", "comment"}

// ends reports whether no statement may follow in a rule.
func ends(s nftables.Stmt) bool {
	switch s.(type) {
	case nftables.Verdict, nftables.Masquerade, nftables.LookupDNAT:
		return true
	}
	return false
}

// goesOn reports whether the parsed word is only a part of an expression: "new"
// of "new,related".
func (p *listParser) goesOn() bool {
	if p.end() || p.toks[p.at].quoted {
		return false
	}
	c := p.toks[p.at].text
	return c != "" && strings.Contains(",/|&^.-<>=!:", c[:1])
}

// stmt parses one statement; statements without an effect on packets yield none.
// It supports more statements in tables of other programs.
func (p *listParser) stmt() ([]nftables.Stmt, bool) {
	from := p.at
	stmts, ok := p.known()
	if !p.whole || ok && !p.goesOn() && !p.odd(stmts) {
		return stmts, ok
	}
	for _, more := range [...]func() ([]nftables.Stmt, bool){p.does, p.compares} {
		at := p.at
		p.at, p.portOf = from, 0
		if others, fits := more(); fits && !p.goesOn() {
			return others, true
		}
		p.at = at
	}
	return stmts, ok
}

// odd reports whether a statement looks up a set that is not supported.
func (p *listParser) odd(stmts []nftables.Stmt) bool {
	for _, s := range stmts {
		name, _ := nftables.KeyOf(s)
		i := slices.IndexFunc(p.r.Sets, func(s nftables.Set) bool { return s.Name == name })
		if name != "" && i >= 0 && (p.r.Sets[i].Unsupported != "" || p.r.Sets[i].Foreign || p.r.Sets[i].UnsupportedKey() != "") {
			return true
		}
	}
	return false
}

// known parses one statement of the kinds that proxies write.
func (p *listParser) known() ([]nftables.Stmt, bool) {
	one := func(s nftables.Stmt) ([]nftables.Stmt, bool) { return []nftables.Stmt{s}, true }
	switch {
	case p.take("comment"):
		p.next()
		return nil, true
	case p.take("counter"):
		for p.take("packets") || p.take("bytes") || p.take("name") {
			p.next()
		}
		return one(nftables.Counter{})
	case p.take("ct", "state", "new"), p.take("ct", "state", "0x8"):
		return one(nftables.MatchNew{})
	case p.take("ct", "state", "invalid"): // kube-proxy before 1.31 drops invalid packets; a first packet is never invalid
		return one(nftables.MatchProto{})
	case p.take("ct", "status", "dnat"), p.take("ct", "status", "0x20"):
		return one(nftables.MatchDNAT{})
	case p.take("fib", "saddr", "type", "local"), p.take("fib", "saddr", "type", "2"):
		return one(nftables.MatchLocal{Field: nftables.SrcAddr})
	case p.take("fib", "daddr", "type", "local"), p.take("fib", "daddr", "type", "2"):
		return one(nftables.MatchLocal{Field: nftables.DstAddr})
	case p.take("fib", "daddr", "type", "!=", "local"), p.take("fib", "daddr", "type", "!=", "2"):
		return one(nftables.MatchLocal{Field: nftables.DstAddr, Not: true})
	case p.take("iifname"):
		not := p.take("!=")
		if p.end() || strings.ContainsAny(p.peek(), "{@\\") || p.peek() == "\n" || p.isMap() {
			return nil, false
		}
		stem, prefix := strings.CutSuffix(p.next(), "*")
		return one(nftables.MatchInterface{Name: stem, Prefix: prefix, Not: not})
	case p.take("meta", "mark"):
		return p.mark()
	case p.take("masquerade"):
		for p.take("fully-random") || p.take("random") || p.take("persistent") {
		}
		return one(nftables.Masquerade{})
	case p.take("reject"):
		return p.reject()
	case p.take("drop"):
		return one(nftables.Verdict{Kind: nftables.Drop})
	case p.take("accept"):
		return one(nftables.Verdict{Kind: nftables.Accept})
	case p.take("return"):
		return one(nftables.Verdict{Kind: nftables.Return})
	case p.take("jump"):
		return one(nftables.Verdict{Kind: nftables.Jump, Chain: p.next()})
	case p.take("goto"):
		return one(nftables.Verdict{Kind: nftables.Goto, Chain: p.next()})
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
			return one(nftables.MatchProto{Protocol: proto})
		}
		p.at = from
	}
	return p.match()
}

// reject parses the text after "reject".
func (p *listParser) reject() ([]nftables.Stmt, bool) {
	v := nftables.Verdict{Kind: nftables.Reject}
	switch {
	case !p.take("with"):
	case p.take("tcp", "reset"):
		v = nftables.Verdict{Kind: nftables.RejectWith, Chain: "tcp reset"}
	default:
		protocol := p.next()
		if !slices.Contains([]string{"icmp", "icmpv6", "icmpx"}, protocol) {
			return nil, false
		}
		p.take("type")
		if code := p.next(); code != "port-unreachable" {
			v = nftables.Verdict{Kind: nftables.RejectWith, Chain: protocol + " " + code}
		}
	}
	return []nftables.Stmt{v}, true
}

// mark parses the text after "meta mark".
func (p *listParser) mark() ([]nftables.Stmt, bool) {
	number := func() (uint32, bool) {
		n, err := strconv.ParseUint(p.next(), 0, 32)
		return uint32(n), err == nil
	}
	and := func() bool { return p.take("&") || p.take("and") }
	if p.take("set", "meta", "mark") || p.take("set", "mark") {
		switch {
		case p.take("|"), p.take("or"):
			n, ok := number()
			return []nftables.Stmt{nftables.SetMark{Mask: n}}, ok
		case and():
			n, ok := number()
			return []nftables.Stmt{nftables.ClearMark{Mask: ^n}}, ok
		case p.take("^"), p.take("xor"):
			n, ok := number()
			return []nftables.Stmt{nftables.FlipMark{Mask: n}}, ok
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
	return []nftables.Stmt{nftables.MatchMark{Mask: n, Clear: clear}}, ok && zero == 0
}

// match parses "TERMS [!=] @SET | { … } | VALUE", or "TERMS vmap …".
func (p *listParser) match() ([]nftables.Stmt, bool) {
	key := p.terms()
	if key == nil {
		return nil, false
	}
	types := make([]nftables.Type, len(key))
	for i, t := range key {
		types[i] = t.Field.Type()
	}
	if p.take("vmap") {
		name, ok := p.mapOf(nftables.Set{Key: types, Data: nftables.VerdictData})
		return []nftables.Stmt{nftables.LookupVerdict{Key: key, Map: name}}, ok
	}
	not := p.take("!=")
	switch next := p.peek(); {
	case strings.HasPrefix(next, "@"):
		return []nftables.Stmt{nftables.MatchSet{Key: key, Set: p.next()[1:], Not: not}}, true
	case next == "{":
		if types[len(types)-1] == nftables.TypeAddr {
			types[len(types)-1] = nftables.TypeNet
		}
		name, ok := p.mapOf(nftables.Set{Key: types, Interval: types[len(types)-1] == nftables.TypeNet})
		return []nftables.Stmt{nftables.MatchSet{Key: key, Set: name, Not: not}}, ok
	case len(key) == 1 && types[0] == nftables.TypeAddr:
		if of := prefixesOf(next); len(of) == 1 && p.r.Family.Has(of[0].Addr()) {
			p.next()
			return []nftables.Stmt{nftables.MatchNet{Field: key[0].Field, Prefix: of[0], Not: not}}, true
		}
	case len(key) == 1 && types[0] == nftables.TypePort:
		if n, ok := portOf(next); ok {
			p.next()
			s := nftables.Set{Key: types, Elements: []nftables.Element{{Key: nftables.Key{Port: n}}}}
			return []nftables.Stmt{nftables.MatchSet{Key: key, Set: p.add(s), Not: not}}, true
		}
	}
	return nil, false
}

// mapOf parses "@NAME", or elements in braces, which become an anonymous set.
func (p *listParser) mapOf(s nftables.Set) (name string, ok bool) {
	if name, ok = strings.CutPrefix(p.peek(), "@"); ok {
		p.next()
		return name, true
	}
	if p.elements(&s) != nil {
		return "", false
	}
	return p.add(s), true
}

// dnat parses the text after "dnat".
func (p *listParser) dnat() ([]nftables.Stmt, bool) {
	p.take(p.r.Family.NFT())
	addrPort := p.take("addr", ".", "port")
	if !p.take("to") {
		return nil, false
	}
	if key := p.terms(); key != nil {
		if !p.take("map") {
			return nil, false
		}
		types := make([]nftables.Type, len(key))
		for i, t := range key {
			types[i] = t.Field.Type()
		}
		l := nftables.LookupDNAT{Key: key}
		var ok bool
		if l.Map, ok = p.mapOf(nftables.Set{Key: types, Data: nftables.AddrPortData}); !ok {
			return nil, false
		}
		port, with := "", p.take(":")
		if with {
			port = p.next()
		} else {
			l.Map, port, with = strings.Cut(l.Map, ":") // nft 1.0.6 prints no space
		}
		if with {
			l.Port, ok = portOf(port)
			ok = ok && l.Port != 0
		}
		return []nftables.Stmt{l}, ok
	}
	if p.end() || addrPort {
		return nil, false
	}
	to, ok := destinationOf(p.toks[p.at : p.at+1])
	if !ok || !p.r.Family.Has(to.Addr()) {
		return nil, false
	}
	p.next()
	return []nftables.Stmt{nftables.LookupDNAT{Map: p.constant(to)}}, true
}

// constant adds a map with a single result.
func (p *listParser) constant(to netip.AddrPort) string {
	return p.add(nftables.Set{Data: nftables.AddrPortData, Elements: []nftables.Element{{To: to}}})
}

// update parses "@SET { KEY [: DATA] }". Neither our rules nor kube-proxy's
// contain a timeout here.
func (p *listParser) update() ([]nftables.Stmt, bool) {
	name, ok := strings.CutPrefix(p.next(), "@")
	if !ok || !p.take("{") {
		return nil, false
	}
	key := p.terms()
	if len(key) != 1 {
		return nil, false
	}
	u := nftables.Update{Map: name, Key: key[0]}
	if p.take(":") {
		data := p.terms()
		if len(data) != 1 {
			return nil, false
		}
		u.Data = data[0]
	}
	return []nftables.Stmt{u}, p.take("}")
}

// terms parses "ip daddr . meta l4proto . th dport". It returns nil if there are
// none.
func (p *listParser) terms() []nftables.Term {
	var terms []nftables.Term
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

func (p *listParser) term() (nftables.Term, bool) {
	switch ip := p.r.Family.NFT(); {
	case p.take(ip, "saddr"):
		return nftables.Term{Field: nftables.SrcAddr}, true
	case p.take(ip, "daddr"):
		return nftables.Term{Field: nftables.DstAddr}, true
	case p.take("ct", "original", ip, "saddr"):
		return nftables.Term{Field: nftables.OrigSrcAddr}, true
	case p.take("ct", "original", ip, "daddr"):
		return nftables.Term{Field: nftables.OrigDstAddr}, true
	case p.dport():
		return nftables.Term{Field: nftables.DstPort}, true
	case p.take("meta", "l4proto"), ip == "ip" && p.take("ip", "protocol"):
		return nftables.Term{Field: nftables.L4Proto}, true
	case p.take("th", "dport"):
		return nftables.Term{Field: nftables.DstPort}, true
	case p.take("ct", "original", "proto-dst"):
		return nftables.Term{Field: nftables.OrigDstPort}, true
	case p.take("numgen", "random", "mod"):
		n, err := strconv.ParseUint(p.next(), 10, 32)
		return nftables.Term{Field: nftables.Random, Mod: uint32(n)}, err == nil && n > 0
	case p.take("jhash", ip, "saddr", ".", "th", "sport", "mod"):
		n, err := strconv.ParseUint(p.next(), 10, 32)
		seeded := p.take("seed")
		seed, seedErr := strconv.ParseUint(p.next(), 0, 32)
		return nftables.Term{Field: nftables.ClientHash, Mod: uint32(n)}, err == nil && n > 0 && seeded && seedErr == nil && seed == ir.MaglevSeed && !p.take("offset")
	}
	return nftables.Term{}, false
}

// dport parses "tcp dport", which implies the protocol.
func (p *listParser) dport() bool {
	for _, protocol := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		if p.take(strings.ToLower(protocol.String()), "dport") {
			p.portOf = protocol
			return true
		}
	}
	return false
}
