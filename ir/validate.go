package ir

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// Validate checks invariants that the types do not express: order, families,
// references, and that no two frontends have the same Match. It returns all
// violations, each with its Service and part. Programs from Compile have none.
func (p *Program) Validate() []error {
	v := validator{family: p.Family, at: "program", owner: make(map[Match]Name)}
	if v.wrong(p.Family != IPv4 && p.Family != IPv6, "family must be IPv4 or IPv6, got %d", p.Family); len(v.errs) > 0 {
		return v.errs
	}
	v.node(&p.Node)
	for i := range p.Services {
		s := &p.Services[i]
		v.at = "Service " + s.Name.String()
		if i > 0 {
			v.wrong(p.Services[i-1].Name.Compare(s.Name) >= 0, "must come after %s", p.Services[i-1].Name)
		}
		v.service(s)
	}
	return v.errs
}

type validator struct {
	family Family
	at     string
	owner  map[Match]Name
	errs   []error
}

// wrong records a violation if is holds.
func (v *validator) wrong(is bool, format string, args ...any) {
	if is {
		v.errs = append(v.errs, fmt.Errorf(v.at+": "+format, args...))
	}
}

func (v *validator) origin(what string, o Origin) {
	v.wrong(o.Object == "", "%s: has no origin", what)
}

func (v *validator) prefix(what string, p netip.Prefix) {
	v.wrong(!p.IsValid() || !v.family.Has(p.Addr()) || p != p.Masked(), "%s: must be a masked %s prefix, got %s", what, v.family, p)
}

func (v *validator) node(n *Node) {
	v.at = "Node"
	v.wrong(!slices.Contains(Modes(), n.Mode), "mode: must be one of %v, got %q", Modes(), n.Mode)
	v.wrong(n.IP.IsValid() && !v.family.Has(n.IP), "ip: must be %s, got %s", v.family, n.IP)
	for _, a := range n.Addrs {
		v.wrong(!v.family.Has(a), "addrs: must be %s, got %s", v.family, a)
	}
	v.wrong(!slices.IsSortedFunc(n.Addrs, netip.Addr.Compare), "addrs: must be sorted")
	v.wrong(n.NodePorts.All && len(n.NodePorts.Prefixes) > 0, "nodePorts: all must have no prefixes")
	for _, p := range n.NodePorts.Prefixes {
		v.prefix("nodePorts", p.Prefix)
	}
	switch d := n.Detector; d.Mode {
	case DetectNone:
	case DetectCIDR:
		v.prefix("detector", d.Prefix)
	case DetectInterface, DetectPrefix:
		v.wrong(!IsInterfaceName(d.Interface), "detector: interface must be a name, got %q", d.Interface)
	}
	v.wrong(n.MasqueradeBit > 31, "masqueradeBit: must be 0-31, got %d", n.MasqueradeBit)
	for _, c := range n.ServiceCIDRs {
		v.prefix("serviceCIDRs", c.Prefix)
		v.origin("serviceCIDRs", c.Origin)
	}
}

func (v *validator) service(s *Service) {
	v.origin("service", s.Origin)
	used := make([]bool, len(s.Pools))
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if i > 0 {
			v.wrong(s.Frontends[i-1].Compare(f) >= 0, "%s %s: must come after %s", f.Kind, f.Match, s.Frontends[i-1].Match)
		}
		v.frontend(f, s, used)
	}
	for i := range s.Pools {
		v.pool(i, &s.Pools[i])
		v.wrong(!used[i], "pool %d: no route leads to it", i)
		v.wrong(i > 0 && comparePools(&s.Pools[i-1], &s.Pools[i]) >= 0, "pool %d: pools must be ordered by port and policy, each once", i)
	}
	v.draining(s)
	if h := s.Health; h != nil {
		v.origin("health check", h.Origin)
		v.wrong(h.Port == 0 || h.Local < 0, "health check: port must not be 0 and local not negative, got %d and %d", h.Port, h.Local)
	}
}

// draining checks that draining backends belong to a UDP port and to none of its
// pools.
func (v *validator) draining(s *Service) {
	for i := range s.Draining {
		d := &s.Draining[i]
		name := "draining of " + d.Port.String()
		v.origin(name, d.Origin)
		if i > 0 {
			v.wrong(s.Draining[i-1].Port.Compare(d.Port) >= 0, "%s: must come after %s", name, s.Draining[i-1].Port)
		}
		of := func(f Frontend) bool { return f.Port == d.Port && f.Match.Protocol == UDP }
		v.wrong(!slices.ContainsFunc(s.Frontends, of), "%s: no UDP frontend is of this port", name)
		seen := map[netip.AddrPort]bool{}
		for j := range s.Pools {
			for _, b := range s.Pools[j].Backends {
				seen[b.AddrPort] = seen[b.AddrPort] || s.Pools[j].Port == d.Port
			}
		}
		v.backends(name, d.Backends, seen)
	}
}

// backends checks a list of endpoints, none of which may be in seen.
func (v *validator) backends(what string, backends []Backend, seen map[netip.AddrPort]bool) {
	v.wrong(len(backends) == 0, "%s: has no backends", what)
	for _, b := range backends {
		v.wrong(!b.AddrPort.IsValid() || !v.family.Has(b.AddrPort.Addr()) || b.AddrPort.Port() == 0,
			"%s: backend must be an %s address with a port, got %s", what, v.family, b.AddrPort)
		v.wrong(seen[b.AddrPort], "%s: backend %s stands twice", what, b.AddrPort)
		seen[b.AddrPort] = true
		v.origin("backend "+b.AddrPort.String(), b.Origin)
	}
}

func comparePools(a, b *Pool) int {
	return cmp.Or(a.Port.Compare(b.Port), int(a.Policy)-int(b.Policy))
}

func (v *validator) frontend(f *Frontend, s *Service, used []bool) {
	name := f.Match.String()
	other, taken := v.owner[f.Match]
	v.wrong(taken, "%s: is taken by Service %s already", name, other)
	v.owner[f.Match] = s.Name
	v.origin(name, f.Origin)
	v.wrong(f.Match.IsNodePort() != (f.Kind == NodePort) || (!f.Match.IsNodePort() && !v.family.Has(f.Match.Addr)),
		"%s: a %s in %s cannot have this match", name, f.Kind, v.family)
	v.wrong(f.Match.Port == 0 || f.Match.Protocol.String() == "unknown" || f.Match.Protocol != f.Port.Protocol || f.Port.Service != s.Name,
		"%s: match and service port %s/%s do not fit", name, f.Port, f.Port.Protocol)
	for _, r := range f.SourceRanges {
		v.prefix(name+": source range", r.Prefix)
		v.origin(name+": source range", r.Origin)
	}
	v.wrong(len(f.SourceRanges) > 0 && f.Kind != LoadBalancer, "%s: only LoadBalancer frontends have source ranges", name)
	for i, r := range f.Routes {
		if r.Pool < 0 || r.Pool >= len(s.Pools) {
			v.wrong(true, "%s: route %d: there is no pool %d", name, i, r.Pool)
			continue
		}
		used[r.Pool] = true
		v.wrong(s.Pools[r.Pool].Port != f.Port, "%s: route %d: pool %d is of another service port", name, i, r.Pool)
		v.wrong(i > 0 && f.Routes[i-1].From == Any, "%s: route %d: is never reached", name, i)
		v.origin(name+": route", r.Origin)
	}
	if !RoutesAll(f.Routes) {
		v.origin(name+": "+f.Fallback.String(), f.FallbackOrigin)
	}
	v.maglev(name, f, s)
}

func (v *validator) maglev(name string, f *Frontend, s *Service) {
	m := f.Maglev
	if m == nil {
		return
	}
	v.origin(name+": maglev", m.Origin)
	v.wrong(!slices.Contains(MaglevSlots(), m.Slots), "%s: maglev: slots must be one of %v, got %d", name, MaglevSlots(), m.Slots)
	v.wrong(len(f.Routes) != 1 || !RoutesAll(f.Routes) || f.Routes[0].Pool >= 0 && f.Routes[0].Pool < len(s.Pools) && s.Pools[f.Routes[0].Pool].Affinity != nil,
		"%s: maglev: must have one route for all sources, to a pool without affinity", name)
}

func (v *validator) pool(i int, p *Pool) {
	v.origin("pool", p.Origin)
	v.backends("pool "+strconv.Itoa(i), p.Backends, make(map[netip.AddrPort]bool, len(p.Backends)))
	if a := p.Affinity; a != nil {
		v.origin("affinity", a.Origin)
		v.wrong(a.Timeout < time.Second || a.Timeout > 24*time.Hour || a.Timeout%time.Second != 0,
			"pool %d: affinity timeout must be 1 s to 24 h in whole seconds, got %s", i, a.Timeout)
	}
}
