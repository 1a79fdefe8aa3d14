// Package proof compares two sides for every first packet. A side is the rules of a mode, the
// meaning of the IR, a dump of rules, or this kernel.
package proof

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Verdicts of a proof.
const (
	Equal              = "equal"
	NoDifference       = "no difference in the compared rules"
	verdictAltered     = NoDifference + ", but results may differ" // by foreign rules or settings of the kernel
	verdictDifferent   = "different"
	verdictDesign      = "different by design" // only because the capabilities of the modes differ
	verdictNotProvable = "not provable"
)

// Proof is the result of a comparison.
type Proof struct {
	A           string      `json:"a"`
	B           string      `json:"b"`
	Verdict     string      `json:"verdict"`
	Classes     int         `json:"classes"` // number of compared packet classes
	Differences []differs   `json:"differences,omitempty"`
	Unknown     []string    `json:"unknown,omitempty"`     // what proxyc does not understand
	NotCompared []string    `json:"notCompared,omitempty"` // parts of a dump that are not compared
	Notes       []string    `json:"notes,omitempty"`       // what explains differences
	Families    []ir.Family `json:"families"`
	OneSided    []string    `json:"oneSided,omitempty"` // "IPv6: only mode:nftables"
	Trace       string      `json:"-"`                  // command that shows a Packet
}

// differs is a group of clients for which a destination has different outcomes.
type differs struct {
	To       string         `json:"to"`             // "10.96.0.10:80/tcp"
	Frontend string         `json:"frontend"`       // "ClusterIP of default/web:http"; "" if it belongs to no Service
	From     []netip.Prefix `json:"from,omitempty"` // empty for the node itself
	In       string         `json:"in,omitempty"`   // interface; "" for the node itself, or any that no rule names
	A        string         `json:"a"`
	B        string         `json:"b"`
	RuleA    *sim.Met       `json:"ruleA,omitempty"` // rule that decides about Packet, if the side's rules can be followed
	RuleB    *sim.Met       `json:"ruleB,omitempty"`
	Packet   string         `json:"packet"`           // flags of proxyc trace for one packet
	Design   string         `json:"design,omitempty"` // capabilities that only one of the modes has (docs/reference/ir.md), if they are the reason
	outcomes [2]sim.Outcome
	sources  []prove.Addrs
	first    prove.Class
	ports    []sim.Ports
}

// Compare compares the families in parallel, so that each has its share of the time.
func Compare(ctx context.Context, a, b *Side, programs ir.Programs) (*Proof, error) {
	out := &Proof{A: a.name, B: b.name, Verdict: Equal, NotCompared: append(slices.Clone(a.notCompared), b.notCompared...), Notes: append(a.notes(b), b.notes(a)...)}
	type result struct {
		*prove.Result
		err error
	}
	var results ir.PerFamily[result]
	var wait sync.WaitGroup
	for f, p := range ir.Present(programs) {
		sideA, sideB := a.sides.Of(f), b.sides.Of(f)
		switch {
		case sideA == nil && sideB == nil:
			continue
		case sideA == nil || sideB == nil:
			has, lacks := a, b
			if sideA == nil {
				has, lacks = b, a
			}
			if lacks.dump == "" || len(p.Services) > 0 {
				out.OneSided = append(out.OneSided, fmt.Sprintf("%s: only %s has rules%s", f, has.name, lacks.missing(f)))
			}
			continue
		}
		node := prove.NodeOf(p)
		for _, d := range [...]*Side{a, b} {
			if of := d.programs.Of(f); of != nil && node.Carries == nil {
				node.Carries = prove.NodeOf(of).Carries
			}
		}
		out.Families = append(out.Families, f)
		wait.Go(func() {
			r, err := prove.Compare(ctx, node, *sideA, *sideB)
			*results.At(f) = result{r, err}
		})
	}
	wait.Wait()
	for _, f := range out.Families {
		r := results.Of(f)
		if r.err != nil {
			return nil, r.err
		}
		out.Classes += r.Classes
		for _, d := range r.Doubts {
			out.Unknown = append(out.Unknown, d.Unknown...)
		}
		p := programs.Of(f)
		design := prove.NewDesign(a.meant(f, cmp.Or(b.programs.Of(f), p)), b.meant(f, cmp.Or(a.programs.Of(f), p)))
		out.Differences = append(out.Differences, grouped(r.Differences, p, design)...)
	}
	if len(out.Families) == 0 {
		return nil, fmt.Errorf("%s and %s have no family in common", a.name, b.name)
	}
	slices.Sort(out.Unknown)
	out.Unknown = slices.Compact(out.Unknown)
	switch {
	case slices.ContainsFunc(out.Differences, func(d differs) bool { return d.Design == "" }):
		out.Verdict = verdictDifferent
	case len(out.Unknown)+len(out.OneSided) > 0:
		out.Verdict = verdictNotProvable
	case len(out.Differences) > 0:
		out.Verdict = verdictDesign
	case a.altered || b.altered:
		out.Verdict = verdictAltered
	case len(out.NotCompared) > 0:
		out.Verdict = NoDifference
	}
	return out, nil
}

// Without notes a part that is not compared.
func (p *Proof) Without(part string) {
	if p.NotCompared = append(p.NotCompared, part); p.Verdict == Equal {
		p.Verdict = NoDifference
	}
}

// grouped merges classes that differ only in their sources, and adds the frontend of each.
func grouped(all []prove.Difference, p *ir.Program, by *prove.Design) (out []differs) {
	frontends := map[ir.Match]*ir.Frontend{}
	for i := range p.Services {
		for k := range p.Services[i].Frontends {
			f := &p.Services[i].Frontends[k]
			frontends[f.Match] = f
		}
	}
	type kind struct {
		dst      prove.Addrs
		protocol ir.Protocol
		port     uint16
		in, a, b string
		design   ir.Capability
	}
	at := map[kind]int{}
	for _, d := range all {
		k := kind{d.Dst, d.Protocol, d.Packet.Port, d.Packet.In, d.A.String(), d.B.String(), by.Of(&d)}
		i, known := at[k]
		if !known {
			i = len(out)
			at[k] = i
			one := differs{A: k.a, B: k.b, Design: k.design.String(), first: d.Class, outcomes: [2]sim.Outcome{d.A, d.B},
				Packet: review.PacketFlags(d.Packet)}
			if !d.AnyIn {
				one.In = d.Packet.In
			}
			for _, m := range [...]ir.Match{
				{Addr: d.Packet.Dst, Protocol: d.Protocol, Port: d.Packet.Port}, {Protocol: d.Protocol, Port: d.Packet.Port},
			} {
				if f := frontends[m]; f != nil && (m.Addr.IsValid() || p.Node.HasAddr(d.Packet.Dst)) {
					one.Frontend = fmt.Sprintf("%s of %s", f.Kind, f.Port)
					break
				}
			}
			out = append(out, one)
		}
		out[i].sources = append(out[i].sources, d.Src)
	}
	for i := range out {
		if !out[i].first.Packet.FromNode() {
			out[i].From = joined(out[i].sources)
		}
	}
	return joinPorts(out)
}

// joinPorts merges the differences of no Service that differ only in ports.
func joinPorts(all []differs) (out []differs) {
	type kind struct {
		dst            prove.Addrs
		protocol       ir.Protocol
		from, in, a, b string
		design         string
	}
	at := map[kind]int{}
	for _, d := range all {
		if d.Frontend == "" {
			k := kind{d.first.Dst, d.first.Protocol, fmt.Sprint(d.From), d.first.Packet.In, d.A, d.B, d.Design}
			if i, known := at[k]; known {
				out[i].ports = append(out[i].ports, d.first.Ports()...)
				continue
			}
			at[k] = len(out)
		}
		d.ports = d.first.Ports()
		out = append(out, d)
	}
	for i := range out {
		out[i].To = destinationText(&out[i].first, sim.JoinPorts(out[i].ports))
	}
	slices.SortStableFunc(out, func(a, b differs) int {
		return cmp.Or(a.first.Dst.First.Compare(b.first.Dst.First), cmp.Compare(a.first.Protocol, b.first.Protocol), cmp.Compare(a.first.Packet.Port, b.first.Packet.Port))
	})
	return out
}

// joined returns the prefixes that cover ranges of addresses, after adjacent ranges are merged.
func joined(ranges []prove.Addrs) (prefixes []netip.Prefix) {
	slices.SortFunc(ranges, func(a, b prove.Addrs) int { return a.First.Compare(b.First) })
	for i := 0; i < len(ranges); {
		one := ranges[i]
		for i++; i < len(ranges) && one.Last.Next() == ranges[i].First; i++ {
			one.Last = ranges[i].Last
		}
		prefixes = append(prefixes, ir.PrefixesOf(one.First, one.Last)...)
	}
	return prefixes
}

// shownPorts is the maximum number of port ranges in the text of a destination.
const shownPorts = 8

func destinationText(c *prove.Class, of []sim.Ports) string {
	addr := c.Dst.First.String()
	switch {
	case c.Rest.IsValid():
		addr = "other addresses of " + c.Rest.String()
	case c.Dst.First != c.Dst.Last:
		addr += "-" + c.Dst.Last.String()
	case c.Dst.First.Is6():
		addr = "[" + addr + "]"
	}
	var ports []string
	for i, p := range of {
		if i == shownPorts {
			ports = append(ports, "…")
			break
		}
		one := fmt.Sprint(p.First)
		if p.First != p.Last {
			one += fmt.Sprintf("-%d", p.Last)
		}
		ports = append(ports, one)
	}
	if c.Rest.IsValid() {
		addr += ", port "
		return fmt.Sprintf("%s%s/%s", addr, strings.Join(ports, ","), c.Protocol)
	}
	return fmt.Sprintf("%s:%s/%s", addr, strings.Join(ports, ","), c.Protocol)
}

// from returns the clients as text.
func (d *differs) from() string {
	if d.first.Packet.FromNode() {
		return "the node itself"
	}
	const shown = 6
	words := make([]string, 0, shown)
	for i, p := range d.From {
		if i == shown {
			words = append(words, fmt.Sprintf("%d more", len(d.From)-shown))
			break
		}
		words = append(words, p.String())
	}
	text := strings.Join(words, ", ")
	if len(d.From) == 1 && d.From[0].Bits() == 0 {
		text = "any source"
	}
	if d.In != "" {
		text += " by " + d.In
	}
	return text
}

// mostDestinations is the maximum number of destinations that WriteText prints unless all is set.
const mostDestinations = 20

// each calls print for the differences that WriteText prints; begins for the first one of a destination. It
// reports whether there are more.
func (p *Proof) each(all bool, print func(d *differs, begins bool)) (more bool) {
	last, shown := "", 0
	for i := range p.Differences {
		d := &p.Differences[i]
		if d.Design != "" && !all {
			continue
		}
		begins := d.To != last
		if begins {
			last, shown = d.To, shown+1
		}
		if shown > mostDestinations && !all {
			return true
		}
		print(d, begins)
	}
	return false
}

// WriteText writes the differences and the verdict. Unless all is set, it writes only the first
// destinations, and one line for all differences by the same design.
func (p *Proof) WriteText(w io.Writer, all bool) error {
	for _, o := range p.NotCompared {
		fmt.Fprintf(w, "not compared: %s\n", o)
	}
	width := max(len(p.A), len(p.B))
	if p.each(all, func(d *differs, begins bool) {
		if begins {
			fmt.Fprintf(w, "%s  %s\n", d.To, cmp.Or(d.Frontend, "no Service"))
		}
		fmt.Fprintf(w, "  from %s\n", d.from())
		side := func(name, fate string, by *sim.Met) {
			fmt.Fprintf(w, "    %-*s  %s\n", width, name, fate)
			if by != nil {
				fmt.Fprintf(w, "      %s: %s\n", by.Where(), by.Text)
			}
		}
		side(p.A, d.A, d.RuleA)
		side(p.B, d.B, d.RuleB)
		fmt.Fprintf(w, "    %s %s\n", p.Trace, d.Packet)
		if d.Design != "" {
			fmt.Fprintf(w, "    by design: %s\n", d.Design)
		}
	}) {
		fmt.Fprintf(w, "and more: --all shows them\n")
	}
	if !all {
		p.writeDesigns(w)
	}
	for _, u := range p.Unknown {
		fmt.Fprintf(w, "unsupported: %s\n", u)
	}
	for _, o := range p.OneSided {
		fmt.Fprintf(w, "not compared: %s\n", o)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	families := make([]string, len(p.Families))
	for i, f := range p.Families {
		families[i] = f.String()
	}
	limit := "" // scripts and people read this line alone
	if len(p.OneSided)+len(p.NotCompared) > 0 && !strings.HasPrefix(p.Verdict, NoDifference) {
		limit = ", without the parts that are not compared"
	}
	_, err := fmt.Fprintf(w, "%s: %s and %s, %s, %d classes of packets%s\n", p.Verdict, p.A, p.B, strings.Join(families, " and "), p.Classes, limit)
	return err
}

// writeDesigns writes one line for each design.
func (p *Proof) writeDesigns(w io.Writer) {
	at := map[string][]string{} // destinations of a design
	var designs []string
	for i := range p.Differences {
		d := &p.Differences[i]
		if known := at[d.Design]; d.Design == "" || len(known) > 0 && known[len(known)-1] == d.To {
			continue
		}
		if at[d.Design] == nil {
			designs = append(designs, d.Design)
		}
		at[d.Design] = append(at[d.Design], d.To)
	}
	for _, design := range designs {
		to := at[design][0]
		if n := len(at[design]); n > 1 {
			to = fmt.Sprintf("%d destinations, the first is %s", n, to)
		}
		fmt.Fprintf(w, "by design: %s: %s (--all shows all)\n", design, to)
	}
}

// WriteJSON writes a document of kind Proof.
func (p *Proof) WriteJSON(w io.Writer) error {
	return review.WriteDocument(w, "Proof", "  ", p)
}
