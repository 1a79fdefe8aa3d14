// Package flows relates tracked connections to the Services of a node, and judges them.
package flows

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Filter selects flows. Each field selects all if it is empty.
type Filter struct {
	Service          string // NAMESPACE/NAME[:PORT]
	Client, Endpoint string // addresses, ranges, or pods and nodes by name
	Wrong            bool   // only flows with errors and warnings
}

// Review judges flows one by one. It keeps counts, and one of the flows that are wrong alike.
type Review struct {
	each             func(*Flow) error // receives the selected flows
	selects, wrong   bool              // by a Filter
	clients, servers []netip.Prefix
	families         ir.PerFamily[*family]
	names            map[netip.Addr]string // of pods and Nodes
	services         map[ir.ServicePort]*counts
	examples         map[alike]*Flow
	counts           counts
	others, zones    int // flows that are not of Services, or in other zones
}

// counts are numbers of flows by severity; Info if nothing is wrong.
type counts [diag.Info + 1]int

func (c *counts) all() int { return c[diag.Error] + c[diag.Warning] + c[diag.Info] }

// alike is what flows that are wrong alike have in common.
type alike struct {
	protocol ir.Protocol
	to, from netip.AddrPort
	wrong    string
}

// Flow is a connection to a Service.
type Flow struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Port       ir.ServicePort `json:"port"`
	Frontend   string         `json:"frontend"` // its kind
	conntrack.Entry
	Sender   string `json:"sender,omitzero"` // pod:NAMESPACE/NAME or node:NAME, if known
	Severity string `json:"severity"`
	Wrong    string `json:"wrong,omitzero"`
	severity diag.Severity
	match    ir.Match
	like     int // number of flows that are wrong alike
}

// family is the selected frontends of a family, and all endpoints.
type family struct {
	judge     *conntrack.Selector
	frontends map[ir.Match]*ir.Frontend
	endpoints map[target]snapshot.Endpoint
}

type target struct {
	port ir.ServicePort
	at   netip.AddrPort
}

// New returns a Review of the flows under Programs.
func New(j *review.Input, programs ir.Programs, only Filter) (r *Review, err error) {
	if j.NoSnapshot {
		return nil, errors.New("--ir: requires --snapshot, which has the endpoints of other nodes")
	}
	r = &Review{selects: only != Filter{}, wrong: only.Wrong, names: map[netip.Addr]string{}, services: map[ir.ServicePort]*counts{}, examples: map[alike]*Flow{}}
	for _, svc := range j.Snapshot.Services() {
		for _, slice := range j.Snapshot.Slices(svc.Name) {
			for _, e := range slice.Endpoints {
				if e.Pod != "" {
					r.names[e.Addr] = "pod:" + slice.Name.Namespace + "/" + e.Pod
				}
			}
		}
	}
	for _, n := range j.Snapshot.Nodes() {
		for _, a := range n.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil { // also of pods in the host network
				r.names[addr] = "node:" + n.Name
			}
		}
	}
	selected := false
	for f, p := range ir.Present(programs) {
		if p.Node.Mode.ByProcess() {
			return nil, fmt.Errorf("mode %s: connections end at a process, and their entries contain no endpoint", p.Node.Mode)
		}
		of := newFamily(p, j.Snapshot, only.Service)
		*r.families.At(f), selected = of, selected || len(of.frontends) > 0
	}
	if only.Service != "" && !selected {
		err = fmt.Errorf("--service: must be NAMESPACE/NAME[:PORT] of a Service with rules, got %q", only.Service)
	}
	var err1, err2 error
	r.clients, err1 = r.addresses("--client", only.Client)
	r.servers, err2 = r.addresses("--endpoint", only.Endpoint)
	return r, errors.Join(err, err1, err2)
}

// newFamily returns the frontends of a Service, or all. It adds the serving endpoints of all protocols to
// Draining, since connections to those that no pool of the node contains are right.
func newFamily(p *ir.Program, s *snapshot.Snapshot, service string) *family {
	f := &family{frontends: map[ir.Match]*ir.Frontend{}, endpoints: map[target]snapshot.Endpoint{}}
	all := *p
	all.Services = slices.Clone(p.Services)
	for i := range all.Services {
		svc := &all.Services[i]
		for k := range svc.Frontends {
			of := &svc.Frontends[k]
			if service == "" || service == svc.Name.String() || service == of.Port.String() {
				f.frontends[of.Match] = of
			}
			serving := f.add(of.Port, p.Family, s.Slices(svc.Name))
			svc.Draining = append(slices.Clip(svc.Draining), ir.Draining{Port: of.Port, Backends: serving})
		}
	}
	f.judge = conntrack.NewReview(&all)
	return f
}

// add adds the endpoints of a port, and returns those that serve.
func (f *family) add(port ir.ServicePort, of ir.Family, all []*snapshot.EndpointSlice) (serving []ir.Backend) {
	for _, slice := range all {
		for _, p := range slice.Ports {
			if p.Name != port.Port || !strings.EqualFold(cmp.Or(p.Protocol, "TCP"), port.Protocol.String()) {
				continue
			}
			for _, e := range slice.Endpoints {
				at := netip.AddrPortFrom(e.Addr, uint16(p.Port))
				if !of.Has(e.Addr) {
					continue
				}
				f.endpoints[target{port, at}] = e
				if e.Serving || e.Ready {
					serving = append(serving, ir.Backend{AddrPort: at})
				}
			}
		}
	}
	return serving
}

// Write writes the flows in a file, or of this kernel for "": each, as JSON or text, or counts.
func (r *Review) Write(w io.Writer, files review.Files, name string, asJSON, all bool) error {
	end := r.writeText
	r.each = func(*Flow) error { return nil }
	switch enc := json.NewEncoder(w); {
	case asJSON:
		r.each, end = func(f *Flow) error { return enc.Encode(f) }, func(io.Writer) error { return nil }
	case all:
		r.each, end = func(f *Flow) error {
			_, err := fmt.Fprintf(w, "%s: %s: %s\n", f.Severity, f.describe(), cmp.Or(f.Wrong, "ok"))
			return err
		}, r.writeCounts
	}
	if err := r.read(files, name); err != nil {
		return err
	}
	return end(w)
}

func (r *Review) read(files review.Files, name string) error {
	from := io.Reader(files.Stdin)
	switch name {
	case "":
		return errors.Join(conntrack.Each(ir.IPv4, r.add), conntrack.Each(ir.IPv6, r.add))
	case review.StandardInput:
	default:
		file, err := files.System.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		from = file
	}
	if err := conntrack.ReadText(from, r.add); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// addresses returns the addresses that a filter selects.
func (r *Review) addresses(flag, text string) (all []netip.Prefix, err error) {
	for addr, name := range r.names {
		if name == text {
			all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
	} else if in, err := netip.ParsePrefix(text); err == nil {
		all = append(all, in)
	}
	if text != "" && len(all) == 0 {
		err = fmt.Errorf("%s: must be an IP address, a range, or a known pod:NAMESPACE/NAME or node:NAME, got %q%s", flag, text, diag.Meant(text, slices.Collect(maps.Values(r.names))))
	}
	return all, err
}

// add judges a flow.
func (r *Review) add(e conntrack.Entry) error {
	if e.Zone != 0 {
		r.zones++
		return nil
	}
	of := r.families.Of(ir.FamilyOf(e.To.Addr()))
	if of == nil {
		of = &family{judge: new(conntrack.Selector)}
	}
	found, stale := of.judge.Stale(e)
	frontend := of.frontends[found.Frontend]
	if frontend == nil {
		r.others++
		return nil
	}
	flow := Flow{APIVersion: ir.APIVersion, Kind: "Flow", Port: frontend.Port, Frontend: frontend.Kind.String(), Entry: e, Sender: r.names[e.Client.Addr()], match: found.Frontend}
	flow.Wrong, flow.severity = of.fault(&flow, found.Why, stale)
	if r.wrong && flow.Wrong == "" || !in(r.clients, e.Client.Addr()) || !in(r.servers, e.From.Addr()) {
		return nil
	}
	flow.Severity = flow.severity.String()
	r.count(&flow)
	return r.each(&flow)
}

// in reports whether an address is selected; no ranges select all.
func in(all []netip.Prefix, addr netip.Addr) bool {
	return len(all) == 0 || slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// fault returns what is wrong with a flow that is stale, and why, or not.
func (f *family) fault(flow *Flow, why string, stale bool) (wrong string, s diag.Severity) {
	endpoint, known := f.endpoints[target{flow.Port, flow.From}]
	switch ended := flow.State == "TIME_WAIT" || flow.State == "CLOSE" || flow.State == "CLOSED"; {
	case ended: // the entry waits to expire
	case stale && known && !endpoint.Serving && !endpoint.Ready:
		return "the endpoint is not ready", diag.Error
	case stale:
		return why, diag.Error
	case known && endpoint.Terminating:
		return "the endpoint is terminating", diag.Warning
	case flow.Unanswered:
		return "no reply was seen", diag.Warning
	}
	return "", diag.Info
}

func (r *Review) count(flow *Flow) {
	of := r.services[flow.Port]
	if of == nil {
		of = new(counts)
		r.services[flow.Port] = of
	}
	of[flow.severity]++
	r.counts[flow.severity]++
	if flow.Wrong == "" {
		return
	}
	key := alike{flow.Protocol, flow.To, flow.From, flow.Wrong}
	if r.examples[key] == nil {
		example := *flow
		example.State = strings.Clone(flow.State) // part of a line
		r.examples[key] = &example
	}
	r.examples[key].like++
}

// HasErrors reports whether the present rules would forward flows otherwise.
func (r *Review) HasErrors() bool { return r.counts[diag.Error] > 0 }

// describe returns the ends of a flow and its state.
func (f *Flow) describe() string {
	text := fmt.Sprintf("%s %s %s -> %s, from %s", f.Port, f.Frontend, f.match, f.From, f.Client)
	if f.Sender != "" {
		text += " (" + f.Sender + ")"
	}
	if f.State != "" {
		text += ", " + f.State
	}
	return text
}

// writeText writes the Services with their flows, one of those that are wrong alike, and writeCounts.
func (r *Review) writeText(w io.Writer) error {
	fmt.Fprintf(w, "%9s %9s %9s  service\n", "flows", "errors", "warnings")
	for _, port := range slices.SortedFunc(maps.Keys(r.services), ir.ServicePort.Compare) {
		c := r.services[port]
		fmt.Fprintf(w, "%9d %9d %9d  %s/%s\n", c.all(), c[diag.Error], c[diag.Warning], port, port.Protocol)
	}
	for _, f := range slices.SortedFunc(maps.Values(r.examples), func(a, b *Flow) int {
		return cmp.Or(cmp.Compare(a.severity, b.severity), a.Port.Compare(b.Port), a.To.Compare(b.To), a.From.Compare(b.From), cmp.Compare(a.Wrong, b.Wrong))
	}) {
		fmt.Fprintf(w, "%s: %s: %s, of %s", f.Severity, f.Wrong, f.describe(), review.Counted(f.like, "such flow"))
		if f.severity == diag.Error {
			fmt.Fprintf(w, " (delete them: conntrack -D -p %s -d %s --dport %d -r %s --reply-port-src %d)", f.Protocol, f.To.Addr(), f.To.Port(), f.From.Addr(), f.From.Port())
		}
		fmt.Fprintln(w)
	}
	return r.writeCounts(w)
}

// writeCounts writes the numbers of flows, and of others: a Filter selects none in other zones.
func (r *Review) writeCounts(w io.Writer) error {
	_, err := fmt.Fprintf(w, "Flows of Services: %d, %s, %s.", r.counts.all(), review.Counted(r.counts[diag.Error], "error"), review.Counted(r.counts[diag.Warning], "warning"))
	if !r.selects {
		_, err = fmt.Fprintf(w, " Other flows: %d, and %d in other zones.", r.others, r.zones)
	} else if r.zones > 0 {
		_, err = fmt.Fprintf(w, " Not examined: %d in other zones.", r.zones)
	}
	fmt.Fprintln(w)
	return err
}
