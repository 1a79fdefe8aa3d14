package loop

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// held are the Programs that a kernel holds. To change a Service in them costs
// the same however many there are.
type held struct {
	bare     ir.Programs // without their Services
	services ir.PerFamily[map[ir.Name]*ir.Service]
}

func newHeld(programs ir.Programs) *held {
	h := &held{}
	for f, p := range ir.Present(programs) {
		*h.bare.At(f) = &ir.Program{Family: f, Node: p.Node}
		services := make(map[ir.Name]*ir.Service, len(p.Services))
		for j := range p.Services {
			services[p.Services[j].Name] = &p.Services[j]
		}
		*h.services.At(f) = services
	}
	return h
}

func (h *held) change(changes ir.Changes) {
	for f, of := range changes.All() {
		services := h.services.Of(f)
		for _, c := range of {
			if c.New == nil {
				delete(services, c.Name)
			} else {
				services[c.Name] = c.New
			}
		}
	}
}

// programs gives the Programs with their Services.
func (h *held) programs() (programs ir.Programs) {
	for f, bare := range ir.Present(h.bare) {
		p := *bare
		services := h.services.Of(f)
		p.Services = make([]ir.Service, 0, len(services))
		for _, s := range services {
			p.Services = append(p.Services, *s)
		}
		slices.SortFunc(p.Services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
		*programs.At(f) = &p
	}
	return programs
}
