package loop

import "github.com/proxyc/proxyc/ir"

// Fragments keeps what each Service of one family was lowered to.
type Fragments[F any] struct {
	Lower func(node *ir.Node, family ir.Family, svc *ir.Service) F

	of map[ir.Name]F
}

// Reset lowers all Services of a Program.
func (f *Fragments[F]) Reset(p *ir.Program) {
	f.of = make(map[ir.Name]F, len(p.Services))
	for i := range p.Services {
		f.set(p, &p.Services[i])
	}
}

// Change lowers the Services that changed in a Program.
func (f *Fragments[F]) Change(p *ir.Program, changes []ir.Change) {
	for _, c := range changes {
		if c.New == nil {
			delete(f.of, c.Name)
		} else {
			f.set(p, c.New)
		}
	}
}

func (f *Fragments[F]) set(p *ir.Program, svc *ir.Service) {
	f.of[svc.Name] = f.Lower(&p.Node, p.Family, svc)
}

// All gives the fragments of a Program in the order of its Services, which
// Reset and Change were told of.
func (f *Fragments[F]) All(p *ir.Program) []F {
	all := make([]F, len(p.Services))
	for i := range p.Services {
		all[i] = f.of[p.Services[i].Name]
	}
	return all
}
