// Package explain finds the Services and API fields that cause a rule, an element, an address or a
// port.
package explain

import (
	_ "embed"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Explanation is the result of Find.
type Explanation struct {
	What     string         `json:"what"`
	Notes    []string       `json:"says,omitempty"`     // sentences
	Services []partOf       `json:"services,omitempty"` // matching parts of the IR
	Entries  []entryJSON    `json:"entries,omitempty"`  // matching rules and elements
	Hint     string         `json:"-"`                  // similar names or ports, if nothing was found
	entries  []render.Entry // the entries behind Entries
	in       *review.Input
}

// partOf is a part of a Service in the IR of a family.
type partOf struct {
	Family  ir.Family   `json:"family"`
	Service *ir.Service `json:"service"`
}

type entryJSON struct {
	Where  string    `json:"where"`
	Text   string    `json:"text,omitempty"`
	Port   string    `json:"port,omitempty"` // "shop/web:http"
	Origin ir.Origin `json:"origin"`
}

// Empty reports whether nothing was found.
func (x *Explanation) Empty() bool { return len(x.Notes)+len(x.Services)+len(x.Entries) == 0 }

// WriteText writes the sentences, the parts of Services, and a line for each rule or element.
func (x *Explanation) WriteText(w io.Writer) error {
	for _, s := range x.Notes {
		if _, err := fmt.Fprintln(w, s); err != nil {
			return err
		}
	}
	for _, p := range x.Services {
		if _, err := fmt.Fprintf(w, "# %s\n%s\n", p.Family, p.Service.Text()); err != nil {
			return err
		}
	}
	for _, e := range x.entries {
		if err := review.WriteEntry(w, e); err != nil {
			return err
		}
	}
	return nil
}

// Check returns an error for a text that cannot name a subject, such as a malformed address.
func Check(what string) error {
	_, _, err := single(strings.TrimSpace(what))
	return err
}

// Find looks up a text in the rules of the input's node. programs are the compiled Programs of that
// node.
func Find(what string, in *review.Input, programs ir.Programs) (*Explanation, error) {
	r, err := read(what, programs)
	if err != nil {
		return nil, err
	}
	for i := range r.subjects {
		r.subjects[i].numbered(programs)
	}
	x := &Explanation{What: what, in: in}
	x.find(&r, programs, review.IgnoredOf(in))
	return x, nil
}

// find returns the rules that contain the words of the text. If there are none, it returns the
// explanation of the first subject that exists.
func (x *Explanation) find(r *reading, programs ir.Programs, ignored review.Ignored) {
	_, _, rendered := review.Outputs(programs)
	if r.words != "" {
		x.addEntries(rendered, func(e render.Entry) bool {
			return strings.Contains(" "+e.Where+" ", r.words) || strings.Contains(" "+e.String()+" ", r.words) || e.Text != "" && e.Text == withoutChain(e, r.words)
		})
	}
	for i := range r.subjects {
		if s := &r.subjects[i]; x.Empty() {
			x.subject(s, programs, rendered, ignored)
		}
	}
	if r.flow.IsValid() && !x.Empty() {
		x.Notes = append(x.Notes, x.replyText(r.flow))
	}
	if what := shared(strings.TrimSpace(r.words)); what != "" && x.Empty() {
		x.Notes = append(x.Notes, what)
	}
	if m := leadsTo.FindStringSubmatch(r.words); m != nil && shared(m[1]) != "" && x.Empty() {
		x.Notes = append(x.Notes, shared(m[1]))
	}
	if x.Empty() && x.Hint == "" {
		x.Hint = trace.NearestName(strings.TrimSpace(r.words), programs)
		code := diag.Code(strings.ToUpper(strings.TrimSpace(r.words)))
		if _, known := diag.ByCode()[code]; known {
			x.Hint = fmt.Sprintf("; proxyc lint --explain %s explains a finding", code)
		}
	}
	for i, p := range x.Services {
		if name := p.Service.Name; x.in.Pending(name) && (i == 0 || x.Services[i-1].Service.Name != name) {
			x.Notes = append(x.Notes, "Service "+name.String()+" has no clusterIP yet, which the API server allocates: without it no rule is written")
		}
	}
}

// countSet matches the names of the sets that encode the bits of a backend count.
var countSet = regexp.MustCompile(`^count-(1|2|4|8|16|32)-(ips|nodeports)$`)

// leadsTo matches the target of a rule that belongs to no Service.
var leadsTo = regexp.MustCompile(` (?:-j|jump|goto) (\S+) $`)

// withoutChain removes the chain of an entry from the words of its line.
func withoutChain(e render.Entry, words string) string {
	chain, rest, _ := strings.Cut(strings.TrimSpace(words), " ")
	if !strings.Contains(e.Where, " "+chain+" ") {
		return ""
	}
	return rest
}

// addEntries adds the rules and elements for which is returns true. Rules contain no stand-ins.
func (x *Explanation) addEntries(rendered render.Rendered, is func(render.Entry) bool) {
	rendered.Explain(func(e render.Entry) {
		if is(e) && !x.in.Pending(e.Port.Service) && !x.in.StandIns.Mentioned(e.Where+" "+e.Text) {
			x.entries = append(x.entries, e)
			one := entryJSON{Where: e.Where, Text: e.Text, Origin: e.Origin}
			if e.Port != (ir.ServicePort{}) {
				one.Port = e.Port.String()
			}
			x.Entries = append(x.Entries, one)
		}
	})
}

// subject adds the parts and entries of a subject, or the reason why its Service has no rules.
func (x *Explanation) subject(s *subject, programs ir.Programs, rendered render.Rendered, ignored review.Ignored) {
	if s.isUnknown() {
		return
	}
	for _, p := range programs.All() {
		for i := range p.Services {
			if part, ok := s.part(&p.Services[i]); ok {
				x.Services = append(x.Services, partOf{p.Family, part})
			}
		}
	}
	pieces := s.pieces(programs)
	x.addEntries(rendered, func(e render.Entry) bool { return s.isEntry(e) || pieces.has(e) })
	x.Notes = append(x.Notes, s.healthChecks(programs)...)
	if x.Empty() {
		x.Notes = append(x.Notes, s.absence(ignored)...)
	}
	if x.Empty() {
		x.Hint = s.nearest(programs)
	}
	if s.chain != "" && len(x.Services) > 0 {
		says := s.chain + " is kube-proxy's chain of " + ir.ServicePort{Service: s.service, Port: s.name}.String()
		if s.backend.IsValid() {
			says += " for its endpoint " + s.backend.String()
		}
		x.Notes = append(x.Notes, says)
	}
}

// healthChecks describes the health check node port of a Service.
func (s *subject) healthChecks(programs ir.Programs) (notes []string) {
	for _, p := range ir.Present(programs) {
		if of := p.HealthCheck(s.port); of != nil && s.isPort(s.port, ir.TCP) && (!s.addr.IsValid() || p.Node.HasAddr(s.addr)) {
			notes = append(notes, fmt.Sprintf("port %d is the health check node port of Service %s (%s)", s.port, of.Name, of.Health.Origin))
		}
	}
	return slices.Compact(notes)
}

// absence explains why the rules do not contain a subject.
func (s *subject) absence(ignored review.Ignored) []string {
	if !s.isAddr() {
		if says := ignored.Of(s.service, ""); says != "" {
			return []string{says}
		}
		return nil
	}
	nodePort := uint16(0)
	if !s.addr.IsValid() {
		nodePort = s.port
	}
	return ignored.At(s.addr, nodePort)
}

// replyText describes whether a backend that replies in a flow belongs to one of the frontends
// found.
func (x *Explanation) replyText(b netip.AddrPort) string {
	for _, p := range x.Services {
		for _, pool := range p.Service.Pools {
			if slices.ContainsFunc(pool.Backends, func(have ir.Backend) bool { return have.AddrPort == b }) {
				return "the reply comes from " + b.String() + ", a backend of " + pool.Port.String()
			}
		}
		for _, k := range p.Service.Draining {
			if slices.ContainsFunc(k.Backends, func(have ir.Backend) bool { return have.AddrPort == b }) {
				return "the reply comes from " + b.String() + ", which is draining: it receives no new clients"
			}
		}
	}
	return "the reply comes from " + b.String() + ", which is not, or no longer, a backend"
}

// sharedText has a line for each kube-proxy chain and proxyc set that belongs to no single Service: its name, and what it
// does.
//
//go:embed shared.txt
var sharedText string

// shared describes a chain or set that belongs to no single Service. It returns "" for other names.
func shared(name string) string {
	if countSet.MatchString(name) {
		return "set " + name + " contains the frontends in whose number of backends this bit is set; it is empty"
	}
	_, rest, _ := strings.Cut("\n"+sharedText, "\n"+name+"\t")
	text, _, _ := strings.Cut(rest, "\n")
	return text
}

// subject is what the user asks about: a Service, an address or a node port.
type subject struct {
	service ir.Name
	name    string           // a port of service; "" for all ports
	ports   []ir.ServicePort // ports that name gives by number
	addr    netip.Addr       // if port is 0, all ports of the address
	port    uint16           // without addr, a node port
	proto   ir.Protocol
	backend netip.AddrPort // limits the explanation to this backend; invalid for all
	chain   string         // kube-proxy chain that identifies the subject
}

// isUnknown reports whether only the name of the subject's chain is known.
func (s *subject) isUnknown() bool { return s.service == (ir.Name{}) && !s.isAddr() }

// isAddr reports whether the subject is an address, a port or both.
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
		return f.Port.Service == s.service && s.isPortName(f.Port)
	}
	return s.isMatch(f.Match)
}

// isPortName reports whether the subject names port p of the Service. A chain can also name a port
// that has no name.
func (s *subject) isPortName(p ir.ServicePort) bool {
	return s.name == "" && s.chain == "" || slices.Contains(s.ports, p) || p.Port == s.name && (s.proto == 0 || p.Protocol == s.proto)
}

// isEntry reports whether the entry belongs to the subject or to its frontend.
func (s *subject) isEntry(e render.Entry) bool {
	switch {
	case s.backend.IsValid():
		return false // pieces covers backends
	case s.service != (ir.Name{}):
		return e.Port.Service == s.service && s.isPortName(e.Port)
	}
	m, ok := ir.ParseMatch(e.Match)
	return ok && s.isMatch(m)
}

// pieces is the set of backends that the selected frontends use.
type pieces map[piece]bool

type piece struct {
	match  string         // match of the frontend; "" for any
	port   ir.ServicePort // zero for any
	origin ir.Origin
}

// pieces returns the backends of the subject's address or port.
func (s *subject) pieces(programs ir.Programs) pieces {
	found := pieces{}
	if !s.isAddr() && !s.backend.IsValid() {
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
						if s.port == 0 { // an entry for all ports says too much about one port
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

// part returns the part of a Service that the subject selects: the frontends that it names with
// their pools and port settings, or the backends that it names with the frontends that use them.
// Pools have new numbers.
func (s *subject) part(svc *ir.Service) (*ir.Service, bool) {
	if s.service != (ir.Name{}) && s.name == "" && s.chain == "" {
		return svc, svc.Name == s.service
	}
	part := svc.Part(s.isFrontend, func(_ ir.Protocol, b *ir.Backend) bool { return !s.backend.IsValid() || b.AddrPort == s.backend })
	if s.backend.IsValid() {
		part.Frontends = slices.DeleteFunc(part.Frontends, func(f ir.Frontend) bool { return len(f.Routes) == 0 })
	} else if len(part.Frontends) == 0 {
		part = svc.Part(nil, func(p ir.Protocol, b *ir.Backend) bool { return s.isBackend(b, p) })
		part.Frontends = slices.DeleteFunc(part.Frontends, func(f ir.Frontend) bool { return len(f.Routes) == 0 })
	}
	part.Health, part.HNS = nil, nil
	return part, len(part.Frontends)+len(part.Draining) > 0
}

// WriteJSON writes a document of kind Explanation.
func (x *Explanation) WriteJSON(w io.Writer) error {
	return review.WriteDocument(w, "Explanation", "  ", x)
}
