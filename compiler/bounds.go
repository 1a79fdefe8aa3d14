package compiler

import (
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// What one Service may ask of every node in one family. It is served at each of
// its addresses with each of its ports, admits each source range at each of
// these, and sends to each endpoint from there, so that objects of some
// kilobytes could take gigabytes of all nodes. What is no such product is never
// cut: ports at the ClusterIP and node ports are as many as an object of the API
// has room for, and one port has all its endpoints.
//
// Kubernetes is tested with 5,000 endpoints of a Service: with 10 ports at a
// ClusterIP, node ports and two addresses of load balancers these are 200,000
// backends.
const (
	maxFrontends = 10_000
	maxAdmitted  = 20_000  // source ranges of all frontends: a rule or an element each in modes iptables and ipvs, 250 bytes in the boot file
	maxBackends  = 500_000 // endpoints of all frontends
)

// boundsPass leaves out what would be too much: external IPs before addresses of
// load balancers, and of one kind the last ones; then the endpoints of the last
// ports, which refuse connections.
func (c *cluster) boundsPass(s *service, f ir.Family) {
	v := s.views.At(f)
	offered := c.offered(s, f)
	perAddr := 0 // backends of an address
	for _, n := range offered {
		perAddr += n
	}
	frontends, admitted, backends := len(s.ports), 0, perAddr // those of the ClusterIP, which stands first
	for i := range s.ports {
		if s.ports[i].nodePort != 0 {
			frontends++
			backends += at(offered, i)
		}
	}
	fits := func(kind ir.Kind) bool {
		more, ranges := len(s.ports), 0
		if kind == ir.LoadBalancer {
			ranges = len(s.ports) * len(v.ranges)
		}
		if frontends+more > maxFrontends || admitted+ranges > maxAdmitted || backends+perAddr > maxBackends && perAddr > 0 {
			return false
		}
		frontends, admitted, backends = frontends+more, admitted+ranges, backends+perAddr
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
			s.report(diag.TooManyFrontends, left[0].field, s.tooMany(f, len(left), left[0], perAddr))
		}
	}
	if backends > maxBackends {
		c.leaveEndpoints(s, f, offered)
	}
}

// offered returns how many endpoints the slices have for each port, with those
// that are there twice; nil if there cannot be too many.
func (c *cluster) offered(s *service, f ir.Family) []int {
	all, bySlice := 0, c.snap.Slices(s.Name)
	for _, slice := range bySlice {
		all += len(slice.Ports) * len(slice.Endpoints)
	}
	if all*(len(s.views.Of(f).addrs)+1) <= maxBackends {
		return nil
	}
	offered := make([]int, len(s.ports))
	for _, slice := range bySlice {
		if slice.Headless || slice.AddressType != f.String() {
			continue
		}
		for i, fault := range portFaults(slice) {
			in := &slice.Ports[i]
			protocol, _ := protocolOf(in.Protocol)
			if fault != (portFault{}) {
				continue
			}
			if to, ok := s.portOf(in.Name, protocol); ok {
				offered[to] += len(slice.Endpoints)
			}
		}
	}
	return offered
}

func at(list []int, i int) int {
	if list == nil {
		return 0
	}
	return list[i]
}

// leaveEndpoints leaves out those of the last ports in spec.ports, by whole ports,
// but never those of the first that has some.
func (c *cluster) leaveEndpoints(s *service, f ir.Family, offered []int) {
	order := make([]int, len(s.ports))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return s.ports[a].index - s.ports[b].index })
	v := s.views.At(f)
	v.over = make([]bool, len(s.ports))
	backends, n, first := 0, 0, ""
	for _, i := range order {
		more := offered[i] * len(v.addrs)
		if s.ports[i].nodePort != 0 {
			more += offered[i]
		}
		if more == 0 || backends == 0 || backends+more <= maxBackends {
			backends += more
			continue
		}
		if v.over[i] = true; n == 0 {
			first = c.names.ports.at(s.ports[i].index)
		}
		n++
	}
	if n == 0 {
		return
	}
	what := "its endpoints are"
	if n > 1 {
		what = "its endpoints and those of " + counted(n-1, "more port") + " are"
	}
	s.report(diag.TooManyBackends, first, what+" left out, and connections refused: "+"a Service can have at most "+strconv.Itoa(maxBackends)+" backends of frontends in "+f.String())
}

// tooMany says that addresses are left out, and why.
func (s *service) tooMany(f ir.Family, n int, first address, backends int) string {
	what := first.String() + " is"
	if n > 1 {
		what = first.String() + " and " + strconv.Itoa(n-1) + " more addresses are"
	}
	why := "at most " + strconv.Itoa(maxFrontends) + " frontends"
	if ranges := len(s.views.Of(f).ranges); first.kind == ir.LoadBalancer && ranges > 0 {
		why += " and " + strconv.Itoa(maxAdmitted) + " source ranges of frontends"
	}
	if backends > 0 {
		why += " and " + strconv.Itoa(maxBackends) + " backends of frontends"
	}
	return what + " left out, with " + counted(len(s.ports), "port") + " each: a Service can have " + why + " in " + f.String()
}
