package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Ruleset is what one family's tables hold for proxyc.
type Ruleset struct {
	Family ir.Family
	Filter Table
	Nat    Table
}

// Tables returns the tables in the order in which they are written and
// committed: what refuses before what translates, as kube-proxy has it (IPT-30).
func (r *Ruleset) Tables() [2]*Table { return [2]*Table{&r.Filter, &r.Nat} }

// Size returns the number of rules in our chains of each table, in their order.
func (r *Ruleset) Size() (size [2]int) {
	for i, t := range r.Tables() {
		for j := range t.Chains {
			size[i] += len(t.Chains[j].Rules)
		}
	}
	return size
}

// Table is one table of the kernel.
type Table struct {
	Name   string
	Jumps  []BuiltInJump // from built-in chains to ours, in the order in which a packet meets them
	Chains []Chain       // our chains: fixed ones, dispatch trees, chains of Services
	// Of what was read: our chains to which chains of others jump, so that they
	// cannot go; and that no packet meets the table, which nf_tables can have.
	Pinned  []string
	Dormant bool
}

// BuiltInJump is our rule in a built-in chain: a jump to a chain of ours.
// Everything else in built-in chains belongs to others.
type BuiltInJump struct {
	Chain string // PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING
	Rule  Rule
	Text  string // the rule as it was read from a kernel, without its chain; empty otherwise
}

// Chain is a chain of our own with its rules in order.
type Chain struct {
	Name  string
	Rules []Rule
}

// Rule is one rule: every match that is set has to hold. The zero value of a
// match matches everything. A node has hundreds of thousands of them: the order
// of the fields leaves no gaps, and what few rules have is in Rare.
type Rule struct {
	Src, Dst netip.Prefix   // masked; never of length 0
	To       netip.AddrPort // the destination that Target DNAT gives; for Redirect the port alone
	In       string         // input interface; a "+" at the end stands for any rest
	Comment  string
	Chain    string // where Target Jump goes
	Raw      string // the rule's text without its chain, when it was read from a kernel and is not one that we write
	Rare     Rare   // one more match, or nil
	Recent   Recent // session affinity
	Mark     Mark   // the packet's mark under Mask is Value
	XMark    Mark   // Target SetMark: clear Mask, then xor Value
	OneIn    uint32 // at random, one packet of that many; 0 and 1: every packet

	Ports              PortRange // destination ports; needs Protocol
	Protocol           ir.Protocol
	Not                Match // the matches among those that Match names that are negated
	States             State // one of these conntrack states
	SrcLocal, DstLocal bool  // the address is one of the node's own (addrtype LOCAL)
	Target             Target
	RandomFully        bool // Target Masquerade: random source ports
	CommentLast        bool // how it is written: States and Comment behind other matches, as ipvs and userspace have it

	port   *ir.ServicePort // the service port it serves; nil for fixed rules
	match  *ir.Match       // the frontend it serves; nil for fixed rules, and where a pool serves many
	origin *ir.Origin
}

// For returns the rule as one that serves a frontend.
func (r Rule) For(f *ir.Frontend) Rule {
	r.port, r.match, r.origin = &f.Port, &f.Match, &f.Origin
	return r
}

// Because returns the rule as a fixed one that is there for a reason.
func (r Rule) Because(o *ir.Origin) Rule {
	r.origin = o
	return r
}

// Equal reports whether two rules do the same; why they exist, and the order in
// which they are written, do not count.
func (r *Rule) Equal(o *Rule) bool { return r.Key() == o.Key() }

// Key returns the rule without the reasons for it: equal for equal rules.
func (r *Rule) Key() Rule {
	k := *r
	k.port, k.match, k.origin, k.CommentLast = nil, nil, nil, false
	return k
}

// Match is a set of matches of a rule.
type Match uint8

const (
	Src Match = 1 << iota
	Dst
	In
	States
	MarkMatch
	SrcType // SrcLocal
	Bridged // the packet came in by a port of a bridge (physdev); a Rule has only that it did not
)

// Rare is a match that only modes with few rules have: InSet, Balanced or
// Counted. They are values that can be compared.
type Rare interface {
	appendTo(b []byte) []byte
}

// InSet holds when an ipset has the fields of the packet that Fields lists, in
// the words of ipset: "dst,dst" is the address and port of the destination.
type InSet struct{ Set, Fields string }

// Balanced holds for connections that the kernel's ipvs took at this address and port.
type Balanced ir.Match

// Counted holds for every packet, and counts it under a name (nfacct). No rule of
// ours has it: kube-proxy counts so.
type Counted struct{ Name string }

// PortRange are the ports First to Last. The zero value is every port.
type PortRange struct{ First, Last uint16 }

// Port returns the range of a single port.
func Port(n uint16) PortRange { return PortRange{n, n} }

// State is a set of conntrack states (-m conntrack --ctstate). DNATed is a
// property of the connection, not of the packet: its destination was translated.
type State uint8

const (
	New State = 1 << iota
	Established
	Related
	Invalid
	DNATed
)

// Mark is a value and mask of the packet mark. The zero value matches every mark.
type Mark struct{ Value, Mask uint32 }

// Recent is the match on the list of the addresses that a chain saw (-m recent
// by source address). Name is the list, Seconds the greatest age of an entry
// that RecentCheck accepts; older ones are removed as they are met (--reap).
type Recent struct {
	Op      RecentOp
	Seconds uint32
	Name    string
}

// RecentOp is what is done with the list.
type RecentOp uint8

const (
	RecentNone  RecentOp = iota
	RecentCheck          // holds when the source is in the list
	RecentSet            // enters the source or renews its time; always holds
)

// Target is what happens to a packet that a rule matches.
type Target uint8

const (
	Continue Target = iota // nothing: the rule exists for its comment
	Jump                   // walk Rule.Chain, and come back if that decides nothing
	Return                 // back to the chain that jumped here
	Accept                 // decided for this table and hook: let it be
	Drop
	Reject  // with ICMP port unreachable
	SetMark // change the packet mark
	Masquerade
	DNAT
	Redirect // change the destination to this node and a port
)

// Why returns the service port that a rule serves, zero for fixed rules and for
// what was read from a kernel, and the object and field that asked for it.
func (r *Rule) Why() (ir.ServicePort, ir.Origin) {
	var p ir.ServicePort
	if r.port != nil {
		p = *r.port
	}
	if r.origin != nil {
		return p, *r.origin
	}
	return p, ir.Origin{Object: "default", Reason: "fixed rule of the iptables mode"}
}

// Service returns the Service that a rule serves, also of a rule that was read from
// a kernel and has a comment which names one. It is zero where none is known.
func (r *Rule) Service() ir.Name {
	if r.port != nil {
		return r.port.Service
	}
	for word := range strings.FieldsSeq(r.Comment) {
		namespace, rest, ok := strings.Cut(word, "/")
		name, _, _ := strings.Cut(rest, ":")
		if ok && namespace != "" && name != "" && !strings.Contains(name, "/") {
			return ir.Name{Namespace: namespace, Name: name}
		}
	}
	return ir.Name{}
}

// Service reports whether a chain is one Service's own, and whose, as far as its
// rules say.
func (c *Chain) Service() (name ir.Name, own bool) {
	if !OfService(c.Name) {
		return ir.Name{}, false
	}
	for i := range c.Rules {
		if name = c.Rules[i].Service(); name != (ir.Name{}) {
			break
		}
	}
	return name, true
}

// Frontends returns the matches that the rules of nat dispatch on.
func (r *Ruleset) Frontends() []ir.Match {
	var out []ir.Match
	for i := range r.Nat.Chains {
		for j := range r.Nat.Chains[i].Rules {
			rule := &r.Nat.Chains[i].Rules[j]
			p := rule.Ports
			if rule.Target != Jump || rule.Chain == ChainMarkMasq || p.First == 0 || p.First != p.Last || rule.Dst.IsValid() && !rule.Dst.IsSingleIP() {
				continue
			}
			out = append(out, ir.Match{Addr: rule.Dst.Addr(), Protocol: rule.Protocol, Port: p.First})
		}
	}
	return out
}

// Hairpin reports whether a chain is of those that find hairpin connections.
func Hairpin(chain string) bool {
	return chain == chainHairpin || strings.HasPrefix(chain, stemHairpinTree)
}

// Shared reports whether a chain belongs to the kubelet as well: it is filled up
// and never emptied.
func Shared(chain string) bool { return chain == chainFirewall }

// WithoutRandomFully returns the Ruleset for tools before 1.6.2, whose MASQUERADE
// does not know --random-fully.
func (r *Ruleset) WithoutRandomFully() *Ruleset {
	plain := *r
	plain.Nat.Chains = slices.Clone(r.Nat.Chains)
	for i, c := range plain.Nat.Chains {
		if c.Name != ChainPostrouting {
			continue
		}
		plain.Nat.Chains[i].Rules = slices.Clone(c.Rules)
		for j := range plain.Nat.Chains[i].Rules {
			plain.Nat.Chains[i].Rules[j].RandomFully = false
		}
	}
	return &plain
}

// Without returns the Ruleset without the rules of some Services. What they share
// with others by address stays: it serves nobody alone.
func (r *Ruleset) Without(services map[ir.Name]bool) *Ruleset {
	rest := *r
	rest.Filter, rest.Nat = r.Filter.without(services), r.Nat.without(services)
	return &rest
}

func (t Table) without(services map[ir.Name]bool) Table {
	if len(services) == 0 {
		return t
	}
	of := func(rule Rule) bool { return rule.port != nil && services[rule.port.Service] }
	chains := t.Chains
	t.Chains = make([]Chain, 0, len(chains))
	for _, c := range chains {
		if s, own := c.Service(); own && services[s] {
			continue
		}
		if !Hairpin(c.Name) && slices.ContainsFunc(c.Rules, of) {
			c.Rules = slices.DeleteFunc(slices.Clone(c.Rules), of)
		}
		t.Chains = append(t.Chains, c)
	}
	return t
}
