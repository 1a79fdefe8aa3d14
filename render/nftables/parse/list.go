package parse

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
)

// ListedTable is a table in nft's listing, of any program.
type ListedTable struct {
	Family            string // nft's keyword: "ip", "ip6", "inet", …
	Name              string
	*nftables.Ruleset // nil for foreign tables
}

// proxies are the tables that are parsed.
var proxies = []string{nftables.Table, "kube-proxy"}

// ParseList parses the output of nft list ruleset or nft list table. A statement
// that neither kube-proxy nor proxyc writes is Unsupported, together with the
// rest of its rule.
func ParseList(text string) ([]ListedTable, error) {
	p := &listParser{toks: listTokens(text)}
	var tables []ListedTable
	for p.skipLines(); !p.end(); p.skipLines() {
		t := ListedTable{}
		var err error
		if t.Family, t.Name, err = p.header(); err != nil {
			return nil, err
		}
		families := ir.Families()
		i := slices.IndexFunc(families[:], func(f ir.Family) bool { return t.Family == f.NFT() })
		if i < 0 || !slices.Contains(proxies, t.Name) {
			p.block()
			tables = append(tables, t)
			continue
		}
		p.next()
		t.Ruleset = &nftables.Ruleset{Exists: true, Family: families[i]}
		p.r, p.there = t.Ruleset, map[string]bool{}
		if err := p.table(); err != nil {
			return nil, fmt.Errorf("table %s %s: %w", t.Family, t.Name, err)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// header parses the text before the block of a table.
func (p *listParser) header() (family, name string, err error) {
	if !p.take("table") {
		return "", "", p.errorf("must begin with table, got %q", p.peek())
	}
	if family, name = p.next(), p.next(); p.peek() != "{" {
		err = p.errorf("table %s %s: must be followed by {, got %q", family, name, p.peek())
	}
	return family, name, err
}

// token is a word of a listing; "\n" is the end of a line.
type token struct {
	text   string
	quoted bool
	line   int
}

// listTokens splits a listing into words. Characters that end a word are separate
// tokens.
func listTokens(text string) (toks []token) {
	line := 0
	for s := range strings.Lines(text) {
		line++
		if strings.HasPrefix(strings.TrimSpace(s), "#") {
			continue
		}
		for s = strings.TrimRight(s, "\r\n"); ; {
			s = strings.TrimLeft(s, " \t")
			if s == "" {
				break
			}
			if s[0] == '#' { // the handle printed by nft -a
				break
			}
			if s[0] == '"' {
				inside, rest, _ := strings.Cut(s[1:], `"`)
				toks = append(toks, token{inside, true, line})
				s = rest
				continue
			}
			end := strings.IndexAny(s, " \t\"")
			if end < 0 {
				end = len(s)
			}
			word := s[:end]
			s = s[end:]
			var signs []token
			for len(word) > 1 && strings.ContainsAny(word[len(word)-1:], ",;") {
				signs = append(signs, token{word[len(word)-1:], false, line})
				word = word[:len(word)-1]
			}
			toks = append(append(toks, token{word, false, line}), signs...)
		}
		toks = append(toks, token{"\n", false, line})
	}
	return toks
}

type listParser struct {
	whole     bool   // parse tables of all programs
	other     string // with whole: nft's keyword for the other family
	state     string // with whole: of the connections
	toks      []token
	at        int
	r         *nftables.Ruleset
	anonymous int
	there     map[string]bool  // parts of the table so far, such as "chain services"
	named     string           // with whole: family and name of the table, which qualify the names in it
	lists     map[string][]int // with whole: positions of the elements of a set
	// portOf is the protocol whose port is among the terms of the last statement.
	// nft prints "meta l4proto tcp ip daddr . th dport" as "ip daddr . tcp
	// dport".
	portOf ir.Protocol
}

func (p *listParser) end() bool { return p.at == len(p.toks) }

func (p *listParser) peek() string {
	if p.end() {
		return ""
	}
	return p.toks[p.at].text
}

func (p *listParser) next() string {
	s := p.peek()
	if !p.end() {
		p.at++
	}
	return s
}

// take skips the words if they are next.
func (p *listParser) take(words ...string) bool {
	for i, w := range words {
		if p.at+i >= len(p.toks) || p.toks[p.at+i].text != w || p.toks[p.at+i].quoted {
			return false
		}
	}
	p.at += len(words)
	return true
}

func (p *listParser) skipLines() {
	for p.take("\n") || p.take(";") {
	}
}

func (p *listParser) errorf(format string, args ...any) error {
	line := 0
	if p.at < len(p.toks) {
		line = p.toks[p.at].line
	} else if len(p.toks) > 0 {
		line = p.toks[len(p.toks)-1].line
	}
	return fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...))
}

// rest returns the words up to the end of the line.
func (p *listParser) rest() string {
	var words []string
	for !p.end() && p.peek() != "\n" {
		words = append(words, p.next())
	}
	return strings.Join(words, " ")
}

func (p *listParser) table() error {
	for {
		p.skipLines()
		switch {
		case p.end():
			return p.errorf("ends in the middle of a table")
		case p.take("}"):
			return nil
		case p.take("comment"):
			p.next()
		case p.take("flags"):
			p.r.Flags = p.rest()
		case p.take("set"), p.take("map"):
			s := nftables.Set{Name: p.next()}
			if err := p.set(&s); err != nil {
				return fmt.Errorf("set %s: %w", s.Name, err)
			}
			if p.twice("set " + s.Name) {
				return p.errorf("set %s is there twice", s.Name)
			}
			s.Name = p.setName(s.Name)
			p.r.Sets = append(p.r.Sets, s)
		case p.take("chain"):
			c := nftables.Chain{Name: p.next()}
			if err := p.chain(&c); err != nil {
				return fmt.Errorf("chain %s: %w", c.Name, err)
			}
			if p.twice("chain " + c.Name) {
				return p.errorf("chain %s is there twice", c.Name)
			}
			c.Name = p.chainName(c.Name)
			p.r.Chains = append(p.r.Chains, c)
		case slices.Contains(named, p.peek()): // used by rules that are not supported
			for !p.end() && p.peek() != "{" {
				p.next()
			}
			p.block()
		default:
			return p.errorf("%q is nothing that a table has", p.peek())
		}
	}
}

// twice reports whether the table has a part already, and records it.
func (p *listParser) twice(what string) bool {
	was := p.there[what]
	p.there[what] = true
	return was
}

// named are the keywords of other parts of a table.
var named = []string{"flowtable", "counter", "quota", "ct", "limit", "secmark", "synproxy", "tunnel"}

// block skips a block.
func (p *listParser) block() {
	depth := 0
	for !p.end() {
		quoted := p.toks[p.at].quoted
		switch word := p.next(); {
		case quoted:
		case word == "{":
			depth++
		case word == "}":
			if depth--; depth == 0 {
				return
			}
		}
	}
}

func (p *listParser) set(s *nftables.Set) error {
	if !p.take("{") {
		return p.errorf("must be followed by {, got %q", p.peek())
	}
	var lists []int // positions of elements, parsed when the type is known
	dynamic := false
	for {
		p.skipLines()
		switch {
		case p.end():
			return p.errorf("ends in the middle of a set")
		case p.take("}"):
			if s.Timeout > 0 && !dynamic {
				s.Unsupported = "elements that expire"
			}
			if p.whole {
				p.lists[s.Name] = lists
			}
			return p.inLists(lists, func() error { return p.elements(s) })
		case p.take("elements", "="):
			lists = append(lists, p.at)
			p.block()
		case p.take("flags"):
			flags := p.rest()
			dynamic = dynamic || strings.Contains(flags, "dynamic")
			setFlags(s, flags)
		default:
			p.property(s)
		}
	}
}

// inLists calls parse at each of the positions.
func (p *listParser) inLists(lists []int, parse func() error) (err error) {
	after := p.at
	for _, p.at = range lists {
		if err = parse(); err != nil {
			return err
		}
	}
	p.at = after
	return nil
}

// property parses a property of a set.
func (p *listParser) property(s *nftables.Set) {
	switch {
	case p.take("type"):
		p.types(s, p.rest())
	case p.take("typeof"):
		p.typesOf(s)
	case p.take("timeout"):
		var ok bool
		if s.Timeout, ok = durationOf(p.next()); !ok {
			s.Unsupported = "timeout"
		}
	case p.take("size"):
		n, err := strconv.ParseUint(p.next(), 10, 32)
		if err != nil {
			s.Unsupported = "size"
		}
		s.Size = uint32(n)
	case p.take("comment"), p.take("policy"), p.take("gc-interval"): // without an effect on packets
		p.next()
	case p.take("counter"):
		s.Counter = true
	default:
		s.Unsupported = p.rest()
	}
}

// setFlags parses "dynamic,timeout".
func setFlags(s *nftables.Set, flags string) {
	for flag := range strings.FieldsFuncSeq(flags, func(c rune) bool { return c == ',' || c == ' ' }) {
		switch flag {
		case "constant":
		case "interval":
			s.Interval = true
			if n := len(s.Key); n > 0 && s.Key[n-1] == nftables.TypeAddr {
				s.Key[n-1] = nftables.TypeNet
			}
		case "dynamic", "timeout":
			s.Timeout = max(s.Timeout, nftables.NoTimeout)
		default:
			s.Unsupported = "flags " + flags
		}
	}
}

// durationOf parses "1d2h3m4s5ms".
func durationOf(s string) (d time.Duration, ok bool) {
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "0", s
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if rest != "" && err == nil {
		d, err = time.ParseDuration(rest)
	}
	d += time.Duration(n) * 24 * time.Hour
	return d, err == nil && d > nftables.NoTimeout
}

// types parses the declared types of a set: "ipv4_addr . inet_service : verdict".
func (p *listParser) types(s *nftables.Set, text string) {
	key, data, isMap := strings.Cut(text, " : ")
	for name := range strings.SplitSeq(key, " . ") {
		switch strings.TrimSpace(name) {
		case "ipv4_addr", "ipv6_addr":
			s.Key = append(s.Key, nftables.TypeAddr)
		case "inet_proto":
			s.Key = append(s.Key, nftables.TypeProto)
		case "inet_service":
			s.Key = append(s.Key, nftables.TypePort)
		default:
			s.Unsupported = "type " + text
		}
	}
	if isMap {
		switch data = strings.TrimSpace(data); data {
		case "verdict":
			s.Data = nftables.VerdictData
		case "ipv4_addr . inet_service", "ipv6_addr . inet_service":
			s.Data = nftables.AddrPortData
		case "ipv4_addr", "ipv6_addr":
			s.Data = nftables.AddrData
		default:
			s.Unsupported = "type " + text
		}
	}
}

// typesOf parses a declaration of types by example.
func (p *listParser) typesOf(s *nftables.Set) {
	from := p.at
	key := p.terms()
	if key == nil {
		s.Unsupported = "typeof " + p.rest()
		return
	}
	s.Key = append(s.Key, typesOf(key)...)
	if !p.take(":") {
		return
	}
	if p.take("verdict") {
		s.Data = nftables.VerdictData
		return
	}
	switch data := p.terms(); {
	case len(data) == 1 && data[0].Field.Type() == nftables.TypeAddr:
		s.Data = nftables.AddrData
	case len(data) == 2 && data[0].Field.Type() == nftables.TypeAddr && data[1].Field.Type() == nftables.TypePort:
		s.Data = nftables.AddrPortData
	default:
		p.at = from
		s.Unsupported = "typeof " + p.rest()
	}
}

// elements parses "{ key : data, … }".
func (p *listParser) elements(s *nftables.Set) error {
	return p.eachElement(func(e *listed) {
		if s.Unsupported == "" && s.UnsupportedKey() == "" && !p.element(s, e) {
			s.Foreign = true // the result of a lookup in this set is unknown
		}
	})
}

// eachElement calls add with each element of a list in braces.
func (p *listParser) eachElement(add func(*listed)) error {
	if !p.take("{") {
		return p.errorf("elements must be in braces, got %q", p.peek())
	}
	for {
		for p.take("\n") || p.take(",") {
		}
		if p.take("}") {
			return nil
		}
		if p.end() {
			return p.errorf("ends in the middle of elements")
		}
		add(p.listed())
	}
}

// listed parses an element up to its end.
func (p *listParser) listed() *listed {
	e := &listed{}
	part := &e.key
	for !p.end() {
		t := p.toks[p.at]
		if !t.quoted && (t.text == "," || t.text == "}") {
			break
		}
		p.at++
		switch {
		case t.text == "\n":
		case t.quoted:
			*part = append(*part, t)
		case t.text == ":" && part == &e.key:
			part = &e.data
		case t.text == "counter":
			p.options("packets", "bytes")
		case t.text == "timeout", t.text == "expires":
			e.expires = true
			p.next()
		case t.text == "comment":
			p.next()
		default:
			*part = append(*part, t)
		}
	}
	return e
}

// listed is an element in a listing.
type listed struct {
	key, data []token
	expires   bool
}

// element adds an element to the set. It returns false if the set cannot
// represent it. Of elements added by rules, only the destination is kept.
func (p *listParser) element(s *nftables.Set, of *listed) bool {
	if s.Timeout > 0 && !of.expires {
		s.Permanent = true
	}
	if of.expires && s.Timeout == 0 || len(of.key) != 2*len(s.Key)-1 {
		return false
	}
	e := nftables.Element{}
	span, ok := p.elementKey(&e.Key, s.Key, of.key)
	if !ok || !p.elementData(&e, s.Data, of.data) {
		return false
	}
	switch {
	case s.Timeout > 0:
		if s.Data != nftables.NoData && !slices.Contains(s.Remembered, e.To.Addr()) {
			s.Remembered = append(s.Remembered, e.To.Addr())
		}
	case span == nil:
		s.Elements = append(s.Elements, e)
	}
	for _, of := range span {
		e.Key.Addr2, e.Key.Bits = of.Addr(), uint8(of.Bits())
		s.Elements = append(s.Elements, e)
	}
	return true
}

// elementKey parses "10.0.0.1 . 80" into a key. It returns the prefixes of an interval.
func (p *listParser) elementKey(key *nftables.Key, types []nftables.Type, toks []token) (span []netip.Prefix, ok bool) {
	addrs, ports := []*netip.Addr{&key.Addr, &key.Addr2}, []*uint16{&key.Port, &key.Port2}
	for i, of := range types {
		if i > 0 && toks[2*i-1].text != "." {
			return nil, false
		}
		text, ok := toks[2*i].text, true
		switch of {
		case nftables.TypeAddr:
			a, err := netip.ParseAddr(text)
			ok = err == nil && p.r.Family.Has(a)
			*addrs[0], addrs = a, addrs[1:]
		case nftables.TypeNet:
			span = prefixesOf(text)
			ok = span != nil && p.r.Family.Has(span[0].Addr())
		case nftables.TypeProto:
			key.Proto, ok = protocolOf(text)
		case nftables.TypePort:
			*ports[0], ok = portOf(text)
			ports = ports[1:]
		case nftables.TypeSlot:
			slot, err := strconv.ParseUint(text, 0, 32)
			key.Slot, ok = uint32(slot), err == nil
		}
		if !ok {
			return nil, false
		}
	}
	return span, true
}

// elementData parses what an element of a map contains.
func (p *listParser) elementData(e *nftables.Element, of nftables.Data, toks []token) (ok bool) {
	switch of {
	case nftables.NoData:
		return len(toks) == 0
	case nftables.VerdictData:
		e.Verdict, ok = p.verdictOf(toks)
	case nftables.AddrPortData, nftables.AddrData:
		e.To, ok = destinationOf(toks)
		ok = ok && p.r.Family.Has(e.To.Addr()) && (e.To.Port() != 0) == (of == nftables.AddrPortData)
	}
	return ok
}

// destinationOf parses "10.0.0.1 . 80", "10.0.0.1:80", "[fd00::1]:80" or an
// address.
func destinationOf(toks []token) (netip.AddrPort, bool) {
	if len(toks) == 1 {
		if to, err := netip.ParseAddrPort(toks[0].text); err == nil {
			return to, true
		}
		a, err := netip.ParseAddr(strings.Trim(toks[0].text, "[]"))
		return netip.AddrPortFrom(a, 0), err == nil
	}
	if len(toks) != 3 || toks[1].text != "." {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddr(toks[0].text)
	port, ok := portOf(toks[2].text)
	return netip.AddrPortFrom(a, port), err == nil && ok
}

func protocolOf(s string) (ir.Protocol, bool) {
	if n, err := strconv.ParseUint(s, 10, 8); err == nil {
		return ir.Protocol(n), true
	}
	return ir.ParseProtocol(s)
}

// portOf parses a number; only nft -S prints service names.
func portOf(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}

// prefixesOf parses an address, a prefix, or a range of addresses. It returns nil
// for other texts.
func prefixesOf(s string) []netip.Prefix {
	if p, err := netip.ParsePrefix(s); err == nil {
		return []netip.Prefix{p.Masked()}
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	}
	from, to, ok := strings.Cut(s, "-")
	first, err := netip.ParseAddr(from)
	last, lastErr := netip.ParseAddr(to)
	if !ok || err != nil || lastErr != nil || first.Is4() != last.Is4() {
		return nil
	}
	return ir.PrefixesOf(first, last)
}
