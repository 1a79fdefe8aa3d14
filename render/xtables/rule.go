package xtables

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// answer is the result of a match.
type answer struct {
	holds bool
	doubt string // why it is not known whether the match holds
}

func is(ok bool) answer { return answer{holds: ok} }

func unsure(why string) answer { return answer{doubt: why} }

// test is one match of a rule.
type test func(p *nfteval.Passing) answer

// rule is a parsed rule.
type rule struct {
	tests []test
	// late are matches with state. They are evaluated in order, and only if all
	// tests hold.
	late []test
	// does applies the target.
	does func(p *nfteval.Passing) nftables.Verdict
	odd  string // why the target is not supported
	// inert reports that the target does not affect the packet.
	inert bool
}

func (r *rule) run(p *nfteval.Passing) (v nftables.Verdict) {
	doubt := ""
	for _, list := range [][]test{r.tests, r.late} {
		for _, t := range list {
			switch a := t(p); {
			case a.doubt != "":
				doubt = a.doubt
			case !a.holds:
				return v
			}
		}
		if doubt != "" && !r.inert {
			p.Doubt(doubt)
			return v
		}
	}
	switch {
	case r.inert:
		return v
	case r.odd != "":
		p.Doubt(r.odd)
		return v
	}
	return r.does(p)
}

// parse parses a rule after its chain. prefix is prepended to the names of target
// chains.
func parse(f ir.Family, prefix, text string, sets *Sets) nftables.Stmt {
	p := parser{family: f, prefix: prefix, words: iptparse.SavedWords(text), sets: sets, r: &rule{inert: true}}
	for len(p.words) > 0 {
		p.option(p.next())
	}
	return nfteval.Foreign{Text: text, Run: p.r.run}
}

type parser struct {
	family ir.Family
	prefix string
	words  []string // that are not parsed yet
	sets   *Sets
	r      *rule

	not    bool
	module string // of the last -m
	odd    bool   // the module is not supported
	state  any    // of its match, if it consists of several options
	target string
}

// next returns the argument of an option.
func (p *parser) next() (word string) {
	if len(p.words) > 0 {
		word, p.words = p.words[0], p.words[1:]
	}
	return word
}

// add adds a match. It is negated after a "!". It returns true.
func (p *parser) add(t test) bool {
	if p.not {
		plain := t
		t = func(q *nfteval.Passing) answer {
			a := plain(q)
			a.holds = !a.holds
			return a
		}
	}
	p.r.tests = append(p.r.tests, t)
	return true
}

// unsupported adds an unsupported match. It returns true.
func (p *parser) unsupported(what string) bool {
	p.r.tests = append(p.r.tests, func(*nfteval.Passing) answer { return unsure(what + " is not understood") })
	return true
}

func (p *parser) option(word string) {
	parse := options[word]
	switch {
	case word == "!":
		p.not = true
		return
	case word == "-m":
		p.match(p.next())
	case word == "-j", word == "-g":
		p.forwards(word, p.next())
	case p.target != "":
		p.targetOption(word)
	case parse != nil && parse(p, word):
	case strings.HasPrefix(word, "-") && !p.odd:
		p.unsupported(strings.TrimSpace("match " + p.module + " " + word))
	}
	p.not = false
}

// modules are the supported matches. Those that consist of several options return their state.
var modules = map[string]func(*parser) any{
	"tcp": nil, "udp": nil, "sctp": nil, "icmp": nil, "icmp6": nil, "comment": nil, "conntrack": nil, "state": nil,
	"mark": nil, "connmark": nil, "multiport": nil, "set": nil, "physdev": nil, "iprange": nil, "nfacct": nil,
	"addrtype": func(*parser) any { return &addrType{} }, "rpfilter": newReversePath, "statistic": newStatistic, "recent": newRecent,
}

func (p *parser) match(module string) {
	begin, known := modules[module]
	p.module, p.odd, p.state = module, !known, nil
	if p.odd {
		p.unsupported("match " + module)
	} else if begin != nil {
		p.state = begin(p)
	}
}

// options are the supported options of matches. They return false if their arguments are not supported.
var options = map[string]func(p *parser, word string) bool{
	"-p": protocol,
	"-s": addrs(nftables.SrcAddr), "-d": addrs(nftables.DstAddr), "--src-range": addrs(nftables.SrcAddr), "--dst-range": addrs(nftables.DstAddr),
	"-i": iface((*nfteval.Passing).In), "-o": iface((*nfteval.Passing).Out),
	"-f":        func(p *parser, _ string) bool { return p.add(never) },
	"--comment": ignored, "--nfacct-name": ignored,
	"--dport": ports(true, false), "--dports": ports(true, false), "--sport": ports(false, true), "--sports": ports(false, true), "--ports": ports(true, true),
	"--tcp-flags": tcpFlags,
	"--icmp-type": icmpType, "--icmpv6-type": icmpType,
	"--state": states, "--ctstate": states,
	"--ctdir": direction, "--ctorigdst": originalAddr, "--ctorigdstport": originalPort,
	"--mark":      mark,
	"--match-set": matchSet,
	"--src-type":  addrTypeOf(nftables.SrcAddr), "--dst-type": addrTypeOf(nftables.DstAddr), "--limit-iface-in": limitInterface, "--limit-iface-out": limitInterface,
	"--physdev-is-in": physdev, "--physdev-in": physdev, "--physdev-is-out": physdev, "--physdev-out": physdev, "--physdev-is-bridged": physdev,
	"--loose": reversePathOption, "--validmark": reversePathOption, "--invert": reversePathOption, "--accept-local": reversePathOption,
	"--mode": statisticOption, "--probability": statisticOption, "--every": statisticOption, "--packet": statisticOption,
	"--rcheck": recentOption, "--set": recentOption, "--name": recentOption, "--seconds": recentOption, "--mask": recentOption, "--rsource": recentOption, "--reap": recentOption,
}

func never(*nfteval.Passing) answer { return is(false) }

func ignored(p *parser, _ string) bool {
	p.next()
	return true
}

// icmpType never matches, since packets of Services are not ICMP.
func icmpType(p *parser, _ string) bool {
	p.next()
	return p.add(never)
}

func protocol(p *parser, _ string) bool {
	name := p.next()
	want, known := iptparse.Protocol(name)
	every := name == "all" || name == "0"
	return p.add(func(q *nfteval.Passing) answer { return is(every || known && q.First().Protocol == want) })
}

// addrs parses an address, a prefix, a mask that is not a prefix, or a range.
func addrs(field nftables.Field) func(*parser, string) bool {
	return func(p *parser, _ string) bool {
		text := p.next()
		if a, m, masked := strings.Cut(text, "/"); masked && strings.ContainsAny(m, ".:") {
			addr, err1 := netip.ParseAddr(a)
			mask, err2 := netip.ParseAddr(m)
			if err1 != nil || err2 != nil {
				return p.unsupported("address " + text)
			}
			return p.add(func(q *nfteval.Passing) answer { return is(under(addressOf(q, field), mask) == under(addr, mask)) })
		}
		v, ok := parseAddrs(text)
		if !ok || strings.Contains(text, ":") != (p.family == ir.IPv6) {
			return p.unsupported("address " + text)
		}
		return p.add(func(q *nfteval.Passing) answer { return is(v.contains(addressOf(q, field))) })
	}
}

func addressOf(q *nfteval.Passing, field nftables.Field) netip.Addr {
	if field == nftables.SrcAddr {
		return q.Src()
	}
	return q.Dst()
}

// under returns the bits of an address under a mask.
func under(a, mask netip.Addr) netip.Addr {
	b, m := a.AsSlice(), mask.AsSlice()
	for i := range b {
		if i < len(m) {
			b[i] &= m[i]
		}
	}
	a, _ = netip.AddrFromSlice(b)
	return a
}

// iface compares the interface that of returns.
func iface(of func(*nfteval.Passing) (name string, known bool)) func(*parser, string) bool {
	return func(p *parser, _ string) bool {
		pattern := p.next()
		name, prefix := strings.CutSuffix(pattern, "+")
		with := sim.Interface{Name: name, Prefix: prefix}
		return p.add(func(q *nfteval.Passing) answer {
			got, known := of(q)
			if !known {
				return unsure("the interface of the packet is not known here")
			}
			return is(with.Matches(got) && (got != "" || pattern == "+"))
		})
	}
}

func tcpFlags(p *parser, _ string) bool {
	mask, set := flags(p.next()), flags(p.next())
	return p.add(func(q *nfteval.Passing) answer { return is(q.First().TCPFlags()&mask == set) })
}

func direction(p *parser, _ string) bool {
	original := p.next() == "ORIGINAL"
	return p.add(func(q *nfteval.Passing) answer { return is(q.Tracked() && original != q.First().Reply) })
}

func originalAddr(p *parser, _ string) bool {
	v, ok := parseAddrs(p.next())
	return ok && p.add(func(q *nfteval.Passing) answer { return is(q.Tracked() && v.contains(q.First().Dst)) })
}

func originalPort(p *parser, _ string) bool {
	ports, ok := iptparse.Ports(p.next(), ":")
	return ok && p.add(func(q *nfteval.Passing) answer { return is(q.Tracked() && in(ports, q.First().Port)) })
}

func mark(p *parser, _ string) bool {
	want, ok := iptparse.Mark(p.next(), math.MaxUint32)
	connection := p.module == "connmark"
	return ok && p.add(func(q *nfteval.Passing) answer {
		mark, ofConnection := q.Mark()
		if connection {
			mark = ofConnection
		}
		return is(mark&want.Mask == want.Value)
	})
}

func matchSet(p *parser, _ string) bool {
	name, fields := p.next(), strings.Split(p.next(), ",")
	return p.add(func(q *nfteval.Passing) answer { return p.sets.has(name, fields, q) })
}

// ports adds a match of the destination port, the source port, or either.
func ports(dst, src bool) func(*parser, string) bool {
	return func(p *parser, _ string) bool {
		var ranges []iptables.PortRange
		for text := range strings.SplitSeq(p.next(), ",") {
			r, ok := iptparse.Ports(text, ":")
			if !ok {
				return p.unsupported("port " + text)
			}
			ranges = append(ranges, r)
		}
		among := func(n uint16) bool {
			return slices.ContainsFunc(ranges, func(r iptables.PortRange) bool { return in(r, n) })
		}
		return p.add(func(q *nfteval.Passing) answer {
			switch {
			case dst && among(q.Port()):
				return is(true)
			case !src || len(ranges) == 1 && ranges[0] == (iptables.PortRange{Last: math.MaxUint16}):
				return is(src)
			case q.First().SrcPort == 0:
				return unsure(anySourcePort)
			}
			return is(among(q.First().SrcPort))
		})
	}
}

func in(r iptables.PortRange, port uint16) bool { return r.First <= port && port <= r.Last }

func flags(list string) (bits int) {
	for name := range strings.SplitSeq(list, ",") {
		switch i := slices.Index(sim.TCPFlags[:], strings.ToLower(name)); {
		case name == "ALL":
			bits |= 1<<6 - 1
		case i >= 0:
			bits |= 1 << i
		}
	}
	return bits
}

func states(p *parser, _ string) bool {
	want := strings.Split(p.next(), ",")
	return p.add(func(q *nfteval.Passing) answer {
		state := "INVALID" // without a conntrack entry
		if q.Untracked() {
			state = "UNTRACKED"
		} else if q.Tracked() {
			state = "NEW"
			if q.First().Later {
				state = "ESTABLISHED"
			}
		}
		dst, src := q.Translated()
		return is(slices.Contains(want, state) || dst && slices.Contains(want, "DNAT") || src && slices.Contains(want, "SNAT"))
	})
}

// addrType is one match of address types. It returns the interface that must have the address; nil
// for any.
type addrType struct {
	of func(*nfteval.Passing) (name string, known bool)
}

func limitInterface(p *parser, word string) bool {
	limit, ok := p.state.(*addrType)
	if ok {
		limit.of = (*nfteval.Passing).Out
	}
	if ok && word == "--limit-iface-in" {
		limit.of = (*nfteval.Passing).In
	}
	return ok
}

func addrTypeOf(field nftables.Field) func(*parser, string) bool {
	return func(p *parser, _ string) bool {
		limit, ok := p.state.(*addrType)
		switch kind := p.next(); {
		case ok && kind == "MULTICAST":
			return p.add(func(q *nfteval.Passing) answer { return is(addressOf(q, field).IsMulticast()) })
		case ok && kind == "LOCAL":
			return p.add(func(q *nfteval.Passing) answer { return limit.local(addressOf(q, field), q) })
		}
		return false
	}
}

func (t *addrType) local(a netip.Addr, q *nfteval.Passing) answer {
	if t.of == nil {
		return is(q.Own(a))
	}
	if on, known := t.of(q); known {
		if ok, known := q.Carries(a, on); known {
			return is(ok)
		}
	}
	return unsure("which interface has an address is not known")
}

func physdev(p *parser, word string) bool {
	name := ""
	if word == "--physdev-in" || word == "--physdev-out" {
		name = p.next()
	}
	return p.add(func(q *nfteval.Passing) answer {
		in, through, known := q.Bridged()
		if !known {
			return unsure("whether a bridge hands the packet on is not known")
		}
		through = through && in
		if word == "--physdev-is-out" || word == "--physdev-out" || word == "--physdev-is-bridged" {
			in = through
		}
		if name != "" && name != "+" && in {
			return unsure("the port of the bridge is not known")
		}
		return is(in)
	})
}

// reversePath is the match rpfilter.
type reversePath struct{ loose, marked, invert bool }

func newReversePath(p *parser) any {
	r := &reversePath{}
	p.add(func(q *nfteval.Passing) answer {
		ok, known := q.Returns(r.marked, r.loose)
		if !known {
			return unsure("the route to the source is not known")
		}
		return is(ok != r.invert)
	})
	return r
}

func reversePathOption(p *parser, word string) bool {
	r, ok := p.state.(*reversePath)
	if ok {
		r.loose, r.marked, r.invert = r.loose || word == "--loose", r.marked || word == "--validmark", r.invert || word == "--invert"
	}
	return ok
}

// statistic is the match of that name.
type statistic struct {
	share float64
	not   bool
}

func newStatistic(p *parser) any {
	s := &statistic{}
	p.r.late = append(p.r.late, func(q *nfteval.Passing) answer { return is(q.Choose(s.share) != s.not) })
	return s
}

func statisticOption(p *parser, word string) bool {
	s, ok := p.state.(*statistic)
	if !ok {
		return false
	}
	value := p.next()
	s.not = s.not || p.not
	n, err := strconv.ParseFloat(value, 64)
	switch word {
	case "--mode":
		return value == "random" || value == "nth"
	case "--probability":
		s.share = n
		if whole := math.Round(1 / n); n > 0 && math.Abs(1/whole-n) < 1e-9 {
			s.share = 1 / whole
		}
	case "--every":
		s.share = 1 / n
	}
	return err == nil
}

// recentList is the match recent.
type recentList struct {
	name    string
	set     bool
	seconds uint64
}

func newRecent(p *parser) any {
	l := &recentList{}
	p.r.late = append(p.r.late, func(q *nfteval.Passing) answer {
		if l.set {
			q.Remember(l.name)
			return is(true)
		}
		m := sim.Memory{Name: l.name, Timeout: time.Duration(l.seconds) * time.Second}
		if l.seconds == 0 {
			m.Timeout = sim.Forever
		}
		return is(q.Remembers(m))
	})
	return l
}

func recentOption(p *parser, word string) bool {
	l, ok := p.state.(*recentList)
	if !ok || p.not {
		return false
	}
	switch word {
	case "--set":
		l.set = true
	case "--name":
		l.name = p.next()
	case "--seconds":
		var err error
		l.seconds, err = strconv.ParseUint(p.next(), 10, 32)
		return err == nil
	case "--mask":
		mask := p.next()
		return mask == "255.255.255.255" || mask == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return true
}
