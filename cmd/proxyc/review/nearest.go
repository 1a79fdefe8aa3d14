package review

import (
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// DidYouMean returns a hint for the end of a message with the most similar known name; "" for none.
func DidYouMean(name string, known []string) string {
	if hint := diag.DidYouMean(name, known); hint != "" {
		return " (" + hint + ")"
	}
	return ""
}

// NearestService returns a hint with the Service whose name is most similar; "" for none.
func NearestService(programs ir.Programs, name ir.Name) string {
	var names []string
	for svc := range Services(programs) {
		names = append(names, svc.Name.String())
	}
	return DidYouMean(name.String(), names)
}

// Services yields the Services of both families; one in both is yielded twice.
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
