// Package contract decides whether contracts hold: which clients may reach which Services. Package
// ir/prove divides the packets to each frontend into classes with the same outcome, so that a contract
// is decided for every packet.
package contract

import (
	"cmp"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Result is the result of all contracts.
type Result struct {
	Nodes     []string // checked nodes
	Contracts []*Checked
	input     *review.Input // locates the causes
}

// Checked is the result of one contract.
type Checked struct {
	*Contract
	Unchecked  []string // what could not be checked
	Violations []*Violation

	members  *members
	services int // selected ones
	numbers  *frontendNumbers
	checked  map[int32][]*At    // by frontend: its violations, without duplicates
	families map[ir.Family]bool // of the frontends
	outside  []bool             // by entry of Clients.External: it has a client outside
	groups   map[groupKey]*Violation
}

// Holds reports whether the contract is checked completely and has no violation.
func (c *Checked) Holds() bool { return len(c.Violations)+len(c.Unchecked) == 0 }

// Violation is a violation of a contract by one or several frontends, for the same reason.
type Violation struct {
	At    []*At       // the frontends
	Trace trace.Trace // of the packet to the first of them
}

// At is a violation at one frontend, on some nodes.
type At struct {
	Port   ir.ServicePort
	Kind   ir.Kind
	Packet sim.Packet // a counterexample, on the first node
	// Possible reports that the client's address is one that a selected pod may have.
	Possible bool
	Cause    sim.Step // the deciding field, or a text without a field
	Nodes    []string
	frontend int32
}

// is reports whether a violation has a kind and cause.
func (a *At) is(possible bool, cause *ir.Origin) bool {
	return a.Possible == possible && a.Cause.Origin.Object == cause.Object && a.Cause.Origin.Field == cause.Field
}

type frontendKey struct {
	port ir.ServicePort
	kind ir.Kind
}

// frontendNumbers numbers frontends, since many contracts look up the same ones on many nodes.
type frontendNumbers struct {
	of   map[frontendKey]int32
	keys []frontendKey
}

// number returns the number of a frontend.
func (n *frontendNumbers) number(k frontendKey) int32 {
	i, ok := n.of[k]
	if !ok {
		i = int32(len(n.keys))
		n.of[k], n.keys = i, append(n.keys, k)
	}
	return i
}

type groupKey struct {
	kind     ir.Kind
	possible bool
	field    string // of the cause, without indexes
}

// selected is a contract that selects ports of a Service.
type selected struct {
	*Checked
	ports map[portKey]bool // nil for all
}

type portKey struct {
	name     string
	protocol ir.Protocol
}

// checkRun is the state of a check.
type checkRun struct {
	*Result
	of      map[ir.Name][]selected
	numbers *frontendNumbers
	network *network
}

// Check decides contracts on some nodes. standIns returns the pods of a workload.
func Check(j *review.Input, nodes []compiler.Facts, contracts []*Contract, standIns func(*snapshot.Workload, ir.Family) []snapshot.Endpoint) *Result {
	given, ambiguous, unread := j, j.Ambiguous(), j.Unread()
	sides, unknown := review.AssumeEndpoints(j)
	j = sides[0]
	defer func() { given.Diags = j.Diags }()
	n := newNetwork(j, standIns)
	r := checkRun{&Result{input: j}, map[ir.Name][]selected{}, &frontendNumbers{of: map[frontendKey]int32{}}, n}
	services := j.Snapshot.Services()
	for _, c := range contracts {
		one := &Checked{Contract: c, members: newMembers(&c.Clients, n), numbers: r.numbers, checked: map[int32][]*At{}, groups: map[groupKey]*Violation{},
			families: map[ir.Family]bool{}, outside: make([]bool, len(c.Clients.external))}
		r.Contracts = append(r.Contracts, one)
		r.selectServices(one, services, unknown, ambiguous)
		if unread != "" && (len(c.Destinations.Services.Names) == 0 || len(one.Unchecked) > 0 || one.services == 0) {
			one.leave("destinations.services: %s are not read, and may have more Services", unread)
		}
		one.checkClients(j)
	}
	for i, programs := range j.CompileNodes(nodes) {
		r.Nodes = append(r.Nodes, nodes[i].NodeName)
		for _, p := range programs.All() {
			r.program(p)
		}
	}
	for _, c := range r.Contracts {
		c.finish()
	}
	return r.Result
}

// program checks the contracts on one node, for one family.
func (r *checkRun) program(p *ir.Program) {
	node := prove.NodeOf(p)
	evaluator := sim.NewEvaluator(p)
	v := r.network.view(p, &node)
	for _, c := range r.Contracts {
		c.meet(v)
	}
	ports := nodePortAddrs(&p.Node)
	found := make([][]hit, len(p.Services))
	var next atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			w := worker{view: v, evaluator: evaluator, classifier: prove.NewClassifier(node, evaluator), numbers: r.numbers, nodePorts: ports, known: map[string]*reach{}}
			for i := int(next.Add(1)) - 1; i < len(p.Services); i = int(next.Add(1)) - 1 {
				if of := r.of[p.Services[i].Name]; len(of) > 0 {
					found[i] = w.service(&p.Services[i], of)
				}
			}
		})
	}
	wait.Wait()
	for _, hits := range found {
		for i := range hits {
			h := &hits[i]
			h.contract.families[p.Family] = true
			if h.number == unnumbered {
				h.number = r.numbers.number(frontendKey{h.frontend.Port, h.frontend.Kind})
			}
			if _, known := h.contract.checked[h.number]; !known {
				h.contract.checked[h.number] = nil
			}
			if h.violated {
				h.contract.add(evaluator, p.Node.Name, h)
			}
		}
	}
}

// view returns what the node of a Program receives.
func (n *network) view(p *ir.Program, node *prove.Node) *view {
	v := &view{node: p.Node.Name, family: p.Family, detector: &p.Node.Detector, never: map[netip.Addr]bool{}}
	for _, a := range node.Addrs {
		v.never[a] = true
	}
	for _, f := range p.Frontends() {
		a := f.Match.Addr
		at := n.at[a]
		elsewhere := f.Kind == ir.ExternalIP || at != nil && at.node != "" // somebody else may have the address, too
		if !elsewhere || node.Carries != nil && node.Carries(a) {
			v.never[a] = true
		}
	}
	return v
}

// nodePortAddrs returns the addresses at which node ports answer.
func nodePortAddrs(n *ir.Node) (out []netip.Addr) {
	all := slices.Clone(n.Addrs)
	for _, p := range n.NodePorts.Prefixes {
		all = append(all, p.Prefix.Addr())
	}
	if n.IP.IsValid() {
		all = append(all, ir.FamilyOf(n.IP).Localhost())
	}
	for _, a := range all {
		if n.NodePorts.Has(a, n.HasAddr(a)) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// hit is a checked frontend of a contract.
type hit struct {
	contract *Checked
	frontend *ir.Frontend
	number   int32 // of the frontend, or unnumbered
	violated bool
	possible bool
	packet   sim.Packet
	cause    sim.Step
}

// unnumbered is the number of a frontend that no contract has checked.
const unnumbered = -1

// worker checks Services of one Program.
type worker struct {
	*view
	numbers    *frontendNumbers // not changed meanwhile
	evaluator  *sim.Evaluator
	classifier *prove.Classifier
	nodePorts  []netip.Addr
	known      map[string]*reach
	key        []byte
	classes    []class
	some       []hit
}

// class is a set of packets to an address and port.
type class struct {
	packets
	example  sim.Packet
	served   bool // some connections are
	unserved bool // some connections are not
	masked   bool // some connections lose the client's address
	// maskedAt is the only address to which they do, or invalid. A client with this address keeps it:
	// connections of a backend to itself do not count.
	maskedAt netip.Addr
}

// masked returns class.masked and class.maskedAt for the destinations of a source.
func masked(all []sim.Destination, src netip.Addr) (some bool, only netip.Addr) {
	for _, to := range all {
		switch a := to.AddrPort.Addr(); {
		case !to.SNAT || a == src || some && a == only:
		case !some:
			some, only = true, a
		default:
			return true, netip.Addr{}
		}
	}
	return some, only
}

// reach is the verdicts about frontends whose classes are alike.
type reach struct{ verdicts map[*Checked]verdict }

// verdict is the class that violates a contract.
type verdict struct {
	class  int // no if the contract holds
	src    netip.Addr
	answer answer
}

// service returns the violations of a Service, and the frontends that are checked for the first time.
func (w *worker) service(s *ir.Service, of []selected) (hits []hit) {
	for i := range s.Frontends {
		f := &s.Frontends[i]
		some := w.some[:0]
		number, known := w.numbers.of[frontendKey{f.Port, f.Kind}]
		if !known {
			number = unnumbered
		}
		for _, c := range of {
			if c.Destinations.kinds[f.Kind] && (c.ports == nil || c.ports[portKey{f.Port.Port, f.Port.Protocol}]) {
				some = append(some, hit{contract: c.Checked, frontend: f, number: number})
			}
		}
		if len(some) == 0 {
			continue
		}
		addrs := []netip.Addr{f.Match.Addr}
		if f.Match.IsNodePort() {
			if addrs = w.nodePorts; len(addrs) == 0 {
				continue // it answers nowhere, and is not checked
			}
		}
		for _, dst := range addrs {
			at := w.reach(f, dst)
			for j := range some {
				w.decide(&some[j], at)
			}
		}
		for j := range some {
			if h := &some[j]; !h.violated {
				if _, checked := h.contract.checked[number]; checked && h.contract.families[w.family] {
					continue
				}
			}
			hits = append(hits, some[j])
		}
		w.some = some
	}
	return hits
}

// reach classifies the packets to a frontend at an address.
func (w *worker) reach(f *ir.Frontend, dst netip.Addr) *reach {
	all, _ := w.classifier.Classes(dst, f.Match.Protocol, f.Match.Port)
	slices.SortFunc(all, func(a, b prove.Difference) int {
		return cmp.Or(cmp.Compare(a.Packet.In, b.Packet.In), a.Src.First.Compare(b.Src.First))
	})
	shared := f.Match.IsNodePort() && w.evaluator.Frontend(ir.Match{Addr: dst, Protocol: f.Match.Protocol, Port: f.Match.Port}) != nil
	anyIn := len(all) > 0 && !splits(w.detector, all[0].Named) // all classes of a port name the same interfaces
	w.classes = w.classes[:0]
	for i := range all {
		d := &all[i]
		c := class{packets: packets{d.Src, d.Packet.In, anyIn, f.Match.IsNodePort(), netip.Addr{}}, example: d.Packet,
			served: len(d.A.Destinations) > 0, unserved: d.A.Fate != sim.Accepted || len(d.A.Fallback) > 0}
		c.masked, c.maskedAt = masked(d.A.Destinations, d.Packet.Src)
		if shared { // packets are for the node port only if they get to it
			if c.served && w.evaluator.Forwarding(d.Packet).Frontend != f {
				c.served = false
			}
			c.unserved = false
		}
		if n := len(w.classes); n > 0 {
			last := &w.classes[n-1]
			if last.in == c.in && (c.in == "" || last.Last.Next() == c.First) && last.served == c.served && last.unserved == c.unserved && last.masked == c.masked && last.maskedAt == c.maskedAt {
				last.Last = c.Last
				continue
			}
		}
		w.classes = append(w.classes, c)
	}
	key := strconv.AppendBool(strconv.AppendBool(w.key[:0], f.Match.IsNodePort()), anyIn)
	for i := range w.classes {
		c := &w.classes[i]
		if c.in != "" {
			key = append(append(key, c.in...), '@')
			key = c.Last.AppendTo(append(c.First.AppendTo(key), '-'))
		}
		key = strconv.AppendBool(strconv.AppendBool(strconv.AppendBool(key, c.served), c.unserved), c.masked)
		key = c.maskedAt.AppendTo(key)
	}
	w.key = key
	at := w.known[string(key)]
	if at == nil {
		at = &reach{map[*Checked]verdict{}}
		w.known[string(key)] = at
	}
	return at
}

// splits reports whether pods are detected by one of the interfaces that rules name.
func splits(d *ir.Detector, named []sim.Interface) bool {
	return slices.Contains(named, sim.Interface{Name: d.Interface, Prefix: d.Mode == ir.DetectPrefix}) && d.Interface != ""
}

// decide decides a contract at the current classes. A certain violation replaces a possible one.
func (w *worker) decide(h *hit, at *reach) {
	if h.violated && !h.possible {
		return
	}
	v, known := at.verdicts[h.contract]
	if !known {
		v = w.verdict(h.contract)
		at.verdicts[h.contract] = v
	}
	if v.answer == no || h.violated && v.answer == maybe {
		return
	}
	h.violated, h.possible, h.packet = true, v.answer == maybe, w.classes[v.class].example
	if v.src.IsValid() {
		h.packet.Src = v.src
	}
	h.cause = w.cause(h)
}

func (w *worker) verdict(c *Checked) (best verdict) {
	m := c.members
	for i := range w.classes {
		one := &w.classes[i]
		one.but = netip.Addr{}
		switch c.Require {
		case never, onlyFrom:
			if !one.served {
				continue
			}
		case always:
			if !one.unserved {
				continue
			}
		case keeps:
			if !one.served || !one.masked {
				continue
			}
			one.but = one.maskedAt
		}
		v := verdict{class: i}
		switch others := c.Require == onlyFrom; {
		case one.in == "" && !others:
			v.answer = m.thisNode(w.view)
		case one.in == "":
			if !m.Anyone && !m.Nodes.has(w.node) {
				v.answer = yes
			}
		case others:
			v.src, v.answer = m.other(w.view, &one.packets)
		default:
			v.src, v.answer = m.client(w.view, &one.packets)
		}
		if v.answer > best.answer {
			best = v
		}
	}
	return best
}

// cause returns the field that causes a violation.
func (w *worker) cause(h *hit) sim.Step {
	f := h.frontend
	switch h.contract.Require {
	case always:
		return w.evaluator.Decide(h.packet).Last
	case keeps:
		if by := w.evaluator.Forwarding(h.packet); by.Route != nil {
			o := by.Route.Origin
			if o.Object == "default" { // of a field of the Service
				o.Object, o.Field = f.Origin.Object, "spec."+o.Field
			}
			return sim.Step{Origin: o}
		}
	}
	for _, r := range f.SourceRanges {
		if r.Prefix.Contains(h.packet.Src) {
			return sim.Step{Origin: r.Origin}
		}
	}
	if f.Kind == ir.LoadBalancer && len(f.SourceRanges) == 0 {
		return sim.Step{Origin: ir.Origin{Object: f.Origin.Object, Field: "spec.loadBalancerSourceRanges", Reason: "not set"}}
	}
	return sim.Step{Origin: f.Origin}
}

var digits = regexp.MustCompile(`\d+`)

// add adds a violation on a node.
func (c *Checked) add(e *sim.Evaluator, node string, h *hit) {
	f := h.frontend
	known := c.checked[h.number]
	for _, at := range known {
		if at.is(h.possible, &h.cause.Origin) {
			if at.Nodes[len(at.Nodes)-1] != node { // the other family has added it
				at.Nodes = append(at.Nodes, node)
			}
			return
		}
	}
	at := &At{f.Port, f.Kind, h.packet, h.possible, h.cause, []string{node}, h.number}
	c.checked[h.number] = append(known, at)
	like := groupKey{f.Kind, h.possible, digits.ReplaceAllString(h.cause.Origin.Field, "")}
	v := c.groups[like]
	if v == nil {
		outcome, steps := e.Explain(h.packet)
		v = &Violation{Trace: trace.Trace{Packet: h.packet, Outcome: outcome, Steps: steps}}
		c.groups[like] = v
		c.Violations = append(c.Violations, v)
	}
	v.At = append(v.At, at)
}
