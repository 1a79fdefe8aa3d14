package compiler

import (
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Limits of one Service on every node, in one family. A Service has a frontend
// for each address and port, admits each source range at each of them, and each
// port has each endpoint, in modes without SharesBackends at each address. Without
// limits, an object of some kilobytes could use gigabytes on every node. Only
// these products are limited. Ports at the ClusterIP and node ports are bounded by
// the size of an API object, and a single port keeps all its endpoints.
//
// Kubernetes is tested with 5,000 endpoints per Service. With 10 ports, these are
// 50,000 backends, and 200,000 at a ClusterIP, node ports and two load balancer
// addresses. A backend counts as weight returns.
const (
	maxFrontends = 10_000
	maxAdmitted  = 20_000  // source ranges of all frontends; each is a rule or element in modes iptables and ipvs, and 250 bytes in the boot file
	maxBackends  = 500_000 // endpoints of all ports, or of all frontends, times their weight
	dear         = 5_000   // frontends at external addresses that a finding names; some kernels validate each in every commit
)

// boundsPass enforces the limits. It skips external IPs before load balancer
// addresses, and within a kind the last ones. Then it skips the endpoints of the
// last ports, so that these reject connections. over is what exceeds the limits of
// all Services: all external addresses are ignored, and the endpoints of all ports
// but the first.
func (c *cluster) boundsPass(s *service, f ir.Family, over excess) {
	v := s.views.At(f)
	if len(v.addrs) == 0 {
		return
	}
	offered := c.offered(s, f, over.backends)
	frontends, admitted, backends, perAddr := len(s.ports), 0, 0, 0 // of the ClusterIP, which is the first address
	for i := range s.ports {
		count(&frontends, s.ports[i].nodePort != 0)
	}
	own := frontends
	for i, n := range offered {
		backends += n
		if !c.mode.SharesBackends() {
			perAddr += n
			backends += n * ir.Int(s.ports[i].nodePort != 0)
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
		s.tooMany(left, s.limits(f, kind, perAddr))
	}
	*s.costs.At(f) = cost{frontends - own, admitted, c.multiplied(s, f)}
	switch left := v.addrs[1:]; {
	case over.frontends:
		v.addrs = v.addrs[:1]
		s.tooMany(left, over.why(func(c cost) int { return c.frontends }, "frontends at external addresses", f))
	case frontends-own >= dear:
		s.warn(diag.DearService, left[0].field, counted(len(s.ports), "port")+" at each of "+strconv.Itoa(len(left))+" external addresses are "+strconv.Itoa(frontends-own)+" frontends on every node")
	}
	switch {
	case over.backends:
		c.leaveEndpoints(s, f, offered, 0, over.why(func(limit cost) int { return limit.backends / c.weight(s) }, "endpoints of further ports", f))
	case backends > maxBackends:
		c.leaveEndpoints(s, f, offered, maxBackends, "this Service can have at most "+strconv.Itoa(maxBackends/c.weight(s))+" backends of frontends in "+f.String())
	}
}

// weight returns how much a backend of a Service counts. If frontends share their
// backends, each costs the memory of several real servers of mode ipvs. Affinity
// adds three elements, and a policy Local adds a second pool. A Service of two
// families can have half of the backends in each.
func (c *cluster) weight(s *service) int {
	if !c.mode.SharesBackends() {
		return 1
	}
	n := 5
	if s.AffinityIP {
		n *= 4
	}
	if s.InternalLocal || s.ExternalLocal {
		n *= 2
	}
	if len(s.ClusterIPs) > 1 {
		n *= 2
	}
	return n
}

// multiplied returns the number of endpoints of all ports after the first, times
// their weight, within the limit of a Service.
func (c *cluster) multiplied(s *service, f ir.Family) (n int) {
	for _, slice := range c.snap.Slices(s.Name) {
		if slice.AddressType == f.String() {
			n += max(min(len(slice.Ports), len(s.ports))-1, 0) * len(slice.Endpoints) * c.weight(s)
		}
	}
	if !c.mode.SharesBackends() {
		n *= len(s.views.Of(f).addrs)
	}
	return min(n, maxBackends)
}

// offered returns the number of endpoints in the slices for each port, duplicates
// included, times their weight. It returns nil if the limit cannot be exceeded, unless always is set.
func (c *cluster) offered(s *service, f ir.Family, always bool) []int {
	all, bySlice, weight := 0, c.snap.Slices(s.Name), c.weight(s)
	for _, slice := range bySlice {
		all += len(slice.Ports) * len(slice.Endpoints) * weight
	}
	if !always && all*(len(s.views.Of(f).addrs)+1) <= maxBackends {
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
				offered[to] += len(slice.Endpoints) * weight
			}
		}
	}
	return offered
}

// leaveEndpoints skips the endpoints of the last ports in spec.ports, always all
// endpoints of a port. It keeps those of the first port that has endpoints.
func (c *cluster) leaveEndpoints(s *service, f ir.Family, offered []int, limit int, why string) {
	order := make([]int, len(s.ports))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return s.ports[a].index - s.ports[b].index })
	v := s.views.At(f)
	v.over = make([]bool, len(s.ports))
	backends, n, first := 0, 0, ""
	for _, i := range order {
		more := offered[i]
		if !c.mode.SharesBackends() {
			more *= len(v.addrs) + ir.Int(s.ports[i].nodePort != 0)
		}
		if more == 0 || backends == 0 || backends+more <= limit {
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
	s.report(diag.TooManyBackends, first, what+" ignored, and connections are rejected: "+why)
}

// tooMany reports ignored addresses.
func (s *service) tooMany(left []address, why string) {
	if len(left) == 0 {
		return
	}
	what := left[0].String() + " is"
	if n := len(left); n > 1 {
		what = left[0].String() + " and " + strconv.Itoa(n-1) + " more addresses are"
	}
	s.report(diag.TooManyFrontends, left[0].field, what+" ignored, with "+counted(len(s.ports), "port")+" each: "+why)
}

// limits returns the limits of one Service that an address of a kind exceeds.
func (s *service) limits(f ir.Family, kind ir.Kind, backends int) string {
	why := "at most " + strconv.Itoa(maxFrontends) + " frontends"
	if ranges := len(s.views.Of(f).ranges); kind == ir.LoadBalancer && ranges > 0 {
		why += " and " + strconv.Itoa(maxAdmitted) + " source ranges of frontends"
	}
	if backends > 0 {
		why += " and " + strconv.Itoa(maxBackends) + " backends of frontends"
	}
	return "a Service can have " + why + " in " + f.String()
}
