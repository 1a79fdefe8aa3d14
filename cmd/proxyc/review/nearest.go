package review

import (
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// DidYouMean returns a hint, to stand at the end of a message, at the known name nearest to one;
// empty for none.
func DidYouMean(name string, known []string) string {
	if hint := diag.DidYouMean(name, known); hint != "" {
		return " (" + hint + ")"
	}
	return ""
}

// NearestService returns a hint at the Service whose name is nearly the one given; empty
// for none.
func NearestService(programs ir.Programs, name ir.Name) string {
	var names []string
	for svc := range Services(programs) {
		names = append(names, svc.Name.String())
	}
	return DidYouMean(name.String(), names)
}

// Services are those of both families; one that is in both comes twice.
func Services(programs ir.Programs) func(yield func(*ir.Service) bool) {
	return func(yield func(*ir.Service) bool) {
		for _, p := range programs.All() {
			for i := range p.Services {
				if !yield(&p.Services[i]) {
					return
				}
			}
		}
	}
}
