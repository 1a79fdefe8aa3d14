// Package rules follows a packet through the rules that this kernel holds, those of other programs included, and
// names the rule by which it departs from what is wanted.
package rules

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// KernelTrace is the course of a packet through the rules that a kernel holds.
type KernelTrace struct {
	From    string    `json:"from"`
	To      string    `json:"to"`
	Rules   []sim.Met `json:"rules"`             // that did something to the packet, in order
	Result  string    `json:"result"`            // notKnown where something on its way is not understood
	Assumed string    `json:"assumed,omitempty"` // the result if what is not understood does nothing
	Wanted  string    `json:"wanted"`            // what is to become of it; Result: it does
	Causes  []string  `json:"causes,omitempty"`  // why it is not what is wanted
	Unknown []string  `json:"unknown,omitempty"` // what is not understood on its way
	Left    []string  `json:"left,omitempty"`    // what was not looked at, and may decide about the packet
	Replies []string  `json:"replies,omitempty"` // chains of others that may drop; what they do to replies is not looked at
}

// notKnown is the result of a packet on whose way something is not understood.
const notKnown = "not known"

// tableRoutes is where a packet meets a route in place of a rule.
const tableRoutes = "route"

// Path is what rules of anybody do to a packet.
type Path struct {
	sim.Path
	gone  string                    // the table of ours that is not there
	lacks func(element string) bool // an element that the packet was looked for as; nil: not told
	holds func(*sim.Met) bool       // a rule, at its place, whether met or not; nil: not told
}

// PathOf returns a path, with the rules marked that are foreign.
func PathOf(way sim.Path) Path {
	for i := range way.Met {
		way.Met[i].Foreign = foreign(&way.Met[i])
	}
	return Path{Path: way}
}

// foreign reports whether a rule is neither proxyc's nor kube-proxy's.
func foreign(m *sim.Met) bool {
	if m.NoRule {
		return false
	}
	if _, name, native := strings.Cut(m.Table, " "); native {
		return name != nftables.Table && name != "kube-proxy"
	}
	return !iptables.Owned(m.Chain) && !iptables.Owned(iptparse.SavedTarget(iptparse.SavedWords(m.Text)))
}

// followNFT follows a packet through tables of nf_tables, and those of iptables that were added.
func followNFT(r *nftables.Ruleset, own *sim.Own, pkt sim.Packet, on nfteval.Machine) Path {
	f := nfteval.NewFollower(r, own).On(on)
	c := PathOf(f.Follow(pkt))
	c.lacks = f.Lacked
	return c
}

// wants returns what rules that proxyc writes for a Program do to a packet.
func wants(p *ir.Program, pkt sim.Packet) (Path, error) {
	follower := review.Modes[p.Node.Mode].Follow
	if follower == nil {
		return Path{}, fmt.Errorf("--kernel: the rules of mode %s cannot be followed", p.Node.Mode)
	}
	f := follower(p)
	c := PathOf(f.Follow(pkt))
	if all, ok := f.(interface{ Holds(*sim.Met) bool }); ok {
		c.holds = all.Holds
	}
	return c, nil
}

// place is where a rule stands, or a policy.
type place struct {
	table, chain string
	rule         int // as in met
}

func placeOf(m *sim.Met) place { return place{m.Table, m.Chain, m.Rule} }

// removed are rules, and policies, of anybody that do nothing.
type removed map[place]bool

// ofNFT is removed for rules of nf_tables that were qualified.
func (r removed) ofNFT(chain string, rule int) bool {
	table, chain, _ := strings.Cut(chain, ", chain ")
	return r[place{table, chain, rule}]
}

func (r removed) ofIPTables(table, chain string, rule int) bool { return r[place{table, chain, rule}] }

// with returns a copy that has one more.
func (r removed) with(p place) removed {
	more := maps.Clone(r)
	more[p] = true
	return more
}

// refollow follows the same packet once more, where some rules do nothing.
type refollow func(removed) (Path, error)

// blame returns of others' rules that decide about the packet the fewest without which it fares as
// without all of them, in the order in which it meets them, and its course without any.
func (c Path) blame(again refollow) (guilty []sim.Met, free Path, without removed, err error) {
	var all []sim.Met
	without, free = removed{}, c
	for grew := true; grew; {
		grew = false
		for _, m := range free.Met {
			if m.Foreign && m.Table != tableRoutes && !m.Lacks && !m.Leads && !without[placeOf(&m)] {
				without, grew = without.with(placeOf(&m)), true
				all = append(all, m)
			}
		}
		if grew {
			if free, err = again(without); err != nil {
				return nil, c, nil, err
			}
		}
	}
	needed := without
	for _, m := range all {
		less := maps.Clone(needed)
		delete(less, placeOf(&m))
		with, err := again(less)
		if err != nil {
			return nil, c, nil, err
		}
		if with.Outcome.Equal(free.Outcome) {
			needed = less
		} else {
			guilty = append(guilty, m)
		}
	}
	return guilty, free, without, nil
}

// compare tells how the course in the kernel departs from what is wanted, and why: a rule is
// a cause only if the packet fares otherwise without it.
func (f *KernelTrace) compare(want, have Path, again refollow) error {
	f.Rules, f.Unknown = have.Met, have.Unknown
	f.Result, f.Wanted = have.Outcome.String(), want.Outcome.String()
	if len(f.Unknown)+len(f.Left) > 0 {
		f.Result, f.Assumed = notKnown, f.Result
	}
	if have.Outcome.Equal(want.Outcome) {
		return nil
	}
	if have.gone != "" {
		f.Causes = append(f.Causes, have.gone+" is not there")
	}
	guilty, free, without, err := have.blame(again)
	if err != nil {
		return err
	}
	for i := range guilty {
		m, does := &guilty[i], "decides about"
		if m.Drops {
			does = "drops"
		}
		f.Causes = append(f.Causes, fmt.Sprintf("%s, which is none of proxyc's, %s the packet: %s", m.Where(), does, m.Text))
	}
	for i := range free.Met {
		if m := &free.Met[i]; m.Table == tableRoutes {
			f.Causes = append(f.Causes, fmt.Sprintf("%s: %s", m.Where(), m.Text))
		}
	}
	if have.gone != "" {
		return nil
	}
	if err := f.departs(want, free, without, again); err != nil || len(f.Causes) > 0 {
		return err
	}
	if w, h := want.Outcome, have.Outcome; w.Affinity != h.Affinity || w.Timeout != h.Timeout {
		f.Causes = append(f.Causes, fmt.Sprintf("a client stays with its backend for %s, wanted: %s", stays(h), stays(w)))
	}
	return nil
}

// stays says how long a client stays with its backend.
func stays(o sim.Outcome) string {
	if !o.Affinity {
		return "one connection"
	}
	return o.Timeout.String()
}

// departs tells where the packet leaves the way that is wanted in proxyc's own rules, when those
// of others that decide do nothing. Where it ends as it should then, what lacks may still be what
// others' rules need to do harm: an accept before a policy.
func (f *KernelTrace) departs(want, have Path, without removed, again refollow) error {
	foreign := func(m sim.Met) bool { return m.Foreign }
	wanted := slices.DeleteFunc(slices.Clone(want.Met), foreign)
	has := func(list []sim.Met, m *sim.Met) bool {
		return slices.ContainsFunc(list, func(o sim.Met) bool { return m.Same(&o) })
	}
	for {
		ours, i := slices.DeleteFunc(slices.Clone(have.Met), foreign), 0
		for i < len(ours) && i < len(wanted) && ours[i].Same(&wanted[i]) {
			i++
		}
		lacks := i < len(wanted) && !has(ours, &wanted[i])
		switch {
		case i < len(ours) && ours[i].Lacks:
			f.Causes = append(f.Causes, fmt.Sprintf("%s: %s", ours[i].Where(), ours[i].Text))
			return nil
		case lacks && wanted[i].NoRule: // without it the packet meets other rules, which are no cause
		case i < len(ours) && !has(wanted, &ours[i]):
			if at := placeOf(&ours[i]); !ours[i].NoRule && !without[at] {
				rest, err := again(without.with(at))
				if err != nil {
					return err
				}
				if rest.Outcome.Equal(have.Outcome) {
					without, have = without.with(at), rest
					continue
				}
				if lacks && want.holds != nil && want.holds(&ours[i]) {
					break // it is where it should be, and the packet should not have come to it
				}
				if fate := have.Outcome.Fate; lacks && fate != want.Outcome.Fate && fate == rest.Outcome.Fate {
					break // the packet meets it because it was not stopped before
				}
			}
			f.Causes = append(f.Causes, fmt.Sprintf("%s is not wanted: %s", ours[i].Where(), ours[i].Text))
		}
		if lacks {
			wanted[i].Rule = 0
			does := "lacks, or does not come to"
			if element := wanted[i].Element; element != "" && have.lacks != nil && have.lacks(element) {
				does = "does not do, as there is no element " + element
			}
			f.Causes = append(f.Causes, fmt.Sprintf("%s %s: %s", wanted[i].Where(), does, wanted[i].Text))
		}
		return nil
	}
}

// Well reports whether the kernel is known to do what is wanted.
func (f *KernelTrace) Well() bool {
	return f.Result == f.Wanted && len(f.Causes) == 0 && len(f.Unknown) == 0 && len(f.Left) == 0
}

// WriteText writes the rules that the packet meets, the result, and why it departs from what is wanted.
func (f *KernelTrace) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s by the rules of this kernel\n", f.From, f.To)
	for i := range f.Rules {
		m := &f.Rules[i]
		text := fmt.Sprintf("%3d. %s: %s", i+1, m.Where(), m.Text)
		if m.Foreign {
			text += "  # none of proxyc's"
		}
		fmt.Fprintln(&b, text)
	}
	fmt.Fprintf(&b, "  => %s\n", f.Result)
	if f.Result != f.Wanted {
		fmt.Fprintf(&b, "  wanted: %s\n", f.Wanted)
	}
	for _, u := range f.Unknown {
		fmt.Fprintf(&b, "  not understood: %s\n", u)
	}
	for _, l := range f.Left {
		fmt.Fprintf(&b, "  not looked at: %s\n", l)
	}
	if f.Assumed != "" {
		fmt.Fprintf(&b, "  if that does nothing to the packet: %s\n", f.Assumed)
	}
	for _, c := range f.Causes {
		fmt.Fprintf(&b, "  because: %s\n", c)
	}
	for _, r := range f.Replies {
		fmt.Fprintf(&b, "  replies are not followed: foreign rules that may drop: %s\n", r)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Trace traces a packet through the rules that this kernel holds, and compares it with what is
// wanted. from and to are those of a trace; variant is the iptables that is read, "" the one that the node uses.
func Trace(ctx context.Context, s *trace.Scene, from, to, variant string) (*KernelTrace, error) {
	pkt, node, err := s.Packet(from, to)
	if err == nil && node != s.Node {
		err = fmt.Errorf("--kernel: the packet meets the rules of Node %s, whose kernel is not this one", node)
	}
	if err != nil {
		return nil, err
	}
	if !strings.Contains(from, "@") {
		pkt = cameBy(pkt)
	}
	p := s.Programs.Of(ir.FamilyOf(pkt.Dst))
	want, err := wants(p, pkt)
	if err != nil {
		return nil, err
	}
	f := &KernelTrace{From: trace.SenderOf(pkt), To: trace.DestinationOf(pkt)}
	again, left, err := inKernel(ctx, p, pkt, variant)
	if err != nil {
		return nil, err
	}
	f.Left = left
	have, err := again(nil)
	if err == nil {
		err = f.compare(want, have, again)
	}
	if err == nil && len(have.Outcome.Destinations) > 0 {
		var others apply.Interference
		others, err = daemon.Interference(ctx, p.Node.MasqueradeMark())
		f.Replies = others.Drops
	}
	return f, err
}

// WriteJSON writes a document of kind KernelTrace.
func (f *KernelTrace) WriteJSON(w io.Writer) error {
	return review.WriteDocument(w, "KernelTrace", "  ", f)
}

// TableOf is the name of proxyc's table of a family.
func TableOf(f ir.Family) string { return f.NFT() + " " + nftables.Table }
