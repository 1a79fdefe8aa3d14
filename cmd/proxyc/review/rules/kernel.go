// Package rules follows a packet through the rules in this kernel, including those of other
// programs, and names the rule that causes a deviation from the desired outcome.
package rules

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// KernelTrace is the path of a packet through the rules in a kernel.
type KernelTrace struct {
	From    string    `json:"from"`
	To      string    `json:"to"`
	Rules   []sim.Met `json:"rules"`             // rules that affected the packet, in order
	Result  string    `json:"result"`            // notKnown if the path has unknown parts
	Assumed string    `json:"assumed,omitempty"` // the result if the unknown parts have no effect
	Wanted  string    `json:"wanted"`            // desired outcome; Result if it is met
	Causes  []string  `json:"causes,omitempty"`  // reasons for the deviation
	Unknown []string  `json:"unknown,omitempty"` // unknown parts of the path
	Left    []string  `json:"left,omitempty"`    // rules that were not read and can affect the packet
	Replies []string  `json:"replies,omitempty"` // foreign chains that can drop; their effect on replies is not checked
	Flows   *flows    `json:"flows,omitempty"`   // tracked connections to the same address and port; nil if unknown
	known
}

// flows counts connections, and those over TCP that have no reply.
type flows struct {
	Tracked int `json:"tracked"`
	Silent  int `json:"silent"`
}

// known is what objects and the daemon's status say about the packet.
type known struct {
	Reasons    []string          `json:"reasons,omitempty"`    // why the newest version of the Service is not in force
	Hindrances []trace.Hindrance `json:"hindrances,omitempty"` // what keeps the packet from being served
	Doubts     []string          `json:"doubts,omitempty"`     // why the rules in force may not be those of the cluster
}

// notKnown is the result for a packet whose path has unknown parts.
const notKnown = "not known"

// tableRoutes is the table name of a route, which appears instead of a rule.
const tableRoutes = "route"

// Missing and Dormant follow the name of a table of proxyc whose rules are not in force.
const (
	Missing = " is missing: proxyc watch or proxyc apply writes it"
	Dormant = " is dormant, so no packet passes its rules: proxyc watch or proxyc apply writes it again"
)

// Path is the effect of all rules, proxyc's and foreign ones, on a packet.
type Path struct {
	sim.Path
	later func(sim.Packet) Path     // follows a later packet of the connection through the same rules; nil if unknown
	gone  string                    // proxyc's table, if it is missing or dormant, with a text for that
	lacks func(element string) bool // reports whether an element that the packet was looked up as is missing; nil if unknown
	holds func(*sim.Met) bool       // reports whether a rule exists at its position, met or not; nil if unknown
	count func(*sim.Met) uint64     // returns the packets that a rule and its element counted; nil if unknown
}

// PathOf returns a Path in which foreign rules are marked.
func PathOf(way sim.Path) Path {
	for i := range way.Met {
		way.Met[i].Foreign = foreign(&way.Met[i])
	}
	return Path{Path: way}
}

// foreign reports whether a rule belongs neither to proxyc nor to kube-proxy.
func foreign(m *sim.Met) bool {
	if m.NoRule {
		return false
	}
	if _, name, native := strings.Cut(m.Table, " "); native {
		return name != nftables.Table && name != "kube-proxy"
	}
	return !iptables.Owned(m.Chain) && !iptables.Owned(iptparse.SavedTarget(iptparse.SavedWords(m.Text)))
}

// followNFT follows a packet through the tables of nf_tables, including added iptables tables.
func followNFT(r *nftables.Ruleset, own *sim.Own, pkt sim.Packet, on nfteval.Machine) Path {
	f := nfteval.NewFollower(r, own).On(on)
	c := PathOf(f.Follow(pkt))
	c.lacks = f.Missed
	return c
}

// expected returns the effect of the rules that proxyc writes for a Program on a packet.
func expected(p *ir.Program, pkt sim.Packet) (Path, error) {
	follower := review.Modes[p.Node.Mode].Follow
	if follower == nil {
		return Path{}, fmt.Errorf("--kernel: the rules of mode %s cannot be traced", p.Node.Mode)
	}
	f := follower(p)
	c := PathOf(f.Follow(pkt))
	if all, ok := f.(interface{ Holds(*sim.Met) bool }); ok {
		c.holds = all.Holds
	}
	return c, nil
}

// position is the position of a rule or a policy.
type position struct {
	table, chain string
	rule         int // as in sim.Met
}

func positionOf(m *sim.Met) position { return position{m.Table, m.Chain, m.Rule} }

// removed is the set of rules and policies that are ignored.
type removed map[position]bool

// ofNFT reports whether a qualified nf_tables rule is removed.
func (r removed) ofNFT(chain string, rule int) bool {
	table, chain, _ := strings.Cut(chain, ", chain ")
	return r[position{table, chain, rule}]
}

func (r removed) ofIPTables(table, chain string, rule int) bool {
	return r[position{table, chain, rule}]
}

// with returns a copy of r that also contains p.
func (r removed) with(p position) removed {
	more := maps.Clone(r)
	more[p] = true
	return more
}

// refollow follows the same packet again and ignores the removed rules.
type refollow func(removed) (Path, error)

// findCauses returns the smallest list of foreign rules whose removal has the same effect as the removal
// of all foreign rules that decide about the packet, in the order in which the packet meets them. Rules
// that the packet would meet without them are causes only if they have the same effect.
// It also returns the path without those rules.
func (c Path) findCauses(again refollow) (causes []sim.Met, free Path, without removed, err error) {
	var all []sim.Met
	without, free = removed{}, c
	for grew := true; grew; {
		grew = false
		for _, m := range free.Met {
			if m.Foreign && m.Table != tableRoutes && !m.Missing && !m.Forwards && !without[positionOf(&m)] {
				without, grew = without.with(positionOf(&m)), true
				all = append(all, m)
			}
		}
		if grew {
			if free, err = again(without); err != nil {
				return nil, c, nil, err
			}
		}
	}
	needed, routed := without, slices.ContainsFunc(free.Met, func(m sim.Met) bool { return m.Table == tableRoutes })
	for _, m := range all {
		less := maps.Clone(needed)
		delete(less, positionOf(&m))
		with, err := again(less)
		if err != nil {
			return nil, c, nil, err
		}
		if met := slices.ContainsFunc(c.Met, func(o sim.Met) bool { return m.Same(&o) }); with.Outcome.Equal(free.Outcome) && !(met && m.Drops && routed) { // the packet meets it before the route
			needed = less
		} else if met || with.Outcome.Equal(c.Outcome) { // otherwise, only another packet has that outcome
			causes = append(causes, m)
		}
	}
	return causes, free, without, nil
}

// compare describes how the path in the kernel differs from the desired one, and why. A rule is a
// cause only if the outcome changes without it.
func (f *KernelTrace) compare(want, have Path, again refollow) error {
	f.Rules, f.Unknown = have.Met, have.Unknown
	f.Result, f.Wanted = have.Outcome.String(), want.Outcome.String()
	if len(f.Unknown)+len(f.Left) > 0 {
		f.Result, f.Assumed = notKnown, f.Result
	}
	if have.Outcome.Equal(want.Outcome) {
		f.findTranslation(want, have)
		return nil
	}
	causes, free, without, err := have.findCauses(again)
	if err != nil {
		return err
	}
	foreignOnly := free.Outcome.Equal(want.Outcome) // kube-proxy may serve instead of proxyc
	if have.gone != "" && !foreignOnly {
		f.Causes = append(f.Causes, have.gone)
	}
	for i := range causes {
		m, does := &causes[i], "determines the result"
		if m.Drops {
			does = "drops the packet"
		}
		f.Causes = append(f.Causes, fmt.Sprintf("%s (foreign) %s: %s", m.Where(), does, m.Text))
	}
	routes := Path{Path: sim.Path{Met: slices.Clone(have.Met)}}
	routes.join(free)
	for i := range routes.Met {
		if m := &routes.Met[i]; m.Table == tableRoutes {
			f.Causes = append(f.Causes, fmt.Sprintf("%s: %s", m.Where(), m.Text))
		}
	}
	if foreignOnly {
		f.findAccept(want, free)
		return nil
	}
	if have.gone != "" {
		return nil
	}
	if err := f.findDeviation(want, free, without, again); err != nil || len(f.Causes) > 0 {
		return err
	}
	if w, h := want.Outcome, have.Outcome; w.Affinity != h.Affinity || w.Timeout != h.Timeout {
		f.Causes = append(f.Causes, fmt.Sprintf("a client keeps its backend for %s, expected: %s", affinityText(h), affinityText(w)))
	}
	return nil
}

// findTranslation names the foreign rule that translates the source instead of the last desired rule.
func (f *KernelTrace) findTranslation(want, have Path) {
	if len(want.Met) == 0 || len(have.Met) == 0 {
		return
	}
	last, by := &want.Met[len(want.Met)-1], &have.Met[len(have.Met)-1]
	if by.Foreign && by.Table != tableRoutes && !by.Drops && !by.Forwards && strings.Contains(strings.ToLower(last.Text), "masquerade") {
		f.Causes = append(f.Causes, fmt.Sprintf("%s (foreign) translates the source first: %s", by.Where(), by.Text))
	}
}

// affinityText returns as text how long a client stays with its backend.
func affinityText(o sim.Outcome) string {
	if !o.Affinity {
		return "one connection"
	}
	return o.Timeout.String()
}

// findAccept names the first missing rule on the way to a rule that would have accepted the packet
// before a foreign rule or policy of the same table. No other rule of ours is a cause if the outcome
// is as desired without foreign rules.
func (f *KernelTrace) findAccept(want, free Path) {
	lacks := func(m sim.Met) bool {
		return !m.Foreign && !m.NoRule && !slices.ContainsFunc(free.Met, func(o sim.Met) bool { return m.Same(&o) })
	}
	accepts := func(m sim.Met) bool { return strings.HasSuffix(m.Text, "-j ACCEPT") && lacks(m) }
	last := slices.IndexFunc(want.Met, accepts)
	if last < 0 {
		return
	}
	first := last
	for first > 0 && want.Met[first-1].Table == want.Met[last].Table && lacks(want.Met[first-1]) {
		first--
	}
	m := want.Met[first]
	m.Rule = 0
	f.Causes = append(f.Causes, fmt.Sprintf("%s: missing or not reached: %s", m.Where(), m.Text))
}

// findDeviation describes where the packet leaves the desired path in proxyc's own rules while the
// foreign rules in without are ignored.
func (f *KernelTrace) findDeviation(want, have Path, without removed, again refollow) error {
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
		case i < len(ours) && ours[i].Missing:
			f.Causes = append(f.Causes, fmt.Sprintf("%s: %s", ours[i].Where(), ours[i].Text))
			return nil
		case lacks && wanted[i].NoRule: // without this rule, the packet meets other rules, which are no cause
		case i < len(ours) && !has(wanted, &ours[i]):
			if at := positionOf(&ours[i]); !ours[i].NoRule && !without[at] {
				rest, err := again(without.with(at))
				if err != nil {
					return err
				}
				if rest.Outcome.Equal(have.Outcome) {
					without, have = without.with(at), rest
					continue
				}
				if lacks && want.holds != nil && want.holds(&ours[i]) {
					break // the rule is correct; the packet should not have reached it
				}
				if fate := have.Outcome.Fate; lacks && fate != want.Outcome.Fate && fate == rest.Outcome.Fate {
					break // reached only because no earlier rule stopped the packet
				}
			}
			f.Causes = append(f.Causes, fmt.Sprintf("%s is not expected: %s", ours[i].Where(), ours[i].Text))
		}
		if lacks {
			wanted[i].Rule = 0
			does := "missing or not reached"
			if element := wanted[i].Element; element != "" && have.lacks != nil && have.lacks(element) {
				does = "without effect, as element " + element + " is missing"
			}
			f.Causes = append(f.Causes, fmt.Sprintf("%s: %s: %s", wanted[i].Where(), does, wanted[i].Text))
		}
		return nil
	}
}

// Well reports whether the kernel is known to handle the packet as desired, and no connection contradicts it.
func (f *KernelTrace) Well() bool {
	silent := f.Flows != nil && f.Flows.Silent > 0 && f.Flows.Silent == f.Flows.Tracked
	return !silent && f.Result == f.Wanted && len(f.Causes)+len(f.Unknown)+len(f.Left)+len(f.Reasons) == 0
}

// WriteText writes the rules that the packet meets, the result, and the reasons for a deviation.
func (f *KernelTrace) WriteText(w io.Writer) error {
	var b strings.Builder
	lines := func(before string, list []string) {
		for _, text := range list {
			fmt.Fprintf(&b, "  %s%s\n", before, text)
		}
	}
	fmt.Fprintf(&b, "%s -> %s by the rules of this kernel\n", f.From, f.To)
	lines("", f.Reasons)
	for i := range f.Rules {
		m := &f.Rules[i]
		text := fmt.Sprintf("%3d. %s: %s", i+1, m.Where(), m.Text)
		if m.Foreign {
			text += "  # foreign"
		}
		if m.Packets > 0 {
			text += "  # counted " + review.Counted(int(m.Packets), "packet")
		}
		fmt.Fprintln(&b, text)
	}
	fmt.Fprintf(&b, "  => %s\n", f.Result)
	if f.Result != f.Wanted {
		fmt.Fprintf(&b, "  expected: %s\n", f.Wanted)
	}
	lines("unsupported: ", f.Unknown)
	lines("not checked: ", f.Left)
	if f.Flows != nil {
		fmt.Fprintf(&b, "  tracked connections to %s: %d", f.To, f.Flows.Tracked)
		if f.Flows.Silent > 0 {
			fmt.Fprintf(&b, "; no reply was seen to %d of them (proxyc flows --wrong)", f.Flows.Silent)
		}
		fmt.Fprintln(&b)
	}
	if f.Assumed != "" {
		fmt.Fprintf(&b, "  if that has no effect on the packet: %s\n", f.Assumed)
	}
	lines("because: ", f.Causes)
	b.WriteString(trace.Required(f.Hindrances))
	lines("replies are not traced; foreign rules that may drop them: ", f.Replies)
	lines("status: ", f.Doubts)
	_, err := io.WriteString(w, b.String())
	return err
}

// Trace traces a packet through the rules in this kernel and compares it with the desired outcome.
// from and to have the syntax of package trace. variant is the iptables variant to read; "" selects
// the one that the node uses. daemon is that of this node. Services of its input that the kernel refuses
// are traced as they would be.
func Trace(ctx context.Context, j *review.Input, programs ir.Programs, from, to, variant string, daemon *review.Daemon) (*KernelTrace, error) {
	if j.Live && len(daemon.Refused) > 0 {
		programs, _ = compiler.Compile(j.Config, j.Snapshot, j.Facts)
	}
	s := trace.NewTracer(j, programs)
	pkt, node, err := s.Packet(from, to)
	if err == nil && node != s.Node {
		err = fmt.Errorf("--kernel: the packet meets the rules of Node %s, not those of this machine", node)
	}
	if err != nil {
		return nil, err
	}
	if !strings.Contains(from, "@") {
		pkt = withInterface(pkt)
	}
	p := s.Programs.Of(ir.FamilyOf(pkt.Dst))
	want, err := expected(p, pkt)
	if err != nil {
		return nil, err
	}
	f := &KernelTrace{From: trace.SenderOf(pkt), To: trace.DestinationOf(pkt), known: known{Doubts: daemon.Doubts()}}
	f.Reasons, f.Hindrances = s.Reasons(p, pkt)
	again, left, err := inKernel(ctx, p, pkt, variant)
	if err != nil {
		return nil, err
	}
	f.Left = left
	have, err := again(nil)
	if err == nil {
		err = f.compare(want, have, again)
	}
	if err == nil && len(have.Outcome.Destinations) > 0 && have.later == nil {
		var others apply.Interference
		others, err = host.Interference(ctx, p.Node.MasqueradeMark(), ir.Programs{})
		f.Replies = others.Drops
	}
	f.count(have, pkt)
	f.explain(daemon, p, pkt)
	return f, err
}

// count adds what the rules have counted, and the connections that the kernel tracks.
func (f *KernelTrace) count(have Path, pkt sim.Packet) {
	for i := range f.Rules {
		if have.count != nil {
			f.Rules[i].Packets = have.count(&f.Rules[i])
		}
	}
	n, dst := flows{}, netip.AddrPortFrom(pkt.Dst, pkt.Port)
	if conntrack.Each(ir.FamilyOf(pkt.Dst), func(e conntrack.Entry) error {
		if e.Protocol == pkt.Protocol && e.To == dst {
			n.Tracked++
			if e.Unanswered && e.Protocol == ir.TCP {
				n.Silent++
			}
		}
		return nil
	}) == nil {
		f.Flows = &n
	}
}

// explain adds why the daemon has other rules than those of the newest objects, of which p is.
func (f *KernelTrace) explain(daemon *review.Daemon, p *ir.Program, pkt sim.Packet) {
	service := trace.Serving(p, pkt)
	if applied := daemon.InForce.Of(p.Family); service == (ir.Name{}) && applied != nil {
		service = trace.Serving(applied, pkt)
	}
	f.Reasons = append(f.Reasons, daemon.About(service)...)
	kept := slices.ContainsFunc(daemon.Invalid, func(p status.Problem) bool { return p.Object == "Service "+service.String() })
	if kept && len(f.Causes) > 0 {
		f.Causes = slices.DeleteFunc(f.Causes, func(cause string) bool {
			return strings.Contains(cause, " is not expected: ") || strings.Contains(cause, ": missing or not reached: ")
		})
		f.Causes = append(f.Causes, "the rules in force are of the last good version of Service "+service.String())
	}
}

// WriteJSON writes a document of kind KernelTrace.
func (f *KernelTrace) WriteJSON(w io.Writer) error {
	return review.WriteDocument(w, "KernelTrace", "  ", f)
}

// TableOf returns the name of proxyc's table of a family, such as "ip proxyc".
func TableOf(f ir.Family) string { return f.NFT() + " " + nftables.Table }
