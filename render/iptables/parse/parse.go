package parse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Parse parses the output of iptables-save or ip6tables-save, or of WriteTo: our
// chains, and the jumps to them from built-in chains. It ignores foreign rules.
// An unknown rule in our chains is kept as Raw.
func Parse(f ir.Family, saved string) (*iptables.Ruleset, error) {
	p := NewParser(f)
	io.WriteString(p, saved) // never fails
	return p.Ruleset()
}

// A Parser is Parse for text that is written in pieces. It keeps only names and
// comments of the text, without duplicates.
type Parser struct {
	family ir.Family
	found  *iptables.Ruleset
	table  *iptables.Table
	open   string         // the table without a COMMIT so far
	chains map[string]int // index into table.Chains
	chain  int            // chain of the collected rules
	rules  []iptables.Rule
	kept   map[string]string
	begun  []byte // an incomplete line
	lines  int
	err    error // the first error

	whole bool            // keep the chains of all programs
	drops map[string]bool // with whole: chains with policy DROP, such as "filter FORWARD"
}

var _ io.Writer = (*Parser)(nil)

// NewParser returns a Parser for texts of a family.
func NewParser(f ir.Family) *Parser {
	return &Parser{
		family: f, kept: map[string]string{},
		found: &iptables.Ruleset{Family: f, Filter: iptables.Table{Name: "filter"}, Nat: iptables.Table{Name: "nat"}},
	}
}

// Write parses the next piece. It never fails; Ruleset returns the error.
func (p *Parser) Write(text []byte) (int, error) {
	n := len(text)
	for p.err == nil {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			p.begun = append(p.begun, text...)
			break
		}
		p.begun = append(p.begun, text[:i]...)
		text = text[i+1:]
		p.next(string(p.begun))
		p.begun = p.begun[:0]
	}
	return n, nil
}

// Ruleset ends the text and returns its content.
func (p *Parser) Ruleset() (*iptables.Ruleset, error) {
	if p.err == nil {
		p.next(string(p.begun))
	}
	if p.err == nil && p.open != "" {
		p.err = fmt.Errorf("cut off: %w", noCommit(p.open))
	}
	if p.err != nil {
		return nil, p.err
	}
	p.flush()
	return p.found, nil
}

func (p *Parser) next(line string) {
	p.lines++
	if name, ok := strings.CutPrefix(line, "*"); ok && p.open != "" {
		p.err = fmt.Errorf("line %d: %q: %w", p.lines, line, noCommit(p.open))
	} else if ok {
		p.open = name
		p.begin(name)
	} else if line == "COMMIT" {
		p.open = ""
	} else if p.table != nil && line != "" {
		if err := p.line(line); err != nil {
			p.err = fmt.Errorf("line %d: %q: %w", p.lines, line, err)
		}
	}
}

func (p *Parser) begin(name string) {
	p.flush()
	p.table, p.chains = nil, map[string]int{}
	for _, t := range p.found.Tables() {
		if t.Name == name {
			p.table = t
			if len(t.Chains)+len(t.Jumps) > 0 && p.err == nil {
				p.err = fmt.Errorf("line %d: table %s is there twice", p.lines, name)
			}
		}
	}
}

// add adds a rule to a chain. The tools print all rules of a chain together, so
// they are collected first to allocate the exact size.
func (p *Parser) add(chain int, r iptables.Rule) {
	if chain != p.chain {
		p.flush()
		p.chain = chain
	}
	p.rules = append(p.rules, r)
}

func (p *Parser) flush() {
	if len(p.rules) > 0 {
		c := &p.table.Chains[p.chain]
		c.Rules = slices.Concat(c.Rules, p.rules)
		p.rules = p.rules[:0]
	}
}

// keep returns a copy of a string that does not retain the memory of its line.
func (p *Parser) keep(s string) string {
	if s == "" {
		return ""
	}
	k, ok := p.kept[s]
	if !ok {
		k = strings.Clone(s)
		p.kept[k] = k
	}
	return k
}

func ours(chain string) bool { return iptables.Owned(chain) || iptables.Shared(chain) }

// counters matches the counters before a rule in iptables-save -c.
var counters = regexp.MustCompile(`^\[\d+:\d+\] `)

func (p *Parser) line(line string) error {
	if line[0] == '[' {
		line = counters.ReplaceAllString(line, "")
	}
	switch {
	case line[0] == '#', line == "COMMIT":
	case line[0] == ':':
		name, _, _ := strings.Cut(line[1:], " ")
		if _, twice := p.chains[name]; twice {
			return fmt.Errorf("chain %s is there twice", name)
		}
		if p.whole && strings.HasPrefix(line[1+len(name):], " DROP") {
			if p.drops == nil {
				p.drops = map[string]bool{}
			}
			p.drops[p.table.Name+" "+name] = true
		}
		if p.whole || ours(name) {
			name = p.keep(name)
			p.chains[name] = len(p.table.Chains)
			p.table.Chains = append(p.table.Chains, iptables.Chain{Name: name})
		}
	case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "):
		chain, rest, _ := strings.Cut(line[3:], " ")
		rest = strings.TrimRight(rest, " ")
		if p.whole || ours(chain) {
			if line[1] == 'I' {
				return errors.New("enters a rule before others, as iptables-save does not")
			}
			i, ok := p.chains[chain]
			if !ok {
				return fmt.Errorf("chain %s was not declared", chain)
			}
			p.add(i, p.rule(rest))
			return nil
		}
		if !strings.Contains(rest, "KUBE-") {
			return nil
		}
		h := iptables.BuiltInJump{Chain: p.keep(chain), Rule: p.rule(rest), Text: p.keep(rest)}
		switch {
		case !ours(h.Rule.Chain):
		case !iptables.BuiltIn(chain):
			p.table.Pinned = append(p.table.Pinned, h.Rule.Chain)
		case line[1] == 'I':
			p.table.Jumps = append([]iptables.BuiltInJump{h}, p.table.Jumps...)
		default:
			p.table.Jumps = append(p.table.Jumps, h)
		}
	default:
		return errNotSaved
	}
	return nil
}

// rule parses the text of a rule without retaining it.
func (p *Parser) rule(text string) iptables.Rule {
	r := parseRule(p.family, text)
	for _, s := range [...]*string{&r.In, &r.Comment, &r.Chain, &r.Recent.Name, &r.Raw} {
		*s = p.keep(*s)
	}
	if set, ok := r.Rare.(iptables.InSet); ok {
		r.Rare = iptables.InSet{Set: p.keep(set.Set), Fields: p.keep(set.Fields)}
	}
	return r
}

// parseRule parses the text of a rule after its chain. Anything unknown makes the
// whole rule Raw. Its target remains set, for callers that follow jumps.
func parseRule(f ir.Family, text string) iptables.Rule {
	var options [24]string
	var matches [8]string
	p := ruleParser{family: f, rest: text, options: options[:0], matches: matches[:0]}
	for {
		word, ok := p.next()
		if !ok {
			break
		}
		if word == "!" {
			p.bad = p.bad || p.not
			p.not = true
			continue
		}
		if word != "-m" && slices.Contains(p.options, word) || !p.option(word) {
			p.bad = true
		}
		p.not = false
		p.options = append(p.options, word)
	}
	if p.bad || p.not || !p.complete() {
		return iptables.Rule{Raw: text, Target: p.rule.Target, Chain: p.rule.Chain}
	}
	return p.rule
}

type ruleParser struct {
	family ir.Family
	rest   string
	rule   iptables.Rule
	not    bool // the next option is negated
	bad    bool
	reap   bool

	options []string // parsed options, without duplicates
	matches []string // matches loaded with -m
}

// next returns the next word; false at the end.
func (p *ruleParser) next() (string, bool) {
	word, behind, whole := cutWord(p.rest)
	found := behind != p.rest
	p.rest, p.bad = behind, p.bad || !whole
	return word, found
}

// value returns the argument of an option, or "".
func (p *ruleParser) value() string {
	word, _ := p.next()
	return word
}

// is reports whether the option's argument is the only one that our rules use.
func (p *ruleParser) is(want string) bool { return p.value() == want }

// negate records a pending negation for m. It returns true.
func (p *ruleParser) negate(m iptables.Match) bool {
	if p.not {
		p.rule.Not |= m
		p.not = false
	}
	return true
}

func (p *ruleParser) option(word string) bool {
	r := &p.rule
	switch word {
	case "-s":
		return p.prefix(&r.Src) && p.negate(iptables.Src)
	case "-d":
		return p.prefix(&r.Dst) && p.negate(iptables.Dst)
	case "-i":
		r.In = p.value()
		return r.In != "" && p.negate(iptables.In)
	case "--ctstate":
		return p.states() && p.negate(iptables.States)
	case "--mark":
		return p.mark(&r.Mark, 0xffffffff) && r.Mark.Mask != 0 && p.negate(iptables.MarkMatch)
	case "--src-type":
		r.SrcLocal = true
		return p.is("LOCAL") && p.negate(iptables.SrcType)
	case "--physdev-is-in":
		return p.not && p.negate(iptables.Bridged)
	}
	if p.not {
		return false
	}
	switch word {
	case "-p":
		var ok bool
		r.Protocol, ok = ir.ParseProtocol(p.value())
		return ok
	case "-m":
		p.matches = append(p.matches, p.value())
	case "--dport":
		return p.ports()
	case "--comment":
		r.Comment = p.value()
		return r.Comment != ""
	case "--match-set":
		return p.inSet()
	case "--vaddr", "--vproto", "--vport":
		return p.balanced(word)
	case "--nfacct-name":
		fresh := r.Rare == nil
		counter := iptables.Counted{Name: p.value()}
		r.Rare = counter
		return fresh && counter.Name != "" && isWord(counter.Name)
	case "--dst-type":
		r.DstLocal = true
		return p.is("LOCAL")
	case "--mode":
		return p.is("random")
	case "--probability":
		return p.probability()
	case "-j":
		return p.target(p.value())
	case "-g":
		p.target(p.value())
		return false
	case "--to-destination":
		var err error
		r.To, err = netip.ParseAddrPort(p.value())
		return err == nil && p.family.Has(r.To.Addr())
	case "--to-ports":
		n, err := strconv.ParseUint(p.value(), 10, 16)
		r.To = netip.AddrPortFrom(netip.Addr{}, uint16(n))
		return err == nil && n != 0
	case "--set-xmark":
		return p.mark(&r.XMark, 0xffffffff)
	case "--or-mark":
		ok := p.mark(&r.XMark, 0)
		r.XMark.Mask = r.XMark.Value
		return ok
	case "--xor-mark":
		return p.mark(&r.XMark, 0)
	case "--reject-with":
		if p.family == ir.IPv6 {
			return p.is("icmp6-port-unreachable")
		}
		return p.is("icmp-port-unreachable")
	case "--random-fully":
		r.RandomFully = true
	default:
		return p.recent(word)
	}
	return true
}

func (p *ruleParser) inSet() bool {
	fresh := p.rule.Rare == nil
	set := iptables.InSet{Set: p.value(), Fields: p.value()}
	p.rule.Rare = set
	return fresh && set.Fields != "" && isWord(set.Set) && isWord(set.Fields)
}

// balanced parses an option of the ipvs match. The tools print the protocol as a
// number.
func (p *ruleParser) balanced(option string) bool {
	m, ok := p.rule.Rare.(iptables.Balanced)
	if !ok && p.rule.Rare != nil {
		return false
	}
	value := p.value()
	switch option {
	case "--vaddr":
		var err error
		m.Addr, err = netip.ParseAddr(value)
		ok = err == nil && p.family.Has(m.Addr)
	case "--vproto":
		m.Protocol, ok = ir.ParseProtocol(value)
		for _, known := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
			if value == strconv.Itoa(int(known)) {
				m.Protocol, ok = known, true
			}
		}
	case "--vport":
		n, err := strconv.ParseUint(value, 10, 16)
		m.Port, ok = uint16(n), err == nil && n != 0
	}
	p.rule.Rare = m
	return ok
}

func (p *ruleParser) recent(word string) bool {
	r := &p.rule.Recent
	switch word {
	case "--rcheck":
		r.Op = iptables.RecentCheck
	case "--set":
		r.Op = iptables.RecentSet
	case "--seconds":
		n, err := strconv.ParseUint(p.value(), 10, 32)
		r.Seconds = uint32(n)
		return err == nil
	case "--reap":
		p.reap = true
	case "--name":
		r.Name = p.value()
	case "--mask":
		mask := p.value()
		return mask == "255.255.255.255" || mask == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	case "--rsource":
	default:
		return false
	}
	return true
}

// complete reports whether the options form one of our rules: each parameter has
// its match or target, and none is without effect.
func (p *ruleParser) complete() bool {
	r := &p.rule
	for _, m := range p.matches {
		if !p.used(m) {
			return false
		}
	}
	if r.OneIn > 1 && r.Recent.Op != iptables.RecentNone {
		return false // the order of evaluation matters
	}
	if r.Recent.Op == iptables.RecentNone && r.Recent != (iptables.Recent{}) || p.reap != (r.Recent.Op == iptables.RecentCheck) {
		return false
	}
	if m, ok := r.Rare.(iptables.Balanced); ok && (!m.Addr.IsValid() || m.Protocol == 0 || m.Port == 0) {
		return false
	}
	return (r.Ports == iptables.PortRange{} || r.Protocol != 0) &&
		(r.Target == iptables.SetMark || r.XMark == iptables.Mark{}) &&
		r.To.IsValid() == (r.Target == iptables.DNAT) &&
		(r.To.Port() != 0 && !r.To.IsValid()) == (r.Target == iptables.Redirect) &&
		(r.Target == iptables.Masquerade || !r.RandomFully) &&
		r.OneIn != 1 &&
		isWord(r.In) && isWord(r.Chain) && isWord(r.Recent.Name)
}

// used reports whether a match loaded with -m is one of ours and has its options.
// Without options, a match may have another meaning.
func (p *ruleParser) used(match string) bool {
	r := &p.rule
	switch match {
	case "tcp", "udp", "sctp":
		protocol, _ := ir.ParseProtocol(match)
		return r.Protocol == protocol
	case "comment":
		return r.Comment != ""
	case "conntrack":
		return r.States != 0
	case "mark":
		return r.Mark.Mask != 0
	case "addrtype":
		return r.SrcLocal || r.DstLocal
	case "statistic":
		return r.OneIn > 1
	case "recent":
		return r.Recent.Op != iptables.RecentNone
	case "physdev":
		return r.Not&iptables.Bridged != 0
	}
	switch r.Rare.(type) {
	case iptables.InSet:
		return match == "set"
	case iptables.Balanced:
		return match == "ipvs"
	case iptables.Counted:
		return match == "nfacct"
	}
	return false
}

// isWord reports whether the tools parse s as one word.
func isWord(s string) bool { return !strings.ContainsAny(s, " \"\\") }

func (p *ruleParser) prefix(to *netip.Prefix) bool {
	text := p.value()
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		*to = iptables.Single(a)
		return err == nil && p.family.Has(a)
	}
	var err error
	*to, err = netip.ParsePrefix(text)
	return err == nil && p.family.Has(to.Addr()) && to.Bits() > 0 && *to == to.Masked()
}

func (p *ruleParser) ports() bool {
	first, last, ranged := strings.Cut(p.value(), ":")
	if !ranged {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	p.rule.Ports = iptables.PortRange{First: uint16(a), Last: uint16(b)}
	return err1 == nil && err2 == nil && p.rule.Ports != iptables.PortRange{}
}

func (p *ruleParser) states() bool {
	for word := range strings.SplitSeq(p.value(), ",") {
		state, known := iptables.ParseState(word)
		if !known {
			return false
		}
		p.rule.States |= state
	}
	return true
}

// mark parses VALUE or VALUE/MASK.
func (p *ruleParser) mark(m *iptables.Mark, mask uint32) bool {
	value, maskText, masked := strings.Cut(p.value(), "/")
	v, err := strconv.ParseUint(value, 0, 32)
	m.Value, m.Mask = uint32(v), mask
	if err == nil && masked {
		v, err = strconv.ParseUint(maskText, 0, 32)
		m.Mask = uint32(v)
	}
	return err == nil
}

// probability parses a share. It sets OneIn to the n whose fraction 1/n the kernel
// stores as the same value, in units of 1/2³¹.
func (p *ruleParser) probability() bool {
	share, err := strconv.ParseFloat(p.value(), 64)
	if err != nil || share <= 0 || share > 1 {
		return false
	}
	n := math.Round(1 / share)
	const unit = 1 << 31
	p.rule.OneIn = uint32(n)
	return n <= math.MaxUint32 && math.Abs(math.Round(share*unit)-math.Round(unit/n)) <= 1
}

func (p *ruleParser) target(name string) bool {
	r := &p.rule
	switch name {
	case "RETURN":
		r.Target = iptables.Return
	case "ACCEPT":
		r.Target = iptables.Accept
	case "DROP":
		r.Target = iptables.Drop
	case "REJECT":
		r.Target = iptables.Reject
	case "MARK":
		r.Target = iptables.SetMark
	case "MASQUERADE":
		r.Target = iptables.Masquerade
	case "DNAT":
		r.Target = iptables.DNAT
	case "REDIRECT":
		r.Target = iptables.Redirect
	default:
		r.Target, r.Chain = iptables.Jump, name
	}
	return name != ""
}
