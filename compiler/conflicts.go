package compiler

import (
	"slices"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// claims are the Services that want a Match, in one family. kube-proxy leaves
// it to chance who gets it (SNAP-32); here the older object does, and of two
// of one age the first by name.
type claims struct {
	only   map[ir.Match]*entry   // wanted by one
	shared map[ir.Match][]*entry // wanted by several, the owner first
}

func newClaims(services int) *claims {
	return &claims{only: make(map[ir.Match]*entry, services), shared: map[ir.Match][]*entry{}}
}

// older tells whether a wins over b.
func (e *entry) older(o *entry) int {
	if c := e.created.Compare(o.created); c != 0 {
		return c
	}
	return e.name.Compare(o.name)
}

// add notes what a Service wants; touched is called with every Service that
// shares something with it, itself too.
func (c *claims) add(e *entry, s *ir.Service, touched func(*entry)) {
	if s == nil {
		return
	}
	for i := range s.Frontends {
		m := s.Frontends[i].Match
		others := c.shared[m]
		if others == nil {
			other := c.only[m]
			if other == nil {
				c.only[m] = e
				continue
			}
			delete(c.only, m)
			others = []*entry{other}
		}
		others = append(others, e)
		slices.SortFunc(others, (*entry).older)
		c.shared[m] = others
		for _, o := range others {
			touched(o)
		}
	}
}

// remove takes back what add noted.
func (c *claims) remove(e *entry, s *ir.Service, touched func(*entry)) {
	if s == nil {
		return
	}
	for i := range s.Frontends {
		m := s.Frontends[i].Match
		others := c.shared[m]
		if others == nil {
			delete(c.only, m)
			continue
		}
		others = slices.DeleteFunc(others, func(o *entry) bool { return o == e })
		for _, o := range others {
			touched(o)
		}
		if c.shared[m] = others; len(others) == 1 {
			delete(c.shared, m)
			c.only[m] = others[0]
		}
	}
}

// owner gives the Service that gets a match, if that is not e.
func (c *claims) owner(m ir.Match, e *entry) *entry {
	if others := c.shared[m]; len(others) > 0 && others[0] != e {
		return others[0]
	}
	return nil
}

// conflictsPass leaves out of a Service what belongs to another.
func (c *claims) conflictsPass(e *entry, s *ir.Service) (*ir.Service, diag.List) {
	if s == nil || len(c.shared) == 0 {
		return s, nil
	}
	var diags diag.List
	out := s
	for i := range s.Frontends {
		f := &s.Frontends[i]
		o := c.owner(f.Match, e)
		if o == nil {
			continue
		}
		why := "which is older"
		if o.created.Equal(e.created) {
			why = "which comes first by name"
		}
		diags.Add(diag.Diagnostic{Object: f.Origin.Object, Path: f.Origin.Field,
			Msg: f.Match.String() + " belongs to Service " + o.name.String() + ", " + why + ": it is left out here"})
	}
	if len(diags) > 0 {
		out = without(s, func(f *ir.Frontend) bool { return c.owner(f.Match, e) != nil })
	}
	return out, diags
}
