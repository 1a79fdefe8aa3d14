package eval

import (
	"fmt"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/nftables"
	"net/netip"
	"slices"
	"strings"
)

// Disarmed returns a Ruleset in which the rules selected by gone have no effect,
// and selected policies accept. gone is called with the qualified name of the
// chain and the number of the rule.
func Disarmed(r *nftables.Ruleset, gone func(chain string, rule int) bool) *nftables.Ruleset {
	rest := *r
	rest.Chains = slices.Clone(r.Chains)
	for i := range rest.Chains {
		c := &rest.Chains[i]
		if c.Base != nil && c.Base.Drop && gone(c.Name, 0) {
			base := *c.Base
			base.Drop, c.Base = false, &base
		}
		own := false
		for j := range c.Rules {
			if !gone(c.Name, j+1) {
				continue
			}
			if !own {
				c.Rules, own = slices.Clone(c.Rules), true
			}
			c.Rules[j].Stmts = nil
		}
	}
	return &rest
}

// NewFollower returns an Evaluator that can Follow packets.
func NewFollower(r *nftables.Ruleset, own *sim.Own) *Evaluator {
	e := NewEvaluator(r, own)
	clear(e.beside[:])
	e.follows = true
	return e
}

// On sets the node of a Follower. It returns the Follower.
func (e *Evaluator) On(m Machine) *Evaluator {
	e.machine = m
	return e
}

// With returns a Ruleset with only those base chains for which keep returns true.
func With(r *nftables.Ruleset, keep func(*nftables.Base) bool) *nftables.Ruleset {
	some := *r
	some.Chains = slices.DeleteFunc(slices.Clone(r.Chains), func(c nftables.Chain) bool { return c.Base != nil && !keep(c.Base) })
	return &some
}

// FollowTranslated is Follow for a packet that other rules translated before, to
// another destination or only by masquerading. It is not safe for concurrent use.
func (e *Evaluator) FollowTranslated(pkt sim.Packet, to sim.Destination) sim.Path {
	e.translated = &to
	defer func() { e.translated = nil }()
	return e.Follow(pkt)
}

// FollowBefore is Follow for tables that precede iptables rules. mark is the part
// of the proxy's mark that a packet then has.
func (e *Evaluator) FollowBefore(pkt sim.Packet) (way sim.Path, mark uint32) {
	e.handed = map[uint32]bool{}
	defer func() { e.handed = nil }()
	way = e.Follow(pkt)
	for m := range e.handed {
		mark |= m
	}
	if len(e.handed) > 1 {
		way.Unknown = append(way.Unknown, fmt.Sprintf("foreign nf_tables: chance, or the order of chains, decides whether a packet has the mark 0x%x, for rules of iptables", mark))
	}
	return way, mark
}

// translate applies the earlier translation to the packet.
func (w *walk) translate(d *sim.Destination) {
	w.dnat, w.snat = d.AddrPort != netip.AddrPortFrom(w.dst, w.port), d.SNAT
	w.dst, w.port = d.AddrPort.Addr(), d.AddrPort.Port()
}

// Follow returns the outcome of a packet and its path: the matching rules in
// order, on the first random path and on those with another fate. It includes parts
// with unknown meaning. Chains of one hook and priority are called in listed
// order. If another order changes the outcome, this is reported as unknown.
// Follow is not safe for concurrent use.
func (e *Evaluator) Follow(pkt sim.Packet) sim.Path {
	way := e.follow(pkt)
	for _, first := range e.equals {
		hook := &e.hooks[first.Base.Hook]
		listed := *hook
		*hook = slices.Clone(listed)
		inOrder(*hook, first)
		other := e.follow(pkt)
		*hook = listed
		way.Unknown = append(way.Unknown, other.Unknown...)
		if !other.Outcome.Equal(way.Outcome) {
			way.Unknown = append(way.Unknown, fmt.Sprintf("%s: has the same priority as another chain, so the order is unknown; if it comes first: %s", e.where(first.Name), other.Outcome))
		}
	}
	slices.Sort(way.Unknown)
	way.Unknown = slices.Compact(way.Unknown)
	return way
}

// Toward returns the rules on the first random path to a result.
func (e *Evaluator) Toward(pkt sim.Packet, to sim.Chance) (met []sim.Met) {
	var cuts sim.Cuts
	e.paths(pkt, &cuts, nil, func(w *walk) {
		if met == nil && w.way.Fate == to.Fate && (to.Fate != sim.Accepted || w.way.Destination == to.Destination) {
			met = w.met
		}
	})
	return met
}

// follow is Follow in the current order of the chains.
func (e *Evaluator) follow(pkt sim.Packet) sim.Path {
	var cuts sim.Cuts
	var ways []sim.Way
	var met []sim.Met
	marks := map[sim.Destination]uint32{}
	var fates [sim.Dropped + 2]bool
	e.missed = nil
	e.paths(pkt, &cuts, nil, func(w *walk) {
		ways = append(ways, w.way)
		marks[w.way.Destination] |= w.routed
		if e.handed != nil && (w.way.Fate == sim.NotOurs || w.way.Fate == sim.Accepted) {
			e.handed[w.mark&e.own.Mark] = true
		}
		fate := w.way.Fate
		if fate == sim.Accepted && !w.dnat {
			fate = sim.Dropped + 1 // only masqueraded: it found no backend
		}
		if fates[fate] {
			return
		}
		fates[fate] = true
		for _, m := range w.met {
			if !slices.Contains(met, m) {
				met = append(met, m)
			}
		}
	})
	known := func(known []sim.Remembered) (ways []sim.Way) { // of a remembered client
		e.paths(pkt, &cuts, known, func(w *walk) { ways = append(ways, w.way) })
		return ways
	}
	o := sim.WithAffinity(ways, known, func(what string) { cuts.Doubt("table " + e.name + ": " + what) })
	if cuts.Endless != "" {
		cuts.Unknown = append(cuts.Unknown, cuts.Endless)
	}
	return sim.Path{Outcome: o, Met: met, Unknown: cuts.Unknown, Marks: marks}
}

// Missed reports whether the last followed packet was looked up as an element and
// not found. element has the notation of sim.Met.
func (e *Evaluator) Missed(element string) bool { return e.missed[element] }

// Holds reports whether a table that is not qualified has a reported rule at the
// same place.
func (e *Evaluator) Holds(m *sim.Met) bool {
	c := e.chains[m.Chain]
	if c == nil || m.Rule < 1 || m.Rule > len(c.Rules) {
		return false
	}
	found, ok := strings.CutPrefix(m.Text, c.Rules[m.Rule-1].Text(e.family))
	return ok && (found == "" || strings.HasPrefix(found, ": ")) // followed by the data of a map
}

// recordLookup records the element of a named set that matches the packet, or that none
// does.
func (w *walk) recordLookup(l *indexed, key nftables.Key, found bool) {
	if !w.follows || l.Interval || l.Timeout > 0 || strings.Contains(l.Name, nftables.Anonymous) {
		return
	}
	element := l.KeyText(key) + " of " + l.Name
	if _, name, ok := strings.Cut(l.Name, ", set "); ok {
		element = l.KeyText(key) + " of " + name
	}
	if found {
		w.element = element
		return
	}
	ir.SetIn(&w.missed, element, true)
}

// recordVerdict records the current rule, with its own verdict v or a verdict found in a
// map.
func (w *walk) recordVerdict(v nftables.Verdict, found *nftables.Verdict) {
	drops := v.Kind == nftables.Drop || v.Kind == nftables.Reject || v.Kind == nftables.RejectWith
	w.record(found, drops, !drops)
}

// record records that the current rule affected the packet, by its own verdict or
// by one that it found.
func (w *walk) record(found *nftables.Verdict, drops, leads bool) {
	if !w.follows {
		return
	}
	m := sim.Met{Text: "policy drop", Drops: drops, Forwards: leads}
	if w.rule > 0 {
		m.Text = w.text(&w.chains[w.chain].Rules[w.rule-1])
		if found != nil {
			m.Text += ": " + string(found.AppendText(nil, w.family))
		}
	}
	w.recordEffect(m)
}

// recordMissing records that a map has no element for a random number. This is always a
// fault if the map has elements for others.
func (w *walk) recordMissing(l nftables.LookupDNAT) {
	set := w.sets[l.Map]
	if !w.follows || set == nil || set.odd != "" || set.Timeout > 0 || !set.fits(l.Key) {
		return
	}
	picked := 0
	for _, t := range l.Key {
		if t.Field == nftables.Random {
			picked++
		} else if t.Field == nftables.ClientHash {
			return // some clients may intentionally have no element
		}
	}
	if picked > 0 {
		w.step -= picked // the key makes the same choices again
		w.recordEffect(sim.Met{Text: "map " + l.Map + " lacks " + set.KeyText(w.key(set.Set, l.Key)), Missing: true})
	}
}

// recordEffect records an effect on the packet at the current rule.
func (w *walk) recordEffect(m sim.Met) {
	m.Table, m.Chain, m.Rule, m.Element = w.name, w.chain, w.rule, w.element
	if table, chain, ok := strings.Cut(w.chain, ", chain "); ok {
		m.Table, m.Chain = table, chain
		m.Text = strings.NewReplacer(table+", chain ", "", table+", set ", "").Replace(m.Text)
	}
	w.met = append(w.met, m)
}

// text returns a rule in nft's notation, with the elements of anonymous sets.
func (w *walk) text(rule *nftables.Rule) string {
	var b []byte
	for i, s := range rule.Stmts {
		if i > 0 {
			b = append(b, ' ')
		}
		name, _ := nftables.KeyOf(s)
		set := w.sets[name]
		dnat, translates := s.(nftables.LookupDNAT)
		text := string(s.AppendText(nil, w.family))
		switch {
		case set == nil || !strings.Contains(name, nftables.Anonymous):
		case translates && len(dnat.Key) == 0:
			to := &set.Elements[0].To
			text = "dnat " + w.family.NFT() + " to " + to.String()
			if to.Port() == 0 {
				text = "dnat " + w.family.NFT() + " to " + to.Addr().String()
			}
		default:
			text = strings.Replace(text, "@"+name, literal(set.Set), 1)
		}
		b = append(b, text...)
	}
	return string(b)
}

// maxLiteral is the maximum number of elements of a set in the text of a rule.
const maxLiteral = 8

// literal returns the elements of a set in the notation of a rule.
func literal(s *nftables.Set) string {
	if len(s.Elements) == 1 && s.Data == nftables.NoData {
		return s.ElementText(&s.Elements[0])
	}
	var words []string
	for i := range s.Elements {
		if i == maxLiteral {
			words = append(words, "…")
			break
		}
		words = append(words, s.ElementText(&s.Elements[i]))
	}
	return "{ " + strings.Join(words, ", ") + " }"
}
