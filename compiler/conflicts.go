package compiler

import (
	"cmp"
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

// older orders by who wins. An object whose creationTimestamp is missing, as
// in files written by hand, is not there yet: it counts as younger.
func (e *entry) older(o *entry) int {
	if e.created.IsZero() != o.created.IsZero() {
		return -e.created.Compare(o.created)
	}
	return cmp.Or(e.created.Compare(o.created), e.name.Compare(o.name))
}

// add notes what a Service wants; touched is called with every Service that
// shares something with it, itself too.
func (c *claims) add(e *entry, s *ir.Service, touched func(*entry)) {
	c.change(s, touched, func(all []*entry) []*entry {
		all = append(all, e)
		slices.SortFunc(all, (*entry).older)
		return all
	})
}

// remove takes back what add noted; touched is called with every Service that
// shared something with it.
func (c *claims) remove(e *entry, s *ir.Service, touched func(*entry)) {
	c.change(s, touched, func(all []*entry) []*entry {
		return slices.DeleteFunc(all, func(o *entry) bool { return o == e })
	})
}

// change lets with change who wants each Match of a Service.
func (c *claims) change(s *ir.Service, touched func(*entry), with func([]*entry) []*entry) {
	if s == nil {
		return
	}
	for i := range s.Frontends {
		m := s.Frontends[i].Match
		all := c.of(m)
		before := len(all)
		all = with(all)
		c.set(m, all)
		if max(before, len(all)) > 1 {
			for _, e := range all {
				touched(e)
			}
		}
	}
}

// of gives the Services that want a Match, the owner first.
func (c *claims) of(m ir.Match) []*entry {
	if e := c.only[m]; e != nil {
		return []*entry{e}
	}
	return c.shared[m]
}

func (c *claims) set(m ir.Match, all []*entry) {
	delete(c.only, m)
	delete(c.shared, m)
	switch len(all) {
	case 0:
	case 1:
		c.only[m] = all[0]
	default:
		c.shared[m] = all
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
		diags.Add(diag.Diagnostic{Severity: diag.Error, Object: f.Origin.Object, Path: f.Origin.Field,
			Msg: f.Match.String() + " belongs to Service " + o.name.String() + ", " + why + ": it is left out here"})
	}
	if len(diags) > 0 {
		out = without(s, func(f *ir.Frontend) bool { return c.owner(f.Match, e) != nil })
	}
	return out, diags
}
