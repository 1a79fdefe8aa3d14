package serve

import "github.com/proxyc/proxyc/ir"

// Tally counts, in one family, values of all Services for metrics. It follows changed Services, so
// its cost is proportional to the changes.
type Tally struct {
	// Internal and External are the numbers of service ports with that traffic policy Local whose
	// endpoints are all on other nodes.
	Internal, External int
}

// Reset counts all Services of a Program.
func (t *Tally) Reset(p *ir.Program) {
	*t = Tally{}
	for i := range p.Services {
		t.add(&p.Services[i], 1)
	}
}

// Change updates the counts for changed Services.
func (t *Tally) Change(changes []ir.Change) {
	for _, c := range changes {
		if c.Old != nil {
			t.add(c.Old, -1)
		}
		if c.New != nil {
			t.add(c.New, 1)
		}
	}
}

// add adds the counts of a Service n times.
func (t *Tally) add(s *ir.Service, n int) {
	type side struct {
		port     ir.ServicePort
		external bool
	}
	var counted map[side]bool
	for i := range s.Frontends {
		f := &s.Frontends[i]
		// Drop means traffic policy Local without local endpoints (PKT-9). Without any endpoint it is
		// Reject (PKT-8).
		at := side{f.Port, f.Kind.External()}
		if f.Fallback != ir.Drop || counted[at] {
			continue
		}
		ir.SetIn(&counted, at, true)
		if at.external {
			t.External += n
		} else {
			t.Internal += n
		}
	}
}
