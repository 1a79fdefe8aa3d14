package parse

import (
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/render/nftables"
)

// ofOther reports whether the next rule uses a field of the other family, which
// no packet of this family has.
func (p *listParser) ofOther() bool {
	for i := p.at; i+1 < len(p.toks) && p.toks[i].text != "\n"; i++ {
		word, next := p.toks[i].text, p.toks[i+1].text
		if !p.toks[i].quoted && (word == p.other && slices.Contains([]string{"saddr", "daddr", "protocol", "nexthdr"}, next) || word == icmpOf[p.other] && next == "type") {
			return true
		}
	}
	return false
}

var icmpOf = map[string]string{"ip": "icmp", "ip6": "icmpv6"}

// others parses statements of firewalls that proxies do not write. It evaluates
// them for packets of a TCP, UDP or SCTP connection in the parser's state, which is
// new for the first one.
func (p *listParser) others() ([]nftables.Stmt, bool) {
	never, always := []nftables.Stmt{nftables.MatchProto{}}, []nftables.Stmt{}
	from := p.at
	switch {
	case p.take("meta", "nfproto"):
		if p.take(map[string]string{"ip": "ipv6", "ip6": "ipv4"}[p.other]) {
			return always, true
		}
		if p.take(map[string]string{"ip": "ipv4", "ip6": "ipv6"}[p.other]) {
			return never, true
		}
	case p.take("ct", "state", "vmap", "{"):
		if v, ok := p.stateMap(); ok {
			return v, true
		}
	case p.take("ct", "state"):
		not := p.take("!=")
		if of := p.states(); slices.Contains(of, p.state) != not && len(of) > 0 {
			return []nftables.Stmt{nftables.MatchNew{State: strings.TrimPrefix(p.state, "new")}}, true
		} else if len(of) > 0 {
			return never, true
		}
	case p.take("iif"):
		if name := p.peek(); !strings.ContainsAny(name, "{@\n") && name != "!=" && !p.isMap() {
			return []nftables.Stmt{nftables.MatchInterface{Name: p.next()}}, true
		}
	case p.take("meta", "l4proto"), p.take("ip", "protocol"):
		if slices.Contains(notTransport, p.peek()) {
			p.next()
			return never, true
		}
	case p.take(icmpOf[p.r.Family.NFT()], "type"):
		p.rest()
		return never, true
	case p.take("tcp", "option", "maxseg", "size", "set"):
		if !p.take("rt", "mtu") {
			p.next()
		}
		return always, true
	case p.take("log"):
		p.options("prefix", "level", "group", "flags", "snaplen", "queue-threshold")
		return always, true
	}
	p.at = from
	return nil, false
}

// states parses "new", "new,related" or "{ new, related }".
func (p *listParser) states() (all []string) {
	p.take("{")
	for areStates(p.peek()) {
		all = append(all, strings.Split(p.next(), ",")...)
		p.take(",")
	}
	p.take("}")
	return all
}

// isMap reports whether a map lookup follows, not a comparison.
func (p *listParser) isMap() bool {
	return !p.end() && !p.toks[p.at].quoted && (p.peek() == "vmap" || p.peek() == "map")
}

// areStates reports whether a word is a comma-separated list of connection
// tracking states.
func areStates(word string) bool {
	for s := range strings.SplitSeq(word, ",") {
		if !slices.Contains(states, s) {
			return false
		}
	}
	return true
}

var (
	states       = []string{"new", "established", "related", "invalid", "untracked"}
	notTransport = []string{"icmp", "icmpv6", "ipv6-icmp", "igmp", "esp", "ah", "gre", "ipip", "vrrp", "ospf"}
)

// stateMap parses "established : accept, new : jump x }" and returns the verdict
// for the parser's state. Without an element for it, the rule ends.
func (p *listParser) stateMap() ([]nftables.Stmt, bool) {
	of := []nftables.Stmt{nftables.MatchProto{}}
	for !p.take("}") {
		state := p.next()
		if !slices.Contains(states, state) || !p.take(":") {
			return nil, false
		}
		var verdict []token
		for !p.end() && p.peek() != "," && p.peek() != "}" && p.peek() != "\n" {
			verdict = append(verdict, p.toks[p.at])
			p.next()
		}
		v, ok := p.verdictOf(verdict)
		if !ok {
			return nil, false
		}
		if state == p.state {
			of = []nftables.Stmt{v}
		}
		p.take(",")
		p.skipLines()
	}
	return of, true
}

// add adds an anonymous set.
func (p *listParser) add(s nftables.Set) string {
	p.anonymous++
	s.Name = p.setName(nftables.Anonymous + strconv.Itoa(p.anonymous))
	p.r.Sets = append(p.r.Sets, s)
	return s.Name
}
