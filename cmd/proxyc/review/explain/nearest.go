package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// nearest returns a hint for a subject that does not exist: Services with similar names, the ports
// of its Service, or the ports of its address. It returns "" if there are none.
func (s *subject) nearest(programs ir.Programs) string {
	switch {
	case s.addr.IsValid():
		return s.otherPorts(programs)
	case s.service == (ir.Name{}):
		return ""
	}
	var ports []string
	known := false
	for svc := range review.Services(programs) {
		if svc.Name == s.service {
			known = true
			for _, f := range svc.Frontends {
				ports = append(ports, portOf(&f))
			}
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	switch {
	case !known:
		return cmp.Or(review.NearestService(programs, s.service), trace.NearestName(strings.TrimSuffix(s.service.Name+":"+s.name, ":"), programs))
	case len(ports) == 0:
		return ""
	}
	text := " (Service " + s.service.String() + " has the ports " + strings.Join(ports, ", ")
	if near := diag.Nearest(s.name, ports); near != "" {
		text += ": did you mean " + s.service.String() + ":" + near + "?"
	}
	return text + ")"
}

// portOf returns the name of a frontend's port, or its number if it has no name.
func portOf(f *ir.Frontend) string { return cmp.Or(f.Port.Port, strconv.Itoa(int(f.Match.Port))) }

// otherPorts returns a hint that lists the ports of an address without the requested port, and
// names the verb that lists all others.
func (s *subject) otherPorts(programs ir.Programs) string {
	any := subject{addr: s.addr}
	var has []string
	add := func(port uint16, p ir.Protocol) { has = append(has, fmt.Sprintf("%d/%s", port, p)) }
	for svc := range review.Services(programs) {
		for _, f := range svc.Frontends {
			if any.isMatch(f.Match) {
				add(f.Match.Port, f.Match.Protocol)
			}
		}
		for _, pool := range svc.Pools {
			for i := range pool.Backends {
				if b := &pool.Backends[i]; any.isBackend(b, pool.Port.Protocol) {
					add(b.AddrPort.Port(), pool.Port.Protocol)
				}
			}
		}
	}
	if len(has) == 0 {
		return " (trace --to shows what happens to packets to it)"
	}
	slices.Sort(has)
	return fmt.Sprintf(" (%s has the ports %s; trace --to shows what happens to packets to another)", s.addr, strings.Join(slices.Compact(has), ", "))
}

// numbered sets the subject's ports if its port name is a number and not the name of a port.
func (s *subject) numbered(programs ir.Programs) {
	if s.service == (ir.Name{}) || s.name == "" {
		return
	}
	var named bool
	var ports []ir.ServicePort
	for svc := range review.Services(programs) {
		if svc.Name != s.service {
			continue
		}
		for _, f := range svc.Frontends {
			named = named || f.Port.Port == s.name
			if !f.Match.IsNodePort() && strconv.Itoa(int(f.Match.Port)) == s.name {
				ports = append(ports, f.Port)
			}
		}
	}
	if !named {
		s.ports = ports
	}
}
