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
	p.priority(c.Base)
	if c.Base.NAT && (c.Base.Hook == nftables.Forward || c.Base.Priority <= nftables.PriorityConntrack) {
		c.Base.Unsupported = "type nat where the kernel has none"
	}
	if next := p.peek(); next != ";" && next != "\n" {
		c.Base.Unsupported = "priority " + p.rest()
	}
}

// priorities are nft's names of priorities.
var priorities = map[string]int{"raw": -300, "mangle": -150, "dstnat": nftables.PriorityDNAT, "filter": nftables.PriorityFilter, "security": 50, "srcnat": nftables.PrioritySNAT}

// priority parses "-100", "filter" or "filter - 10".
func (p *listParser) priority(b *nftables.Base) {
	first := p.next()
	n, err := strconv.Atoi(first)
	named, known := priorities[first]
	if err != nil && !known {
		b.Unsupported = "priority " + first
	}
	b.Priority = n + named
	if sign := p.peek(); sign == "+" || sign == "-" {
		p.next()
		n, err := strconv.Atoi(sign + p.next())
		if err != nil {
			b.Unsupported = "priority " + first
		}
		b.Priority += n
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
		if !ok || !p.mayEnd(stmts) || p.goesOn() {
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

// mayEnd reports whether the rest of the rule may follow statements.
func (p *listParser) mayEnd(stmts []nftables.Stmt) bool {
	if len(stmts) == 0 {
		return true
	}
	switch stmts[len(stmts)-1].(type) {
	case nftables.Verdict, nftables.Masquerade, nftables.LookupDNAT:
		p.options("comment")
		return p.end() || p.peek() == "\n"
	case nftables.LookupVerdict:
		return p.end() || slices.Contains(afterVerdicts[:], p.peek())
	}
	return true
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

// fixed are statements without a variable part.
var fixed = []struct {
	stmt  nftables.Stmt
	words []string
}{
	{nftables.MatchProto{}, []string{"ct", "state", "invalid"}}, // kube-proxy before 1.31 drops invalid packets; a first packet is never invalid
	{nftables.MatchDNAT{}, []string{"ct", "status", "dnat"}},
	{nftables.MatchDNAT{}, []string{"ct", "status", "0x20"}},
	{nftables.MatchLocal{Field: nftables.SrcAddr}, []string{"fib", "saddr", "type", "local"}},
	{nftables.MatchLocal{Field: nftables.SrcAddr}, []string{"fib", "saddr", "type", "2"}},
	{nftables.MatchLocal{Field: nftables.DstAddr}, []string{"fib", "daddr", "type", "local"}},
	{nftables.MatchLocal{Field: nftables.DstAddr}, []string{"fib", "daddr", "type", "2"}},
	{nftables.MatchLocal{Field: nftables.DstAddr, Not: true}, []string{"fib", "daddr", "type", "!=", "local"}},
	{nftables.MatchLocal{Field: nftables.DstAddr, Not: true}, []string{"fib", "daddr", "type", "!=", "2"}},
	{nftables.Verdict{Kind: nftables.Drop}, []string{"drop"}},
	{nftables.Verdict{Kind: nftables.Accept}, []string{"accept"}},
	{nftables.Verdict{Kind: nftables.Return}, []string{"return"}},
}

// known parses one statement of the kinds that proxies write.
func (p *listParser) known() ([]nftables.Stmt, bool) {
	one := func(s nftables.Stmt) ([]nftables.Stmt, bool) { return []nftables.Stmt{s}, true }
	for _, s := range fixed {
		if p.take(s.words...) {
			return one(s.stmt)
		}
	}
	switch {
	case p.take("comment"):
		p.next()
		return nil, true
	case p.take("counter"):
		p.options("packets", "bytes", "name")
		return one(nftables.Counter{})
	case p.take("iifname"):
		return p.interfaceName()
	case p.take("meta", "mark"):
		return p.mark()
	case p.take("masquerade"):
		for slices.Contains([]string{"fully-random", "random", "persistent"}, p.peek()) {
			p.next()
		}
		return one(nftables.Masquerade{})
	case p.take("reject"):
		return p.reject()
	case p.take("jump"):
		return one(nftables.Verdict{Kind: nftables.Jump, Chain: p.chainName(p.next())})
	case p.take("goto"):
		return one(nftables.Verdict{Kind: nftables.Goto, Chain: p.chainName(p.next())})
	case p.take("dnat"):
		return p.dnat()
	case p.take("update"):
		return p.update()
	}
	return p.compared()
}

// compared parses the comparisons that proxies write.
func (p *listParser) compared() ([]nftables.Stmt, bool) {
	if p.state != "established" && (p.take("ct", "state", "new") || p.take("ct", "state", "0x8")) {
		return []nftables.Stmt{nftables.MatchNew{}}, true
	}
	if p.whole {
		if stmts, ok := p.others(); ok {
			return stmts, true
		}
	}
	if from := p.at; p.take("meta", "l4proto") {
		if proto, ok := protocolOf(p.peek()); ok {
			p.next()
			return []nftables.Stmt{nftables.MatchProto{Protocol: proto}}, true
		}
		p.at = from
	}
	return p.match()
}

// options skips options that have a value.
func (p *listParser) options(names ...string) {
	for slices.Contains(names, p.peek()) {
		p.next()
		p.next()
	}
}

// interfaceName parses the text after "iifname".
func (p *listParser) interfaceName() ([]nftables.Stmt, bool) {
	not := p.take("!=")
	if p.end() || strings.ContainsAny(p.peek(), "{@\\\n") || p.isMap() {
		return nil, false
	}
	stem, prefix := strings.CutSuffix(p.next(), "*")
	return []nftables.Stmt{nftables.MatchInterface{Name: stem, Prefix: prefix, Not: not}}, true
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

// typesOf returns the types of a key.
func typesOf(key []nftables.Term) (types []nftables.Type) {
	for _, t := range key {
		types = append(types, t.Field.Type())
	}
	return types
}

// match parses "TERMS [!=] @SET | { … } | VALUE", or "TERMS vmap …".
func (p *listParser) match() ([]nftables.Stmt, bool) {
	key := p.terms()
	if key == nil {
		return nil, false
	}
	types := typesOf(key)
	if p.take("vmap") {
		name, ok := p.mapOf(nftables.Set{Key: types, Data: nftables.VerdictData})
		return []nftables.Stmt{nftables.LookupVerdict{Key: key, Map: name}}, ok
	}
	not := p.take("!=")
	switch next := p.peek(); {
	case strings.HasPrefix(next, "@"):
		return []nftables.Stmt{nftables.MatchSet{Key: key, Set: p.setName(p.next()[1:]), Not: not}}, true
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
		return p.setName(name), true
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
		l := nftables.LookupDNAT{Key: key}
		var ok bool
		if l.Map, ok = p.mapOf(nftables.Set{Key: typesOf(key), Data: nftables.AddrPortData}); !ok {
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
	u := nftables.Update{Map: p.setName(name), Key: key[0]}
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
	ip := p.r.Family.NFT()
	for _, t := range [...]struct {
		field nftables.Field
		words []string
	}{
		{nftables.SrcAddr, []string{ip, "saddr"}},
		{nftables.DstAddr, []string{ip, "daddr"}},
		{nftables.OrigSrcAddr, []string{"ct", "original", ip, "saddr"}},
		{nftables.OrigDstAddr, []string{"ct", "original", ip, "daddr"}},
		{nftables.L4Proto, []string{"meta", "l4proto"}},
		{nftables.L4Proto, []string{ip, "protocol"}},
		{nftables.DstPort, []string{"th", "dport"}},
		{nftables.OrigDstPort, []string{"ct", "original", "proto-dst"}},
	} {
		if p.take(t.words...) {
			return nftables.Term{Field: t.field}, true
		}
	}
	switch {
	case p.dport():
		return nftables.Term{Field: nftables.DstPort}, true
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

func (p *listParser) verdictOf(toks []token) (nftables.Verdict, bool) {
	if len(toks) == 0 {
		return nftables.Verdict{}, false
	}
	kinds := map[string]nftables.VerdictKind{"drop": nftables.Drop, "accept": nftables.Accept, "return": nftables.Return, "continue": nftables.Continue, "jump": nftables.Jump, "goto": nftables.Goto}
	v := nftables.Verdict{Kind: kinds[toks[0].text]}
	words := 1
	if v.Kind == nftables.Jump || v.Kind == nftables.Goto {
		words = 2
	}
	if len(toks) != words {
		return v, false
	}
	if words == 2 {
		v.Chain = p.chainName(toks[1].text)
	}
	return v, v.Kind != 0
}
