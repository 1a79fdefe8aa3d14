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
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// answer is the result of a match.
type answer uint8

const (
	no answer = iota
	yes
	unsure
)

func is(ok bool) answer {
	if ok {
		return yes
	}
	return no
}

// test is one match of a rule. why explains unsure.
type test func(p *nfteval.Passing) (a answer, why string)

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
			switch a, why := t(p); a {
			case no:
				return v
			case unsure:
				doubt = why
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
	for p.at < len(p.words) {
		p.option()
	}
	p.end()
	return nfteval.Foreign{Text: text, Run: p.r.run}
}

type parser struct {
	family ir.Family
	prefix string
	words  []string
	at     int
	sets   *Sets
	r      *rule

	not     bool
	module  string // of the last -m
	target  string
	odd     map[string]bool // unsupported modules
	rpf     *reversePath
	recent  *recentList
	chance  *statistic
	address *addrType
}

// next returns the argument of an option.
func (p *parser) next() string {
	if p.at >= len(p.words) {
		return ""
	}
	p.at++
	return p.words[p.at-1]
}

// add adds a match. It is negated after a "!".
func (p *parser) add(ask func(q *nfteval.Passing) answer) {
	p.addTest(func(q *nfteval.Passing) (answer, string) { return ask(q), "" })
}

func (p *parser) addTest(t test) {
	if p.not {
		p.not = false
		plain := t
		t = func(q *nfteval.Passing) (answer, string) {
			switch a, why := plain(q); a {
			case no:
				return yes, ""
			case yes:
				return no, ""
			default:
				return a, why
			}
		}
	}
	p.r.tests = append(p.r.tests, t)
}

// unsupported adds an unsupported match.
func (p *parser) unsupported(what string) {
	p.not = false
	if p.odd[what] {
		return
	}
	if p.odd == nil {
		p.odd = map[string]bool{}
	}
	p.odd[what] = true
	p.r.tests = append(p.r.tests, func(*nfteval.Passing) (answer, string) { return unsure, what + " is not understood" })
}

// modules are the supported matches; option parses their options.
var modules = []string{"tcp", "udp", "sctp", "icmp", "icmp6", "comment", "conntrack", "state", "mark", "connmark", "addrtype", "multiport", "set", "physdev",
	"rpfilter", "statistic", "recent", "iprange", "nfacct"}

func (p *parser) option() {
	word := p.next()
	switch word {
	case "!":
		p.not = true
		return
	case "-m":
		p.module = p.next()
		switch {
		case p.module == "rpfilter":
			p.rpf = &reversePath{}
		case p.module == "addrtype":
			p.address = &addrType{}
		case !slices.Contains(modules, p.module):
			p.unsupported("match " + p.module)
		}
		return
	case "-j", "-g":
		p.forwards(word, p.next())
		return
	case "-p":
		p.protocol(p.next())
		return
	case "-s":
		p.addrs(p.next(), nftables.SrcAddr)
		return
	case "-d":
		p.addrs(p.next(), nftables.DstAddr)
		return
	case "-i", "-o":
		p.iface(p.next(), word == "-i")
		return
	case "-f":
		p.add(func(*nfteval.Passing) answer { return no })
		return
	}
	if p.target != "" {
		p.targetOption(word)
		return
	}
	if p.moduleOption(word) {
		return
	}
	if strings.HasPrefix(word, "-") && !p.odd["match "+p.module] {
		p.unsupported(strings.TrimSpace("match " + p.module + " " + word))
	}
	p.not = false
}

// protocols are the numbers that iptables prints, of the protocols that packets
// may have.
var protocols = map[string]ir.Protocol{"6": ir.TCP, "17": ir.UDP, "132": ir.SCTP}

func (p *parser) protocol(name string) {
	want, known := protocols[name]
	if !known {
		want, known = ir.ParseProtocol(name)
	}
	every := name == "all" || name == "0"
	p.add(func(q *nfteval.Passing) answer { return is(every || known && q.First().Protocol == want) })
}

func (p *parser) addrs(text string, field nftables.Field) {
	if a, m, masked := strings.Cut(text, "/"); masked && strings.ContainsAny(m, ".:") { // a mask that is not a prefix
		addr, err1 := netip.ParseAddr(a)
		mask, err2 := netip.ParseAddr(m)
		if err1 != nil || err2 != nil {
			p.unsupported("address " + text)
			return
		}
		p.add(func(q *nfteval.Passing) answer { return is(under(addressOf(q, field), mask) == under(addr, mask)) })
		return
	}
	v, ok := parseAddrs(text)
	if !ok || !familyOf(p.family, text) {
		p.unsupported("address " + text)
		return
	}
	p.add(func(q *nfteval.Passing) answer { return is(v.contains(addressOf(q, field))) })
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

func (p *parser) iface(pattern string, in bool) {
	name, prefix := strings.CutSuffix(pattern, "+")
	with := sim.Interface{Name: name, Prefix: prefix}
	p.addTest(func(q *nfteval.Passing) (answer, string) {
		got, known := q.Out()
		if in {
			got, known = q.In()
		}
		if !known {
			return unsure, "the interface of the packet is not known here"
		}
		return is(with.Matches(got) && (got != "" || pattern == "+")), ""
	})
}

// moduleOption parses an option of a match. It returns false if the option is not
// supported.
func (p *parser) moduleOption(word string) bool {
	switch word {
	case "--comment", "--nfacct-name":
		p.next()
	case "--dport", "--sport":
		p.ports([]string{p.next()}, word == "--dport", word == "--sport")
	case "--dports", "--sports", "--ports":
		p.ports(strings.Split(p.next(), ","), word != "--sports", word != "--dports")
	case "--tcp-flags":
		mask, set := flags(p.next()), flags(p.next())
		p.add(func(q *nfteval.Passing) answer { return is(q.First().Protocol == ir.TCP && syn&mask == set) })
	case "--icmp-type", "--icmpv6-type":
		p.next()
		p.add(func(*nfteval.Passing) answer { return no })
	case "--state", "--ctstate":
		p.states(strings.Split(p.next(), ","))
	case "--ctdir":
		original := p.next() == "ORIGINAL"
		p.add(func(q *nfteval.Passing) answer { return is(q.Tracked() && original) })
	case "--ctorigdst":
		v, ok := parseAddrs(p.next())
		if !ok {
			return false
		}
		p.add(func(q *nfteval.Passing) answer { return is(q.Tracked() && v.contains(q.First().Dst)) })
	case "--ctorigdstport":
		low, high, ok := parsePorts(p.next(), ":")
		if !ok {
			return false
		}
		p.add(func(q *nfteval.Passing) answer {
			return is(q.Tracked() && low <= q.First().Port && q.First().Port <= high)
		})
	case "--mark":
		value, mask, ok := markOf(p.next())
		if !ok {
			return false
		}
		connection := p.module == "connmark"
		p.add(func(q *nfteval.Passing) answer {
			mark, of := q.Mark()
			if connection {
				mark = of
			}
			return is(mark&mask == value)
		})
	case "--src-range", "--dst-range":
		v, ok := parseAddrs(p.next())
		field := map[bool]nftables.Field{true: nftables.SrcAddr, false: nftables.DstAddr}[word == "--src-range"]
		if !ok {
			return false
		}
		p.add(func(q *nfteval.Passing) answer { return is(v.contains(addressOf(q, field))) })
	case "--match-set":
		name, fields := p.next(), strings.Split(p.next(), ",")
		p.addTest(func(q *nfteval.Passing) (answer, string) { return p.sets.has(name, fields, q) })
	case "--src-type", "--dst-type", "--limit-iface-in", "--limit-iface-out":
		return p.addrType(word)
	case "--physdev-is-in", "--physdev-is-out", "--physdev-is-bridged", "--physdev-in", "--physdev-out":
		p.physdev(word)
	case "--loose", "--validmark", "--invert", "--accept-local":
		return p.rpf.option(word)
	case "--mode", "--probability", "--every", "--packet":
		return p.statisticOption(word)
	default:
		return p.module == "recent" && p.recentOption(word)
	}
	return true
}

// ports adds a match of the destination port, the source port, or either.
func (p *parser) ports(list []string, dst, src bool) {
	var ranges [][2]uint16
	for _, text := range list {
		low, high, ok := parsePorts(text, ":")
		if !ok {
			p.unsupported("port " + text)
			return
		}
		ranges = append(ranges, [2]uint16{low, high})
	}
	in := func(n uint16) bool {
		return slices.ContainsFunc(ranges, func(r [2]uint16) bool { return r[0] <= n && n <= r[1] })
	}
	p.addTest(func(q *nfteval.Passing) (answer, string) {
		if dst && in(q.Port()) {
			return yes, ""
		}
		if !src || len(ranges) == 1 && ranges[0] == [2]uint16{0, math.MaxUint16} {
			return is(src), ""
		}
		if q.First().SrcPort == 0 {
			return unsure, anySourcePort
		}
		return is(in(q.First().SrcPort)), ""
	})
}

const syn = 1 << 1

func flags(list string) (bits uint) {
	for name := range strings.SplitSeq(list, ",") {
		switch i := slices.Index([]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"}, name); {
		case name == "ALL":
			bits |= 1<<6 - 1
		case i >= 0:
			bits |= 1 << i
		}
	}
	return bits
}

func (p *parser) states(want []string) {
	p.addTest(func(q *nfteval.Passing) (answer, string) {
		state := "INVALID" // without a conntrack entry
		if q.Untracked() {
			state = "UNTRACKED"
		} else if q.Tracked() {
			state = "NEW"
		}
		dst, src := q.Translated()
		return is(slices.Contains(want, state) || dst && slices.Contains(want, "DNAT") || src && slices.Contains(want, "SNAT")), ""
	})
}

// markOf parses VALUE or VALUE/MASK.
func markOf(text string) (value, mask uint32, ok bool) {
	a, b, masked := strings.Cut(text, "/")
	v, err := strconv.ParseUint(a, 0, 32)
	m := uint64(math.MaxUint32)
	if err == nil && masked {
		m, err = strconv.ParseUint(b, 0, 32)
	}
	return uint32(v), uint32(m), err == nil
}

// addrType is one match of address types.
type addrType struct{ in, out bool }

func (p *parser) addrType(word string) bool {
	switch word {
	case "--limit-iface-in", "--limit-iface-out":
		if p.address == nil {
			return false
		}
		p.address.in, p.address.out = word == "--limit-iface-in", word == "--limit-iface-out"
		return true
	}
	kind := p.next()
	limit := p.address
	if limit == nil {
		return false
	}
	field := map[bool]nftables.Field{true: nftables.SrcAddr, false: nftables.DstAddr}[word == "--src-type"]
	switch kind {
	case "MULTICAST":
		p.add(func(q *nfteval.Passing) answer { return is(addressOf(q, field).IsMulticast()) })
	case "LOCAL":
		p.addTest(func(q *nfteval.Passing) (answer, string) {
			a := addressOf(q, field)
			on, known := "", true
			switch {
			case limit.in:
				on, known = q.In()
			case limit.out:
				on, known = q.Out()
			default:
				return is(q.Own(a)), ""
			}
			if known {
				var ok bool
				if ok, known = q.Carries(a, on); known {
					return is(ok), ""
				}
			}
			return unsure, "which interface has an address is not known"
		})
	default:
		return false
	}
	return true
}

func (p *parser) physdev(word string) {
	name := ""
	if word == "--physdev-in" || word == "--physdev-out" {
		name = p.next()
	}
	p.addTest(func(q *nfteval.Passing) (answer, string) {
		in, through, known := q.Bridged()
		if !known {
			return unsure, "whether a bridge hands the packet on is not known"
		}
		through = through && in
		if word == "--physdev-is-out" || word == "--physdev-out" || word == "--physdev-is-bridged" {
			in = through
		}
		if name != "" && name != "+" && in {
			return unsure, "the port of the bridge is not known"
		}
		return is(in), ""
	})
}

// reversePath is the match rpfilter.
type reversePath struct{ loose, marked, invert bool }

func (r *reversePath) option(word string) bool {
	if r == nil {
		return false
	}
	r.loose = r.loose || word == "--loose"
	r.marked = r.marked || word == "--validmark"
	r.invert = r.invert || word == "--invert"
	return true
}

// statistic is the match of that name.
type statistic struct {
	share float64
	not   bool
}

func (p *parser) statisticOption(word string) bool {
	if p.chance == nil {
		p.chance = &statistic{}
		s := p.chance
		p.r.late = append(p.r.late, func(q *nfteval.Passing) (answer, string) { return is(q.Choose(s.share) != s.not), "" })
	}
	s := p.chance
	value := p.next()
	s.not = s.not || p.not
	p.not = false
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

func (p *parser) recentOption(word string) bool {
	if p.recent == nil {
		if p.not {
			return false
		}
		p.recent = &recentList{}
		l := p.recent
		p.r.late = append(p.r.late, func(q *nfteval.Passing) (answer, string) {
			if l.set {
				q.Remember(l.name)
				return yes, ""
			}
			m := sim.Memory{Name: l.name, Timeout: time.Duration(l.seconds) * time.Second}
			if l.seconds == 0 {
				m.Timeout = sim.Forever
			}
			return is(q.Remembers(m)), ""
		})
	}
	switch l := p.recent; word {
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
	case "--rcheck", "--rsource", "--reap":
	default:
		return false
	}
	return true
}

// end completes matches that consist of several options.
func (p *parser) end() {
	if r := p.rpf; r != nil {
		p.addTest(func(q *nfteval.Passing) (answer, string) {
			ok, known := q.Returns(r.marked, r.loose)
			if !known {
				return unsure, "the route to the source is not known"
			}
			return is(ok != r.invert), ""
		})
	}
}
