package compiler

import (
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Limits of one Service on every node, in one family. A Service has a frontend
// for each address and port, admits each source range at each of them, and sends
// to each endpoint from each of them. Without limits, an object of some kilobytes
// could use gigabytes on every node. Only these products are limited. Ports at
// the ClusterIP and node ports are bounded by the size of an API object, and a
// single port keeps all its endpoints.
//
// Kubernetes is tested with 5,000 endpoints per Service. With 10 ports at a
// ClusterIP, node ports and two load balancer addresses, these are 200,000
// backends.
const (
	maxFrontends = 10_000
	maxAdmitted  = 20_000  // source ranges of all frontends; each is a rule or element in modes iptables and ipvs, and 250 bytes in the boot file
	maxBackends  = 500_000 // endpoints of all frontends
)

// boundsPass enforces the limits. It skips external IPs before load balancer
// addresses, and within a kind the last ones. Then it skips the endpoints of the
// last ports, so that these reject connections.
func (c *cluster) boundsPass(s *service, f ir.Family) {
	v := s.views.At(f)
	offered := c.offered(s, f)
	perAddr := 0 // backends of an address
	for _, n := range offered {
		perAddr += n
	}
	frontends, admitted, backends := len(s.ports), 0, perAddr // of the ClusterIP, which is the first address
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

// offered returns the number of endpoints in the slices for each port, duplicates
// included. It returns nil if the limit cannot be exceeded.
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

// leaveEndpoints skips the endpoints of the last ports in spec.ports, always all
// endpoints of a port. It keeps those of the first port that has endpoints.
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
	s.report(diag.TooManyBackends, first, what+" skipped, and connections are rejected: "+"a Service can have at most "+strconv.Itoa(maxBackends)+" backends of frontends in "+f.String())
}

// tooMany returns the message for skipped addresses.
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
