package loop

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// held are the Programs that a kernel holds. To change a Service in them costs
// the same however many there are.
type held struct {
	bare     []*ir.Program // without their Services
	services [Families]map[ir.Name]*ir.Service
}

func newHeld(programs []*ir.Program) *held {
	h := &held{bare: make([]*ir.Program, len(programs))}
	for i, p := range programs {
		h.bare[i] = &ir.Program{Family: p.Family, Node: p.Node}
		h.services[i] = make(map[ir.Name]*ir.Service, len(p.Services))
		for j := range p.Services {
			h.services[i][p.Services[j].Name] = &p.Services[j]
		}
	}
	return h
}

func (h *held) change(changes [Families][]ir.Change) {
	for i, of := range changes {
		for _, c := range of {
			if c.New == nil {
				delete(h.services[i], c.Name)
			} else {
				h.services[i][c.Name] = c.New
			}
		}
	}
}

// programs gives the Programs with their Services.
func (h *held) programs() []*ir.Program {
	programs := make([]*ir.Program, len(h.bare))
	for i, bare := range h.bare {
		p := *bare
		p.Services = make([]ir.Service, 0, len(h.services[i]))
		for _, s := range h.services[i] {
			p.Services = append(p.Services, *s)
		}
		slices.SortFunc(p.Services, func(a, b ir.Service) int { return a.Name.Compare(b.Name) })
		programs[i] = &p
	}
	return programs
}
