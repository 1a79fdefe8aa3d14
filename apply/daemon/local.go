package daemon

import "github.com/proxyc/proxyc/ir"

// tally counts, in one family, what metrics tell of all Services together. It
// follows the Services that changed, so that it costs what they do.
type tally struct {
	// internal and external are service ports with that traffic policy Local
	// that have endpoints, but none on this node.
	internal, external int
}

// reset counts all Services of a Program.
func (t *tally) reset(p *ir.Program) {
	*t = tally{}
	for i := range p.Services {
		t.add(&p.Services[i], 1)
	}
}

// change follows Services that changed.
func (t *tally) change(changes []ir.Change) {
	for _, c := range changes {
		if c.Old != nil {
			t.add(c.Old, -1)
		}
		if c.New != nil {
			t.add(c.New, 1)
		}
	}
}

// add adds a Service n times.
func (t *tally) add(s *ir.Service, n int) {
	type side struct {
		port     ir.ServicePort
		external bool
	}
	var counted map[side]bool
	for i := range s.Frontends {
		f := &s.Frontends[i]
		// Drop is for traffic policy Local; without any endpoint it is Reject (PKT-8, PKT-9).
		at := side{f.Port, f.Kind.External()}
		if f.Else != ir.Drop || counted[at] {
			continue
		}
		if counted == nil {
			counted = map[side]bool{}
		}
		counted[at] = true
		if at.external {
			t.external += n
		} else {
			t.internal += n
		}
	}
}
