package loop

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fragments keeps what each Service of one family was lowered to.
type Fragments[F any] struct {
	Lower func(node *ir.Node, family ir.Family, svc *ir.Service) F

	names []ir.Name // in order
	of    []F       // of the Service at the same place in names
}

// Reset lowers all Services of a Program.
func (f *Fragments[F]) Reset(p *ir.Program) {
	f.names, f.of = make([]ir.Name, len(p.Services)), make([]F, len(p.Services))
	for i := range p.Services {
		f.names[i], f.of[i] = p.Services[i].Name, f.Lower(&p.Node, p.Family, &p.Services[i])
	}
}

// Change lowers the Services that changed. It reads nothing of the others.
func (f *Fragments[F]) Change(p *ir.Program, changes []ir.Change) {
	for _, c := range changes {
		i, there := slices.BinarySearchFunc(f.names, c.Name, ir.Name.Compare)
		switch {
		case c.New != nil && there:
			f.of[i] = f.Lower(&p.Node, p.Family, c.New)
		case c.New != nil:
			f.names = slices.Insert(f.names, i, c.Name)
			f.of = slices.Insert(f.of, i, f.Lower(&p.Node, p.Family, c.New))
		case there:
			f.names, f.of = slices.Delete(f.names, i, i+1), slices.Delete(f.of, i, i+1)
		}
	}
}

// All gives the fragments in the order of their Services' names. The caller
// must not change them, nor keep them beyond the next Change.
func (f *Fragments[F]) All() []F { return f.of }
