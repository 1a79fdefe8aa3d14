package compiler

import (
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// What one Service may ask of every node in one family. It is served at each of
// its addresses with each of its ports, and admits each source range at each of
// these, so that an object of some kilobytes could take gigabytes of all nodes.
// What is no such product is never cut: ports at the ClusterIP and node ports
// are as many as an object of the API has room for.
const (
	maxFrontends = 10_000
	maxAdmitted  = 200_000 // source ranges of all frontends
)

// boundsPass leaves out addresses that would be too much: external IPs before
// those of load balancers, and of one kind the last ones.
func (s *service) boundsPass(f ir.Family) {
	v := s.views.At(f)
	frontends, admitted := len(s.ports), 0 // those of the ClusterIP, which stands first
	for i := range s.ports {
		count(&frontends, s.ports[i].nodePort != 0)
	}
	fits := func(kind ir.Kind) bool {
		more, ranges := len(s.ports), 0
		if kind == ir.LoadBalancer {
			ranges = len(s.ports) * len(v.ranges)
		}
		if frontends+more > maxFrontends || admitted+ranges > maxAdmitted {
			return false
		}
		frontends, admitted = frontends+more, admitted+ranges
		return true
	}
	for _, kind := range [...]ir.Kind{ir.LoadBalancer, ir.ExternalIP} {
		var left []address
		v.addrs = slices.DeleteFunc(v.addrs, func(a address) bool {
			out := a.kind == kind && !fits(kind)
			if out {
				left = append(left, a)
			}
			return out
		})
		if len(left) > 0 {
			s.report(diag.TooManyFrontends, left[0].field, s.tooMany(f, len(left), left[0]))
		}
	}
}

// tooMany says that addresses are left out, and why.
func (s *service) tooMany(f ir.Family, n int, first address) string {
	what := first.String() + " is"
	if n > 1 {
		what = first.String() + " and " + strconv.Itoa(n-1) + " more addresses are"
	}
	why := "at most " + strconv.Itoa(maxFrontends) + " frontends"
	if ranges := len(s.views.Of(f).ranges); first.kind == ir.LoadBalancer && ranges > 0 {
		why += " and " + strconv.Itoa(maxAdmitted) + " source ranges of frontends"
	}
	return what + " left out, with " + counted(len(s.ports), "port") + " each: a Service can have " + why + " in " + f.String()
}
