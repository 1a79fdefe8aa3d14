package iptables

import (
	"net/netip"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Ruleset is the content of one family's tables that proxyc manages.
type Ruleset struct {
	Family ir.Family
	Filter Table
	Nat    Table
}

// Tables returns the tables in the order in which they are written and committed:
// filter before nat, as in kube-proxy (IPT-30).
func (r *Ruleset) Tables() [2]*Table { return [2]*Table{&r.Filter, &r.Nat} }

// Size returns the number of rules in our chains of each table, in the order of
// Tables.
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
	Jumps  []BuiltInJump // from built-in chains to ours, in traversal order
	Chains []Chain       // our chains: fixed ones, dispatch trees, chains of Services
	// Set by a parser. Pinned are our chains to which foreign chains jump, so
	// that they cannot be removed. Dormant reports that the table is inactive,
	// which nf_tables supports.
	Pinned  []string
	Dormant bool
}

// BuiltInJump is our rule in a built-in chain: a jump to one of our chains. All
// other rules in built-in chains are foreign.
type BuiltInJump struct {
	Chain string // PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING
	Rule  Rule
	Text  string // the rule as parsed from a kernel, without its chain; otherwise empty
}

// Chain is one of our chains with its ordered rules.
type Chain struct {
	Name  string
	Rules []Rule
}

// Rule is one rule; all matches that are set must hold. The zero value of a match
// matches every packet. A node has hundreds of thousands of rules, so the order
// of the fields avoids padding, and uncommon matches are in Rare.
type Rule struct {
	Src, Dst netip.Prefix   // masked; never of length 0
	To       netip.AddrPort // the destination of Target DNAT; for Redirect only the port
	In       string         // input interface; a trailing "+" matches any suffix
	Comment  string
	Chain    string // destination of Target Jump
	Raw      string // the text without its chain of a rule that was parsed from a kernel and is not one of ours
	Rare     Rare   // one more match; optional
	Recent   Recent // session affinity
	Mark     Mark   // the packet's mark under Mask is Value
	XMark    Mark   // Target SetMark: clear Mask, then xor Value
	OneIn    uint32 // matches one of that many packets at random; 0 and 1 match every packet

	Ports              PortRange // destination ports; requires Protocol
	Protocol           ir.Protocol
	Not                Match // the negated matches
	States             State // matches any of these conntrack states
	SrcLocal, DstLocal bool  // the address belongs to the node (addrtype LOCAL)
	Target             Target
	RandomFully        bool // Target Masquerade: random source ports
	CommentLast        bool // write States and Comment after other matches, as in modes ipvs and userspace

	port   *ir.ServicePort // the service port of the rule; nil for fixed rules
	match  *ir.Match       // the frontend of the rule; nil for fixed rules, and for pools with several frontends
	origin *ir.Origin
}

// For returns the rule with a frontend as its reason.
func (r Rule) For(f *ir.Frontend) Rule {
	r.port, r.match, r.origin = &f.Port, &f.Match, &f.Origin
	return r
}

// Because returns the rule as a fixed one with a reason.
func (r Rule) Because(o *ir.Origin) Rule {
	r.origin = o
	return r
}

// Equal reports whether two rules have the same effect. It ignores their reasons
// and the order in which their matches are written.
func (r *Rule) Equal(o *Rule) bool { return r.Key() == o.Key() }

// Key returns the rule without its reasons. Equal rules have equal keys.
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
	Bridged // the packet was received by a port of a bridge (physdev); a Rule contains it only negated
)

// Rare is a match that only modes with few rules use: InSet, Balanced or Counted.
// The values are comparable.
type Rare interface {
	appendTo(b []byte) []byte
}

// InSet matches if an ipset contains the packet's fields listed in Fields, in
// ipset's notation: "dst,dst" is the address and port of the destination.
type InSet struct{ Set, Fields string }

// Balanced matches connections that the kernel's ipvs accepted at this address and port.
type Balanced ir.Match

// Counted matches every packet and counts it under a name (nfacct). None of our
// rules uses it; kube-proxy's do.
type Counted struct{ Name string }

// PortRange are the ports from First to Last. The zero value matches every port.
type PortRange struct{ First, Last uint16 }

// Port returns the range of a single port.
func Port(n uint16) PortRange { return PortRange{n, n} }

// State is a set of conntrack states (-m conntrack --ctstate). DNATed is a
// property of the connection instead of the packet: its destination was
// translated.
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

// Recent matches a list of source addresses (-m recent). Name is the list.
// Seconds is the maximum age of an entry that RecentCheck accepts; older entries
// are removed when they are found (--reap).
type Recent struct {
	Op      RecentOp
	Seconds uint32
	Name    string
}

// RecentOp is an operation on the list.
type RecentOp uint8

const (
	RecentNone  RecentOp = iota
	RecentCheck          // matches if the list contains the source
	RecentSet            // adds the source or renews its time; always matches
)

// Target is the action for a matching packet.
type Target uint8

const (
	Continue Target = iota // none: the rule exists for its comment
	Jump                   // traverse Rule.Chain, and continue here if it does not decide
	Return                 // back to the calling chain
	Accept                 // final for this table and hook
	Drop
	Reject  // with ICMP port unreachable
	SetMark // change the packet mark
	Masquerade
	DNAT
	Redirect // change the destination to this node and a port
)

// Why returns the service port of a rule, and the object and field that request
// it. Both are zero for rules parsed from a kernel; the service port is zero for
// fixed rules, too.
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

// Service returns the Service of a rule, or zero if unknown. For rules parsed
// from a kernel it uses a name in the comment.
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

// Service reports whether a chain belongs to one Service, and to which one if its
// rules show it.
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

// Frontends returns the matches of the dispatch rules in nat.
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

// Hairpin reports whether a chain detects hairpin connections.
func Hairpin(chain string) bool {
	return chain == chainHairpin || strings.HasPrefix(chain, stemHairpinTree)
}

// Shared reports whether a chain belongs to the kubelet as well. Rules are added
// to it, but it is never flushed.
func Shared(chain string) bool { return chain == chainFirewall }
