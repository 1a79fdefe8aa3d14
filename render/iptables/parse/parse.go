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

// Parse parses the output of iptables-save or ip6tables-save, or of Write: our
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

	rule  ruleParser
	drops map[string]bool // chains with policy DROP, such as "filter FORWARD"; nil to ignore the chains of other programs
}

var _ io.Writer = (*Parser)(nil)

// NewParser returns a Parser for texts of a family.
func NewParser(f ir.Family) *Parser {
	return &Parser{
		rule: ruleParser{family: f}, kept: map[string]string{},
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
		return p.declare(line[1:])
	case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "):
		chain, rest, _ := strings.Cut(line[3:], " ")
		rest = strings.TrimRight(rest, " ")
		if p.drops != nil || ours(chain) {
			if line[1] == 'I' {
				return errors.New("enters a rule before others, as iptables-save does not")
			}
			i, ok := p.chains[chain]
			if !ok {
				return fmt.Errorf("chain %s was not declared", chain)
			}
			p.add(i, p.parse(rest))
			return nil
		}
		if !strings.Contains(rest, "KUBE-") {
			return nil
		}
		h := iptables.BuiltInJump{Chain: p.keep(chain), Rule: p.parse(rest), Text: p.keep(rest)}
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

// declare parses the declaration of a chain after its colon.
func (p *Parser) declare(text string) error {
	name, policy, _ := strings.Cut(text, " ")
	if _, twice := p.chains[name]; twice {
		return fmt.Errorf("chain %s is there twice", name)
	}
	whole := p.drops != nil
	if whole && strings.HasPrefix(policy, "DROP") {
		p.drops[p.table.Name+" "+name] = true
	}
	if whole || ours(name) {
		name = p.keep(name)
		p.chains[name] = len(p.table.Chains)
		p.table.Chains = append(p.table.Chains, iptables.Chain{Name: name})
	}
	return nil
}

// parse parses the text of a rule without retaining it.
func (p *Parser) parse(text string) iptables.Rule {
	r := p.rule.parse(text)
	for _, s := range [...]*string{&r.In, &r.Comment, &r.Chain, &r.Recent.Name, &r.Raw} {
		*s = p.keep(*s)
	}
	if set, ok := r.Rare.(iptables.InSet); ok {
		r.Rare = iptables.InSet{Set: p.keep(set.Set), Fields: p.keep(set.Fields)}
	}
	return r
}

// ruleParser parses the texts of rules after their chain.
type ruleParser struct {
	family ir.Family
	rest   string
	rule   iptables.Rule
	not    bool // the next option is negated
	bad    bool

	options []string // parsed options, without duplicates
	matches []string // matches loaded with -m
}

// parseRule parses the text of a rule after its chain.
func parseRule(f ir.Family, text string) iptables.Rule { return (&ruleParser{family: f}).parse(text) }

// parse parses a rule. Anything unknown makes the whole rule Raw. Its target
// remains set, for callers that follow jumps.
func (p *ruleParser) parse(text string) iptables.Rule {
	*p = ruleParser{family: p.family, rest: text, options: p.options[:0], matches: p.matches[:0]}
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

// is reports whether the option's argument is one that our rules use.
func (p *ruleParser) is(want ...string) bool { return slices.Contains(want, p.value()) }

// option is an option of our rules.
type option struct {
	match string         // of -m, that the option gives a meaning
	not   iptables.Match // that a "!" before the option negates; 0 if it must not be negated
	// parse returns false for an argument that our rules do not use.
	parse func(*ruleParser) bool
}

var options = map[string]option{
	"-s":               {"", iptables.Src, func(p *ruleParser) bool { return p.prefix(&p.rule.Src) }},
	"-d":               {"", iptables.Dst, func(p *ruleParser) bool { return p.prefix(&p.rule.Dst) }},
	"-i":               {"", iptables.In, func(p *ruleParser) bool { return p.text(&p.rule.In) }},
	"-p":               {"", 0, protocol},
	"-m":               {"", 0, func(p *ruleParser) bool { return set(&p.matches, append(p.matches, p.value())) }},
	"--ctstate":        {"conntrack", iptables.States, states},
	"--mark":           {"mark", iptables.MarkMatch, func(p *ruleParser) bool { return p.mark(&p.rule.Mark, 0xffffffff) && p.rule.Mark.Mask != 0 }},
	"--src-type":       {"addrtype", iptables.SrcType, func(p *ruleParser) bool { return set(&p.rule.SrcLocal, true) && p.is("LOCAL") }},
	"--dst-type":       {"addrtype", 0, func(p *ruleParser) bool { return set(&p.rule.DstLocal, true) && p.is("LOCAL") }},
	"--physdev-is-in":  {"physdev", iptables.Bridged, func(p *ruleParser) bool { return p.not }},
	"--dport":          {"", 0, ports},
	"--comment":        {"comment", 0, func(p *ruleParser) bool { return p.text(&p.rule.Comment) }},
	"--match-set":      {"set", 0, inSet},
	"--nfacct-name":    {"nfacct", 0, counted},
	"--vaddr":          {"ipvs", 0, balanced(virtualAddr)},
	"--vproto":         {"ipvs", 0, balanced(virtualProtocol)},
	"--vport":          {"ipvs", 0, balanced(func(p *ruleParser, m *iptables.Balanced) bool { return p.port(&m.Port) })},
	"--mode":           {"", 0, func(p *ruleParser) bool { return p.is("random") }},
	"--probability":    {"statistic", 0, probability},
	"--rcheck":         {"recent", 0, func(p *ruleParser) bool { return set(&p.rule.Recent.Op, iptables.RecentCheck) }},
	"--set":            {"recent", 0, func(p *ruleParser) bool { return set(&p.rule.Recent.Op, iptables.RecentSet) }},
	"--seconds":        {"", 0, seconds},
	"--name":           {"", 0, func(p *ruleParser) bool { return set(&p.rule.Recent.Name, p.value()) }},
	"--mask":           {"", 0, func(p *ruleParser) bool { return p.is("255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") }},
	"--reap":           {"", 0, func(*ruleParser) bool { return true }},
	"--rsource":        {"", 0, func(*ruleParser) bool { return true }},
	"-j":               {"", 0, target},
	"-g":               {"", 0, func(p *ruleParser) bool { target(p); return false }}, // no rule of ours has it
	"--to-destination": {"", 0, destination},
	"--to-ports":       {"", 0, redirect},
	"--set-xmark":      {"", 0, func(p *ruleParser) bool { return p.mark(&p.rule.XMark, 0xffffffff) }},
	"--or-mark":        {"", 0, orMark},
	"--xor-mark":       {"", 0, func(p *ruleParser) bool { return p.mark(&p.rule.XMark, 0) }},
	"--reject-with":    {"", 0, rejection},
	"--random-fully":   {"", 0, func(p *ruleParser) bool { return set(&p.rule.RandomFully, true) }},
}

// set assigns a value, and returns true.
func set[T any](to *T, value T) bool {
	*to = value
	return true
}

func (p *ruleParser) option(word string) bool {
	o, known := options[word]
	if !known || p.not && o.not == 0 || !o.parse(p) {
		return false
	}
	if p.not {
		p.rule.Not |= o.not
	}
	return true
}

func (p *ruleParser) text(to *string) bool {
	*to = p.value()
	return *to != ""
}

func (p *ruleParser) port(to *uint16) bool {
	n, err := strconv.ParseUint(p.value(), 10, 16)
	*to = uint16(n)
	return err == nil && n != 0
}

func protocol(p *ruleParser) (ok bool) {
	p.rule.Protocol, ok = ir.ParseProtocol(p.value())
	return ok
}

func inSet(p *ruleParser) bool {
	fresh := p.rule.Rare == nil
	set := iptables.InSet{Set: p.value(), Fields: p.value()}
	p.rule.Rare = set
	return fresh && set.Fields != "" && isWord(set.Set) && isWord(set.Fields)
}

func counted(p *ruleParser) bool {
	fresh := p.rule.Rare == nil
	counter := iptables.Counted{Name: p.value()}
	p.rule.Rare = counter
	return fresh && counter.Name != "" && isWord(counter.Name)
}

// balanced returns the parser of an option of the ipvs match.
func balanced(parse func(*ruleParser, *iptables.Balanced) bool) func(*ruleParser) bool {
	return func(p *ruleParser) bool {
		m, isIPVS := p.rule.Rare.(iptables.Balanced)
		if !isIPVS && p.rule.Rare != nil {
			return false
		}
		ok := parse(p, &m)
		p.rule.Rare = m
		return ok
	}
}

func virtualAddr(p *ruleParser, m *iptables.Balanced) bool {
	var err error
	m.Addr, err = netip.ParseAddr(p.value())
	return err == nil && p.family.Has(m.Addr)
}

func virtualProtocol(p *ruleParser, m *iptables.Balanced) (ok bool) {
	m.Protocol, ok = Protocol(p.value())
	return ok
}

func seconds(p *ruleParser) bool {
	n, err := strconv.ParseUint(p.value(), 10, 32)
	p.rule.Recent.Seconds = uint32(n)
	return err == nil
}

func destination(p *ruleParser) bool {
	var err error
	p.rule.To, err = netip.ParseAddrPort(p.value())
	return err == nil && p.family.Has(p.rule.To.Addr())
}

func redirect(p *ruleParser) bool {
	var port uint16
	ok := p.port(&port)
	p.rule.To = netip.AddrPortFrom(netip.Addr{}, port)
	return ok
}

func orMark(p *ruleParser) bool {
	ok := p.mark(&p.rule.XMark, 0)
	p.rule.XMark.Mask = p.rule.XMark.Value
	return ok
}

func rejection(p *ruleParser) bool {
	return p.is(ir.Pick(p.family, "icmp-port-unreachable", "icmp6-port-unreachable"))
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
	if m, ok := r.Rare.(iptables.Balanced); ok && (!m.Addr.IsValid() || m.Protocol == 0 || m.Port == 0) {
		return false
	}
	return p.recentComplete() && p.targetComplete() && (r.Ports == iptables.PortRange{} || r.Protocol != 0) &&
		r.OneIn != 1 && isWord(r.In) && isWord(r.Chain) && isWord(r.Recent.Name)
}

func (p *ruleParser) recentComplete() bool {
	r := &p.rule
	if r.Recent.Op == iptables.RecentNone {
		return r.Recent == iptables.Recent{} && !slices.Contains(p.options, "--reap")
	}
	return r.OneIn <= 1 && // otherwise the order of evaluation matters
		slices.Contains(p.options, "--reap") == (r.Recent.Op == iptables.RecentCheck)
}

func (p *ruleParser) targetComplete() bool {
	r := &p.rule
	return (r.Target == iptables.SetMark || r.XMark == iptables.Mark{}) &&
		r.To.IsValid() == (r.Target == iptables.DNAT) &&
		(r.To.Port() != 0 && !r.To.IsValid()) == (r.Target == iptables.Redirect) &&
		(r.Target == iptables.Masquerade || !r.RandomFully)
}

// used reports whether a match loaded with -m is one of ours and has its options.
// Without options, a match may have another meaning.
func (p *ruleParser) used(match string) bool {
	switch match {
	case "":
		return false
	case "tcp", "udp", "sctp":
		return p.rule.Protocol.String() == match
	}
	return slices.ContainsFunc(p.options, func(o string) bool { return options[o].match == match })
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

func ports(p *ruleParser) (ok bool) {
	p.rule.Ports, ok = Ports(p.value(), ":")
	return ok && p.rule.Ports != iptables.PortRange{}
}

func states(p *ruleParser) bool {
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
func (p *ruleParser) mark(m *iptables.Mark, mask uint32) (ok bool) {
	*m, ok = Mark(p.value(), mask)
	return ok
}

// probability parses a share. It sets OneIn to the n whose fraction 1/n the kernel
// stores as the same value, in units of 1/2³¹.
func probability(p *ruleParser) bool {
	share, err := strconv.ParseFloat(p.value(), 64)
	if err != nil || share <= 0 || share > 1 {
		return false
	}
	n := math.Round(1 / share)
	const unit = 1 << 31
	p.rule.OneIn = uint32(n)
	return n <= math.MaxUint32 && math.Abs(math.Round(share*unit)-math.Round(unit/n)) <= 1
}

func target(p *ruleParser) bool {
	name := p.value()
	if p.rule.Target = iptables.ParseTarget(name); p.rule.Target == iptables.Jump {
		p.rule.Chain = name
	}
	return name != ""
}
