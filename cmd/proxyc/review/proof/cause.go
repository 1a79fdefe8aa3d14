package proof

import (
	"regexp"
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
)

// FindCauses adds the rules that cause the differences that WriteText prints.
func (p *Proof) FindCauses(a, b *Side, all bool) {
	p.each(all, func(d *differs, _ bool) {
		wayA, wayB := a.way(d, 0), b.way(d, 1)
		d.RuleA, d.RuleB = wayA.cause(&wayB), wayB.cause(&wayA)
	})
}

// way is one result of a packet on one side, which the other side does not have.
type way struct {
	sim.Chance
	own, other sim.Outcome
	met        []sim.Met // rules on the way; empty if the side has none
	mode       ir.Mode   // of the rules; "" if the side has none
}

// way returns a way to the first result of one side that the other side does not have. If there is
// none, it is a way to any result.
func (s *Side) way(d *differs, side int) way {
	w := way{own: d.outcomes[side], other: d.outcomes[1-side]}
	chances, others := w.own.Chances(), w.other.Chances()
	slices.SortStableFunc(chances, func(a, b sim.Chance) int { return int(a.Fate) - int(b.Fate) })
	w.Chance = chances[0]
	if i := slices.IndexFunc(chances, func(c sim.Chance) bool {
		return !slices.ContainsFunc(others, func(o sim.Chance) bool { return c.Fate == o.Fate && c.Destination == o.Destination })
	}); i >= 0 {
		w.Chance = chances[i]
	}
	if toward := s.toward.Of(ir.FamilyOf(d.first.Packet.Dst)); toward != nil {
		w.mode, w.met = s.mode, toward(d.first.Packet, w.Chance)
	}
	return w
}

// cause returns the rule on the way that causes the difference, or nil if no rule does: the cause may
// be a rule that is missing, or one on the other side.
func (w *way) cause(other *way) *sim.Met {
	if i := slices.IndexFunc(w.met, func(m sim.Met) bool { return m.Missing }); i >= 0 {
		return &w.met[i]
	}
	shared := func(m *sim.Met, same func(a, b *sim.Met) bool) bool {
		return w.mode == other.mode && slices.ContainsFunc(other.met, func(o sim.Met) bool { return same(m, &o) })
	}
	i := 0
	for i < len(w.met) && i < len(other.met) && alike(&w.met[i], &other.met[i]) {
		i++
	}
	var first *sim.Met // first rule that only this way has
	if w.mode == other.mode && i < len(w.met) && !shared(&w.met[i], alike) {
		// An address or a virtual server is there or not, whatever else the other way meets.
		if m := &w.met[i]; len(other.met) == 0 || m.NoRule || shared(m, func(a, b *sim.Met) bool { return a.Table == b.Table }) {
			first = m
		}
	}
	if w.Fate == sim.Accepted && w.Fate != other.Fate && first != nil {
		return first
	}
	for k := len(w.met) - 1; k >= 0; k-- {
		if m := &w.met[k]; w.decides(other, m) && !shared(m, alike) {
			return m
		}
	}
	if first != nil && ends.MatchString(first.Text) {
		return first
	}
	return nil
}

// Texts of rules, in the notations of all tools.
var (
	translates  = regexp.MustCompile(`-j (DNAT|REDIRECT)|\b(dnat|redirect)\b`)
	masquerades = regexp.MustCompile(`-j (KUBE-MARK-MASQ|MASQUERADE|MARK)|\b(jump|goto) ma(sq|rk-for-masq)|\bmark set |\bmasquerade\b`)
	chooses     = regexp.MustCompile(`--probability|\bnumgen\b`)
	remembers   = regexp.MustCompile(`-m recent|@affinity-`)
	ends        = regexp.MustCompile(`-j (ACCEPT|RETURN)|\b(accept|return)$`)
	// hashed names of chains, and comments
	ownNames = regexp.MustCompile(`(KUBE-(?:SVC|SVL|EXT|FW|SEP|XLB))-\w+| ?-m comment --comment (?:"[^"]*"|\S+)`)
)

// markers are the chains that set and clear the mark for masquerade, which all packets share.
var markers = []string{iptables.ChainMarkMasq, "mark-for-masquerade", iptables.ChainPostrouting, "masquerading", "nat-postrouting"}

// decides reports whether a rule can lead a packet to this result instead of the other.
func (w *way) decides(other *way, m *sim.Met) bool {
	to := func(d sim.Destination) bool { return d.AddrPort == w.AddrPort }
	switch {
	case w.Fate == sim.Dropped || w.Fate == sim.Rejected:
		return m.Drops
	case w.Fate == sim.NotOurs:
		return ends.MatchString(m.Text) && m.Table != "filter" && !slices.Contains(markers, m.Chain)
	case !slices.ContainsFunc(w.other.Destinations, to):
		return m.Table == ipvseval.TableServers || translates.MatchString(m.Text)
	case !slices.Contains(w.other.Destinations, w.Destination):
		return w.SNAT && masquerades.MatchString(m.Text) && !slices.Contains(markers, m.Chain)
	case !slices.Equal(w.own.Shares, w.other.Shares):
		return chooses.MatchString(m.Text)
	case w.own.Affinity:
		return remembers.MatchString(m.Text)
	}
	return false
}

// alike reports whether two rules have the same effect at the same place.
func alike(a, b *sim.Met) bool {
	name := func(text string) string { return ownNames.ReplaceAllString(text, "$1") }
	return a.Table == b.Table && name(a.Chain) == name(b.Chain) && name(a.Text) == name(b.Text)
}
