package nftables

import (
	"io"
	"strconv"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Tables are the Rulesets of a node.
type Tables struct{ ir.PerFamily[*Ruleset] }

// NewTables returns the given Rulesets by family.
func NewTables(of ...*Ruleset) (t Tables) {
	for _, r := range of {
		*t.At(r.Family) = r
	}
	return t
}

// LowerAll returns the tables of a node's Programs.
func LowerAll(programs ir.Programs) Tables { return Tables{render.Each(programs, Lower)} }

// Outputs returns the single script that nft loads.
func (t Tables) Outputs() []render.Output {
	return []render.Output{{
		Format: "nftables",
		File:   "nftables.nft",
		Load:   "nft -f nftables.nft",
		Write:  func(w io.Writer) error { return Write(w, t) },
	}}
}

// Explain adds every element and then every rule of each table.
func (t Tables) Explain(add func(render.Entry)) {
	for _, r := range ir.Present(t.PerFamily) {
		r.explain(add)
	}
}

func (r *Ruleset) explain(add func(render.Entry)) {
	table := r.Family.NFT() + " " + Table + " "
	for i := range r.Sets {
		r.Sets[i].explain(table, add)
	}
	for i := range r.Chains {
		c := &r.Chains[i]
		for j := range c.Rules {
			add(render.Entry{
				Where:  table + c.Name + " rule " + strconv.Itoa(j+1),
				Text:   c.Rules[j].Text(r.Family),
				Port:   c.Port,
				Origin: c.Rules[j].Origin,
			})
		}
	}
}

func (s *Set) explain(table string, add func(render.Entry)) {
	if s.Timeout > 0 {
		add(render.Entry{Where: table + s.Name, Port: s.Port, Origin: s.Origin})
	}
	for i := range s.Elements {
		e := &s.Elements[i]
		entry := render.Entry{Where: table + s.Name + " " + s.KeyText(e.Key), Port: s.Port, Origin: *e.Origin}
		if e.Frontend != nil {
			entry.Match, entry.Port = e.Frontend.Match.String(), e.Frontend.Port
		}
		add(entry)
	}
}
