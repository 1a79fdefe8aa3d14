package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Flow is one change for some clients of some destinations of a Service.
type Flow struct {
	Family ir.Family
	To     []Destination
	From   []Clients
	Change Change
	// Cause is what decides on either side.
	Cause [2]Cause
	// Backends are where those that were added and removed come from.
	Added, Removed []Backend
	Example        prove.Difference // the first class of the flow
	// Design is in what the modes of the sides differ, if that is the reason.
	Design  ir.Capability
	Classes int      // of packets
	Nodes   []string // on which it is so
}

// Cause is the field that decides, or, where none does, what there is instead in words.
type Cause struct {
	ir.Origin
	Text string
}

// String returns it in one line.
func (c Cause) String() string {
	if c.Text != "" {
		return c.Text
	}
	return c.Origin.String()
}

// Backend is a backend and its origin.
type Backend struct {
	AddrPort netip.AddrPort
	Origin   ir.Origin
}

// Destination is what clients connect to.
type Destination struct {
	Kind  string        // "ClusterIP"; "other ports" of a Service's address; "" of no Service's
	Match ir.Match      // of a frontend; a node port has no address
	Addrs []prove.Addrs // unless Match has one; of a node port: of those the flow is about
	Rest  netip.Prefix  // as prove.Class has it
	Ports []sim.Ports   // unless Match has one
	Every bool          // of a node port: all addresses at which it answers on either side
	// Taken reports that it is an external IP which the Service has on the second side alone: what was
	// another's, a node's or nobody's goes to it from then on.
	Taken bool
}

// Service is a Service, or what is none's, with all that changes.
type Service struct {
	Name   ir.Name // zero: what is no Service's
	Action Action
	Flows  []Flow
	// Notes are about what no first packet meets: health checks, clients that stay.
	Notes []Note
}

// Action is what happens to a Service.
type Action uint8

const (
	Changed Action = iota
	Added
	Removed
)

// String returns changed, added or removed.
func (a Action) String() string { return [...]string{"changed", "added", "removed"}[a] }

// MarshalText returns the word.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Note is something beside flows that differs.
type Note struct {
	What          string
	Before, After string // "": nothing
	Family        ir.Family
	Nodes         []string
}

// Compare returns which Services differ between two Programs of one node and family, by
// name, and in how many classes of packets that was looked for. A nil Program has no
// Services and no node. Where ctx ends by a prove.Limit the error is Unfinished, and what was found until then
// is returned with it.
func Compare(ctx context.Context, where Network, a, b *ir.Program) ([]Service, int, error) {
	return CompareOf(ctx, where, a, b, func(ir.Name) bool { return true })
}

// Unfinished is why a comparison does not know all that differs.
type Unfinished string

func (u Unfinished) Error() string { return string(u) }

// CompareOf is Compare for the Services that the caller asks for. It looks at the destinations of
// these alone; what is no Service's has the zero name.
func CompareOf(ctx context.Context, where Network, a, b *ir.Program, of func(ir.Name) bool) ([]Service, int, error) {
	a, b = orEmpty(a, b), orEmpty(b, a)
	changes := ir.Diff(a, b)
	node := NodeOf(a, b)
	d := newDescriber(where, node, a, b)
	var mu sync.Mutex
	parts := map[int][]owned{} // by the number of the destination
	r, err := prove.CompareAt(ctx, node, d.sides[0], d.sides[1], both(touched(a, b, changes), ofServices(a, b, of)), func(i int, of []prove.Difference) {
		flows := d.flows(of)
		mu.Lock()
		defer mu.Unlock()
		parts[i] = flows
	})
	if err != nil {
		return nil, 0, err
	}
	var unfinished error
	if len(r.Doubts) > 0 { // Programs have none, but too many classes are one, and so is too much time
		why := r.Doubts[0].Unknown[0]
		if !errors.As(context.Cause(ctx), new(prove.Limit)) {
			return nil, 0, fmt.Errorf("node %s: cannot be compared, because of %s", b.Node.Name, why)
		}
		unfinished = Unfinished(why)
	}
	services := d.services(func(yield func([]owned) bool) {
		for _, i := range slices.Sorted(maps.Keys(parts)) {
			if !yield(parts[i]) {
				return
			}
			delete(parts, i)
		}
	})
	return slices.DeleteFunc(services, func(s Service) bool { return !of(s.Name) }), r.Classes, unfinished
}

// anywhere has all destinations.
func anywhere(prove.Addrs) bool { return true }

// orEmpty returns a Program that does nothing in place of none.
func orEmpty(p, other *ir.Program) *ir.Program {
	if p != nil {
		return p
	}
	return &ir.Program{Family: other.Family, Node: ir.Node{Name: other.Node.Name, Mode: other.Node.Mode}}
}

// NodeOf returns the node that has what it has on either side.
func NodeOf(a, b *ir.Program) prove.Node {
	n, o := prove.NodeOf(a), prove.NodeOf(b)
	if n.Carries == nil {
		n.Carries = o.Carries
	} else if ours := n.Carries; o.Carries != nil {
		n.Carries = func(addr netip.Addr) bool { return ours(addr) || o.Carries(addr) }
	}
	costA, costB := n.Cost, o.Cost
	n.Cost = func(addr netip.Addr) int { return costA(addr) + costB(addr) }
	n.Addrs = slices.Concat(a.Node.Addrs, b.Node.Addrs)
	slices.SortFunc(n.Addrs, netip.Addr.Compare)
	n.Addrs = slices.Compact(n.Addrs)
	return n
}

// touched returns for which destinations packets may meet another fate: where a
// Service that is not the same on both sides has a frontend, or one that leads to an
// address of such a Service. Where the nodes differ, these are all.
func touched(a, b *ir.Program, changes []ir.Change) func(prove.Addrs) bool {
	all := !reflect.DeepEqual(a.Node, b.Node)
	at := map[netip.Addr]bool{}
	ports := false
	for _, c := range changes {
		for _, s := range [...]*ir.Service{c.Old, c.New} {
			if s == nil {
				continue
			}
			all = all || s.Health != nil && a.Node.Mode.Capabilities().Has(ir.CarriesVIPs) // it answers at all addresses of Services
			for i := range s.Frontends {
				at[s.Frontends[i].Match.Addr] = true
				ports = ports || s.Frontends[i].Match.IsNodePort()
			}
		}
	}
	if caps := a.Node.Mode.Capabilities(); !all && (caps.Has(ir.FiltersTranslated) || caps.Has(ir.CarriesVIPs)) {
		touched := func(b ir.Backend) bool {
			addr := b.AddrPort.Addr()
			return at[addr] || ports && a.Node.HasAddr(addr)
		}
		led := map[netip.Addr]bool{}
		for _, p := range [...]*ir.Program{a, b} {
			for i := range p.Services {
				s := &p.Services[i]
				if !slices.ContainsFunc(s.Pools, func(p ir.Pool) bool { return slices.ContainsFunc(p.Backends, touched) }) {
					continue
				}
				for j := range s.Frontends {
					led[s.Frontends[j].Match.Addr] = true
					ports = ports || s.Frontends[j].Match.IsNodePort()
				}
			}
		}
		maps.Copy(at, led)
	}
	return func(d prove.Addrs) bool {
		return all || at[d.First] || ports && (a.Node.HasAddr(d.First) || a.Node.NodePorts.Has(d.First, false))
	}
}

// ofServices returns at which destinations Services have frontends, or could have some: where what is no
// Service's is asked for, too, these are all.
func ofServices(a, b *ir.Program, of func(ir.Name) bool) func(prove.Addrs) bool {
	if of(ir.Name{}) {
		return anywhere
	}
	at := map[netip.Addr]bool{}
	for _, p := range [...]*ir.Program{a, b} {
		for i := range p.Services {
			if s := &p.Services[i]; of(s.Name) {
				for j := range s.Frontends {
					at[s.Frontends[j].Match.Addr] = true
				}
			}
		}
	}
	return func(d prove.Addrs) bool { return at[d.First] || at[netip.Addr{}] && answers(a, b, d.First) }
}

// answers reports whether node ports answer at an address, or it is the node's, on some side.
func answers(a, b *ir.Program, addr netip.Addr) bool {
	return slices.ContainsFunc([]*ir.Program{a, b}, func(p *ir.Program) bool {
		return p.Node.HasAddr(addr) || p.Node.NodePorts.Has(addr, false)
	})
}

func both(f, g func(prove.Addrs) bool) func(prove.Addrs) bool {
	return func(d prove.Addrs) bool { return f(d) && g(d) }
}

// describer names the differences of one family.
type describer struct {
	*network
	node   prove.Node
	design *prove.Design
	sides  [2]*side
	byName map[ir.Name]*Service
}

// side is one of two Programs, indexed.
type side struct {
	*ir.Program
	*sim.Evaluator
	at       map[ir.Match]*ir.Frontend
	owner    map[netip.Addr]*ir.Frontend // the first frontend of an address
	services map[ir.Name]*ir.Service
}

func newSide(p *ir.Program) *side {
	s := &side{p, sim.NewEvaluator(p), map[ir.Match]*ir.Frontend{}, map[netip.Addr]*ir.Frontend{}, map[ir.Name]*ir.Service{}}
	for i := range p.Services {
		svc := &p.Services[i]
		s.services[svc.Name] = svc
		for j := range svc.Frontends {
			f := &svc.Frontends[j]
			s.at[f.Match] = f
			if s.owner[f.Match.Addr] == nil {
				s.owner[f.Match.Addr] = f
			}
		}
	}
	return s
}

func newDescriber(where Network, node prove.Node, a, b *ir.Program) *describer {
	return &describer{network: newNetwork(where, node, a, b), node: node, design: prove.NewDesign(a, b), sides: [2]*side{newSide(a), newSide(b)}, byName: map[ir.Name]*Service{}}
}

// Describe names differences that prove found between two sides that do what two
// Programs mean, be it their rules, and adds what no packet meets.
func Describe(where Network, node prove.Node, a, b *ir.Program, differences []prove.Difference) []Service {
	d := newDescriber(where, node, a, b)
	return d.services(slices.Values([][]owned{d.flows(differences)}))
}

// owned is a flow of a Service.
type owned struct {
	name ir.Name
	Flow
}

// flows names differences, which stand in order. It may be called by several goroutines.
func (d *describer) flows(differences []prove.Difference) (all []owned) {
	for len(differences) > 0 {
		first := &differences[0]
		n := slices.IndexFunc(differences, func(o prove.Difference) bool {
			return o.Dst != first.Dst || o.Protocol != first.Protocol || o.Packet.Port != first.Packet.Port
		})
		if n < 0 {
			n = len(differences)
		}
		all = append(all, d.destination(differences[:n])...)
		differences = differences[n:]
	}
	return all
}

// services puts flows together by Service, in order of their names.
func (d *describer) services(parts iter.Seq[[]owned]) []Service {
	for flows := range parts {
		for i := range flows {
			s := d.service(flows[i].name)
			s.Flows = append(s.Flows, flows[i].Flow)
		}
	}
	d.notes()
	out := make([]Service, 0, len(d.byName))
	for _, s := range d.byName {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Service) int { return a.Name.Compare(b.Name) })
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			for i := w; i < len(out); i += workers {
				out[i].Flows = d.joinDestinations(out[i].Flows)
			}
		})
	}
	wait.Wait()
	return out
}

// service returns the entry of a Service.
func (d *describer) service(name ir.Name) *Service {
	s := d.byName[name]
	if s == nil {
		s = &Service{Name: name}
		if name != (ir.Name{}) {
			switch was, is := d.sides[0].services[name], d.sides[1].services[name]; {
			case was == nil:
				s.Action = Added
			case is == nil:
				s.Action = Removed
			}
		}
		d.byName[name] = s
	}
	return s
}

// frontend returns the frontend that has the packets of a class, if one has.
func (s *side) frontend(c *prove.Class) *ir.Frontend {
	pkt := &c.Packet
	if f := s.at[ir.Match{Addr: pkt.Dst, Protocol: pkt.Protocol, Port: pkt.Port}]; f != nil {
		return f
	}
	if s.Node.NodePorts.Has(pkt.Dst, s.Node.HasAddr(pkt.Dst)) {
		return s.at[ir.Match{Protocol: pkt.Protocol, Port: pkt.Port}]
	}
	return nil
}

// to returns what the packets of a class are for, and whose that is.
func (d *describer) to(c *prove.Class) (Destination, ir.Name) {
	for _, s := range [...]*side{d.sides[1], d.sides[0]} {
		if f := s.frontend(c); f != nil {
			to := Destination{Kind: f.Kind.String(), Match: f.Match, Taken: taken(d.sides[0].frontend(c), f)}
			if f.Match.IsNodePort() {
				to.Addrs, to.Rest = []prove.Addrs{c.Dst}, c.Rest
			}
			return to, f.Port.Service
		}
	}
	to := Destination{Match: ir.Match{Protocol: c.Protocol}, Addrs: []prove.Addrs{c.Dst}, Rest: c.Rest, Ports: c.Ports()}
	for _, s := range [...]*side{d.sides[1], d.sides[0]} {
		if f := s.owner[c.Packet.Dst]; f != nil && c.Dst.First == c.Dst.Last {
			to.Kind = "other ports of " + f.Kind.String()
			to.Taken = taken(d.sides[0].owner[c.Packet.Dst], f)
			return to, f.Port.Service
		}
	}
	return to, ir.Name{}
}

// taken reports whether a frontend is an external IP that its Service had not before, as was,
// which may be nil, tells.
func taken(was, is *ir.Frontend) bool {
	return is.Kind == ir.ExternalIP && (was == nil || was.Port.Service != is.Port.Service)
}

// destination names the differences of one port of one destination.
func (d *describer) destination(all []prove.Difference) (flows []owned) {
	type group struct {
		change  Change
		first   *prove.Difference
		classes []*prove.Class
	}
	var groups []*group
	at := map[string]*group{}
	var loose []int // of clients about whose address nothing is known
	join := func(key string, i int, c Change) {
		g := at[key]
		if g == nil {
			g = &group{change: c, first: &all[i]}
			at[key] = g
			groups = append(groups, g)
		}
		g.classes = append(g.classes, &all[i].Class)
	}
	changes := make([]Change, len(all))
	for i := range all {
		changes[i] = changeOf(all[i].Packet.Src, all[i].A, all[i].B)
		if changes[i].unaddressed() {
			loose = append(loose, i)
			continue
		}
		join(changes[i].key(false), i, changes[i])
	}
	for _, i := range loose { // with their neighbours, if these are told of alike
		key, c := changes[i].key(false), &all[i].Class
		for _, g := range groups {
			beside := func(o *prove.Class) bool {
				return o.Packet.In == c.Packet.In && (o.Src.Last.Next() == c.Src.First || c.Src.Last.Next() == o.Src.First)
			}
			if g.change.key(true) == changes[i].key(true) && slices.ContainsFunc(g.classes, beside) {
				key = g.change.key(false)
				break
			}
		}
		join(key, i, changes[i])
	}
	to, name := d.to(&all[0].Class)
	dst := all[0].Packet.Dst
	carried := d.node.Carries != nil && d.node.Carries(dst) && !slices.Contains(d.node.Addrs, dst)
	for _, g := range groups {
		f := Flow{Family: d.family, To: []Destination{to}, From: d.clients(dst, carried, g.classes), Change: g.change, Example: *g.first, Design: d.design.Of(g.first), Classes: len(g.classes)}
		for i := range f.From {
			f.From[i].Itself = isBackend(&f.From[i], g.first)
		}
		d.explain(&f)
		flows = append(flows, owned{name, f})
	}
	return flows
}

// isBackend reports whether clients are all backends that some side leads them to.
func isBackend(c *Clients, of *prove.Difference) bool {
	backend := func(addr netip.Addr) bool {
		is := func(d sim.Destination) bool { return d.AddrPort.Addr() == addr }
		return slices.ContainsFunc(of.A.Destinations, is) || slices.ContainsFunc(of.B.Destinations, is)
	}
	for _, p := range c.Prefixes {
		for at, last := p.Addr(), ir.LastOf(p); ; at = at.Next() {
			if !backend(at) {
				return false
			}
			if at == last {
				break
			}
		}
	}
	return !c.All && c.Kind != ThisNode
}

// key is equal for flows that are told of as one, wherever they go to.
func (f *Flow) key() string {
	var b strings.Builder
	b.WriteString(f.Family.String())
	if len(f.To[0].Ports) > 0 {
		b.WriteString(" of no frontend ")
	}
	b.WriteString(f.Change.key(false))
	for i := range f.From {
		b.WriteString(f.From[i].String())
		fmt.Fprint(&b, f.From[i].Prefixes)
	}
	return b.String()
}

// joinDestinations makes one of flows that differ in their destinations alone.
func (d *describer) joinDestinations(flows []Flow) (out []Flow) {
	at := map[string]int{}
	for _, f := range flows {
		key := f.key()
		i, known := at[key]
		if !known {
			at[key] = len(out)
			out = append(out, f)
			continue
		}
		o := &out[i]
		o.Classes += f.Classes
		o.To = joinTo(o.To, f.To[0])
	}
	for i := range out {
		for j := range out[i].To {
			d.complete(&out[i].To[j])
		}
		slices.SortStableFunc(out[i].To, func(a, b Destination) int {
			if len(a.Ports) == 0 || len(b.Ports) == 0 {
				return a.Match.Compare(b.Match)
			}
			return cmp.Or(a.Addrs[0].First.Compare(b.Addrs[0].First), cmp.Compare(a.Match.Protocol, b.Match.Protocol))
		})
	}
	return out
}

// joinTo adds a destination to a list, as part of one of these if it is the same but
// for addresses or ports.
func joinTo(list []Destination, to Destination) []Destination {
	for i := range list {
		o := &list[i]
		switch {
		case o.Kind != to.Kind || o.Match != to.Match:
		case len(to.Ports) == 0:
			o.Addrs = append(o.Addrs, to.Addrs...)
			return list
		case o.Rest == to.Rest && slices.Equal(o.Addrs, to.Addrs):
			o.Ports = append(o.Ports, to.Ports...)
			return list
		}
	}
	return append(list, to)
}

// complete says of a node port whether the flow is about all addresses at which it
// answers, and joins ports that are neighbours.
func (d *describer) complete(to *Destination) {
	if len(to.Ports) > 0 {
		to.Ports = sim.JoinPorts(to.Ports)
		return
	}
	if !to.Match.IsNodePort() {
		return
	}
	to.Every = allOf(d.node.Addrs, func(a netip.Addr) bool {
		answers := false
		for _, s := range d.sides {
			answers = answers || s.Node.NodePorts.Has(a, true)
		}
		return !answers || slices.ContainsFunc(to.Addrs, func(r prove.Addrs) bool { return r.First.Compare(a) <= 0 && r.Last.Compare(a) >= 0 })
	})
}

// explain finds what decides on either side.
func (d *describer) explain(f *Flow) {
	by := [2]sim.Deciding{d.sides[0].Decide(f.Example.Packet), d.sides[1].Decide(f.Example.Packet)}
	for i := range d.sides {
		f.Cause[i] = f.Change.cause(by[i], by[1-i])
	}
	const ranges = "spec.loadBalancerSourceRanges"
	for i := range d.sides {
		if other := &f.Cause[1-i]; strings.HasPrefix(other.Field, ranges) && by[i].Frontend != nil {
			f.Cause[i] = Cause{Origin: ir.Origin{Object: other.Object, Field: ranges, Reason: "not set"}}
			if len(by[i].Frontend.SourceRanges) > 0 {
				f.Cause[i].Reason = "admits them"
			}
		}
	}
	if was, is := d.sides[0].Node.Mode, d.sides[1].Node.Mode; f.Cause[0] == f.Cause[1] && was != is {
		for i, mode := range [...]ir.Mode{was, is} {
			f.Cause[i] = Cause{Origin: ir.Origin{Object: "config", Field: "mode", Reason: string(mode)}}
		}
	}
	f.Added, f.Removed = backends(by[1].Pool, f.Change.Added), backends(by[0].Pool, f.Change.Removed)
}

// cause returns what decides on one side.
func (c *Change) cause(it, other sim.Deciding) Cause {
	if it.Pool == nil && it.Last.Origin == (ir.Origin{}) {
		return Cause{Text: it.Last.Text}
	}
	return Cause{Origin: c.origin(it, other)}
}

func (c *Change) origin(it, other sim.Deciding) ir.Origin {
	switch {
	case it.Pool == nil:
		return it.Last.Origin
	case other.Frontend != nil && it.Frontend.Policy != other.Frontend.Policy, other.Frontend == nil && strings.HasSuffix(other.Last.Origin.Field, "TrafficPolicy"):
		field := "spec.internalTrafficPolicy"
		if it.Frontend.Kind.External() {
			field = "spec.externalTrafficPolicy"
		}
		return ir.Origin{Object: "Service " + it.Frontend.Port.Service.String(), Field: field,
			Reason: it.Frontend.Policy.String() + ": " + it.Pool.Origin.Reason}
	case len(c.Added)+len(c.Removed) == 0 && c.Before == c.After && c.Kept[0] != c.Kept[1]:
		return it.Route.Origin
	case len(c.Added)+len(c.Removed) == 0 && c.Before == c.After && c.Affinity[0] != c.Affinity[1]:
		if it.Pool.Affinity == nil {
			return ir.Origin{Object: "Service " + it.Frontend.Port.Service.String(), Field: "spec.sessionAffinity", Reason: "None"}
		}
		return it.Pool.Affinity.Origin
	}
	return it.Pool.Origin
}

// backends returns those of a pool with some addresses.
func backends(p *ir.Pool, some []netip.AddrPort) (out []Backend) {
	if p == nil || len(some) == 0 {
		return nil
	}
	origins := make(map[netip.AddrPort]ir.Origin, len(p.Backends))
	for i := range p.Backends {
		if b := &p.Backends[i]; origins[b.AddrPort] == (ir.Origin{}) { // the first of several
			origins[b.AddrPort] = b.Origin
		}
	}
	for _, addr := range some {
		if o, has := origins[addr]; has {
			out = append(out, Backend{addr, o})
		}
	}
	return out
}

// notes adds what no first packet meets.
func (d *describer) notes() {
	family := d.sides[0].Family
	for _, c := range ir.Diff(d.sides[0].Program, d.sides[1].Program) {
		was, is := notesOf(c.Old), notesOf(c.New)
		for _, what := range sortedKeys(was, is) {
			if was[what] != is[what] {
				s := d.service(c.Name)
				s.Notes = append(s.Notes, Note{What: what, Before: was[what], After: is[what], Family: family})
			}
		}
	}
}

// notesOf returns what a Service has beside its flows.
func notesOf(s *ir.Service) map[string]string {
	notes := map[string]string{}
	if s == nil {
		return notes
	}
	if h := s.Health; h != nil {
		answer := "503, as no ready endpoint is on the node"
		if h.Local > 0 {
			answer = "200, as ready endpoints are on the node"
		}
		notes[fmt.Sprintf("health check on port %d", h.Port)] = answer
	}
	for _, d := range s.Draining {
		var addrs []string
		for _, b := range d.Backends {
			addrs = append(addrs, b.AddrPort.String())
		}
		notes["UDP clients that "+cmp.Or(d.Port.Port, "the port")+" keeps"] = strings.Join(addrs, ", ")
	}
	if h := s.HNS; h != nil && (h.PreserveDIP || h.NoOptimize) {
		notes["HNS"] = fmt.Sprintf("preserve destination %t, recreate %t", h.PreserveDIP, h.NoOptimize)
	}
	return notes
}

func sortedKeys(maps ...map[string]string) (keys []string) {
	for _, m := range maps {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
