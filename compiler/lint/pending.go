package lint

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Pending maps Services that the API server has not seen yet to their object
// names in diagnostics.
type Pending map[ir.Name]string

// Has reports whether a Service is pending.
func (p Pending) Has(name ir.Name) bool { _, ok := p[name]; return ok }

// Adjust adapts findings to Services that the API server has not seen. It removes
// findings about a missing health check port, which the API server allocates, and
// about an address that only a replaced object lacks. It lowers any other missing
// address to an info.
func (p Pending) Adjust(list diag.List) (out diag.List) {
	objects := sets.New(slices.Collect(maps.Values(p))...)
	for _, d := range list {
		switch {
		case d.Code == diag.NoClusterIP && !objects.Has(d.Object) || d.Code == diag.HealthPortMissing && objects.Has(d.Object):
			continue
		case d.Code == diag.NoClusterIP:
			d.Severity = diag.Info
			d.Msg, d.Hint = "is not set yet: the Service is checked as if it were", "the API server allocates it; without it, compile writes no rules"
		}
		out = append(out, d)
	}
	return out
}
