package main

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

type explainCmd struct {
	source

	What string `arg:"" help:"A chain, a map element, IP:PORT[/PROTO] or IP of a frontend or an endpoint, the number of a node port, or NAMESPACE/NAME[:PORT] of a Service."`
}

// Run prints what the IR and the rules hold of one thing, with the Services
// and fields behind it, or why a Service has no rules; it is a finding (exit 1) when
// that is nothing.
func (c *explainCmd) Run(e *env) error {
	job, programs, err := c.programs(e)
	if err != nil {
		return err
	}
	s := newSubject(c.What)
	found, hint := false, ""
	err = buffered(e.stdout, func(w io.Writer) (err error) {
		if found, err = s.writeIR(w, programs); err != nil {
			return err
		}
		_, _, rendered := outputs(programs)
		pieces := s.pieces(programs)
		for entry := range rendered.Explain {
			if !s.isEntry(entry) && !pieces.has(entry) {
				continue
			}
			found = true
			if err = writeEntry(w, entry); err != nil {
				break
			}
		}
		return err
	})
	if svc := job.snap.Service(s.service); !found && err == nil && svc != nil {
		if why := compiler.Skipped(svc); why != "" {
			found = true
			_, err = fmt.Fprintf(e.stdout, "%s has no rules: %s\n", svc.Object, why)
		} else {
			hint = s.nearestPort(svc)
		}
	}
	if err := job.finish(e, err); err != nil {
		return err
	}
	if !found {
		fmt.Fprintf(e.stderr, "%q: nothing on node %s in mode %s has this name%s\n", c.What, programs.IPv4.Node.Name, programs.IPv4.Node.Mode, hint)
		return errFindings
	}
	return nil
}

// subject is what somebody wants explained: a Service, an address, a node port,
// or words.
type subject struct {
	service ir.Name
	name    string     // with service: of one of its ports, empty for all
	addr    netip.Addr // with port 0: all ports
	port    uint16     // without addr: a node port
	proto   ir.Protocol
	words   string // of a chain or element, with single spaces about it
}

func newSubject(what string) subject {
	what = strings.TrimSpace(what)
	text, protoText, hasProto := strings.Cut(what, "/")
	proto, isProto := ir.ParseProtocol(protoText)
	if !hasProto || isProto {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
			return subject{port: uint16(n), proto: proto}
		}
		if ap, err := netip.ParseAddrPort(text); err == nil {
			return subject{addr: ap.Addr(), port: ap.Port(), proto: proto}
		}
		if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && !hasProto {
			return subject{addr: addr}
		}
	}
	if hasProto && !strings.ContainsAny(what, " .") && strings.Count(what, "/") == 1 {
		service, port, _ := strings.Cut(protoText, ":")
		return subject{service: ir.Name{Namespace: text, Name: service}, name: port}
	}
	return subject{words: " " + strings.Join(strings.Fields(what), " ") + " "}
}

// nearestPort returns a hint at the port of a Service whose name is nearly that of the
// subject; empty for none.
func (s *subject) nearestPort(svc *snapshot.Service) string {
	var names []string
	for _, p := range svc.Ports {
		names = append(names, p.Name)
	}
	if near := diag.Nearest(s.name, names); near != "" {
		return fmt.Sprintf(" (did you mean %s:%s?)", s.service, near)
	}
	return ""
}

// isAddr reports whether the subject is an address or a port, of any kind.
func (s *subject) isAddr() bool { return s.addr.IsValid() || s.port != 0 }

func (s *subject) isMatch(m ir.Match) bool {
	if s.addr.IsValid() {
		return m.Addr == s.addr && s.isPort(m.Port, m.Protocol)
	}
	return m.IsNodePort() && s.port != 0 && s.isPort(m.Port, m.Protocol)
}

func (s *subject) isBackend(b *ir.Backend, p ir.Protocol) bool {
	return s.addr.IsValid() && b.AddrPort.Addr() == s.addr && s.isPort(b.AddrPort.Port(), p)
}

func (s *subject) isPort(port uint16, p ir.Protocol) bool {
	return (s.port == 0 || port == s.port) && (s.proto == 0 || p == s.proto)
}

func (s *subject) isFrontend(f *ir.Frontend) bool {
	if s.service != (ir.Name{}) {
		return f.Port.Service == s.service && (s.name == "" || f.Port.Port == s.name)
	}
	return s.isMatch(f.Match)
}

// isEntry reports whether the subject names an entry, or the frontend that it is for.
func (s *subject) isEntry(e render.Entry) bool {
	switch {
	case s.words != "":
		return strings.Contains(" "+e.Where+" ", s.words) || strings.Contains(" "+e.String()+" ", s.words)
	case s.service != (ir.Name{}):
		return e.Port.Service == s.service && (s.name == "" || e.Port.Port == s.name)
	}
	m, ok := ir.ParseMatch(e.Match)
	return ok && s.isMatch(m)
}

// pieces are the backends of a part of the Programs, for each frontend that
// leads to them.
type pieces map[piece]bool

type piece struct {
	match  string         // of the frontend; empty: of any
	port   ir.ServicePort // zero: of any
	origin ir.Origin
}

// pieces returns the backends behind the address or port that the subject is.
func (s *subject) pieces(programs ir.Programs) pieces {
	found := pieces{}
	if !s.isAddr() {
		return found
	}
	for _, p := range programs.All() {
		for i := range p.Services {
			part, _ := s.part(&p.Services[i])
			for _, f := range part.Frontends {
				for _, r := range f.Routes {
					for _, b := range part.Pools[r.Pool].Backends {
						found[piece{f.Match.String(), f.Port, b.Origin}] = true
						found[piece{"", f.Port, b.Origin}] = true
						if s.port == 0 { // with one, what is for all ports is too much
							found[piece{origin: b.Origin}] = true
						}
					}
				}
			}
		}
	}
	return found
}

func (p pieces) has(e render.Entry) bool { return p[piece{e.Match, e.Port, e.Origin}] }

// part returns what the subject takes of a Service: the frontends that it names,
// the pools that they lead to and what is kept of their ports; or else the
// backends that it names, and the frontends that lead there. Pools are numbered
// anew.
func (s *subject) part(svc *ir.Service) (*ir.Service, bool) {
	if s.service != (ir.Name{}) && s.name == "" {
		return svc, svc.Name == s.service
	}
	part := s.narrow(svc, s.isFrontend, func(ir.Protocol, *ir.Backend) bool { return true })
	if len(part.Frontends) == 0 {
		part = s.narrow(svc, func(*ir.Frontend) bool { return true },
			func(p ir.Protocol, b *ir.Backend) bool { return s.isBackend(b, p) })
		part.Frontends = slices.DeleteFunc(part.Frontends, func(f ir.Frontend) bool { return len(f.Routes) == 0 })
	}
	return part, len(part.Frontends)+len(part.Draining) > 0
}

// narrow returns a Service with some frontends and backends only, without pools
// and routes that are then empty.
func (s *subject) narrow(svc *ir.Service, frontend func(*ir.Frontend) bool, backend func(ir.Protocol, *ir.Backend) bool) *ir.Service {
	part := &ir.Service{Name: svc.Name, Origin: svc.Origin}
	some := func(port ir.ServicePort, of []ir.Backend) []ir.Backend {
		return slices.DeleteFunc(slices.Clone(of), func(b ir.Backend) bool { return !backend(port.Protocol, &b) })
	}
	numbers := map[int]int{}
	pool := func(i int) (int, bool) {
		if n, ok := numbers[i]; ok {
			return n, n >= 0
		}
		p := svc.Pools[i]
		p.Backends = some(p.Port, p.Backends)
		numbers[i] = -1
		if len(p.Backends) > 0 {
			numbers[i] = len(part.Pools)
			part.Pools = append(part.Pools, p)
		}
		return numbers[i], numbers[i] >= 0
	}
	for _, f := range svc.Frontends {
		if !frontend(&f) {
			continue
		}
		var routes []ir.Route
		for _, r := range f.Routes {
			if n, ok := pool(r.Pool); ok {
				r.Pool = n
				routes = append(routes, r)
			}
		}
		f.Routes = routes
		part.Frontends = append(part.Frontends, f)
	}
	for _, k := range svc.Draining {
		k.Backends = some(k.Port, k.Backends)
		if len(k.Backends) > 0 && slices.ContainsFunc(part.Frontends, func(f ir.Frontend) bool { return f.Port == k.Port }) {
			part.Draining = append(part.Draining, k)
		}
	}
	return part
}

// writeIR writes what the subject takes of each Service.
func (s *subject) writeIR(w io.Writer, programs ir.Programs) (found bool, err error) {
	if s.words != "" {
		return false, nil
	}
	for _, p := range programs.All() {
		for i := range p.Services {
			part, ok := s.part(&p.Services[i])
			if !ok {
				continue
			}
			found = true
			if _, err := fmt.Fprintf(w, "# %s\n%s\n", p.Family, part.Text()); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}
