package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Flow is a change for some clients and some destinations of a Service.
type Flow struct {
	Family ir.Family
	To     []Destination
	From   []Clients
	Change Change
	// Cause is the deciding part on each side.
	Cause [2]Cause
	// Added and Removed are the changed backends with their origins.
	Added, Removed []Backend
	Example        prove.Difference // the first class of the flow
	// Design is the capabilities in which the modes of the sides differ, if these
	// explain the change.
	Design  ir.Capability
	Classes int      // number of classes of packets
	Nodes   []string // nodes with this flow
}

// Cause is the deciding field, or a description if no field decides.
type Cause struct {
	ir.Origin
	Text string
}

// String returns the cause on one line.
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

// Destination is an address and port to which clients connect.
type Destination struct {
	Kind  string        // "ClusterIP"; "other ports" of a Service's address; "" if it belongs to no Service
	Match ir.Match      // of a frontend; without an address for a node port
	Addrs []prove.Addrs // unless Match has one; for a node port, the addresses of the flow
	Rest  netip.Prefix  // as in prove.Class
	Ports []sim.Ports   // unless Match has one
	Every bool          // of a node port: all addresses at which it answers on either side
	// Hijacked reports that this is an external IP that the Service has only on the
	// second side. Its traffic then moves to the Service from another Service, a
	// node or the outside.
	Hijacked bool
	// Open reports that this is an external frontend to which the flow adds the
	// last clients outside: anyone reaches it after the change.
	Open bool
}

// Service is the changes of one Service, or of destinations without a Service.
type Service struct {
	Name   ir.Name // zero for destinations without a Service
	Action Action
	Effect Effect // of all its changes, if they are separated by effect
	Flows  []Flow
	// Notes are changes that affect no first packet: health checks, draining
	// clients.
	Notes []Note
}

// Action is the change of a Service as a whole.
type Action uint8

const (
	Changed Action = iota
	Added
	Removed
)

// String returns changed, added or removed.
func (a Action) String() string { return [...]string{"changed", "added", "removed"}[a] }

// MarshalText returns the same as String.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Note is a difference outside of flows.
type Note struct {
	Effect Effect    `json:"-"`
	Family ir.Family `json:"family"`
	What   string    `json:"what"`
	Before string    `json:"before"` // "" for nothing
	After  string    `json:"after"`
	Nodes  []string  `json:"nodes"`
}

// NameInDNS is what a note about a Service without rules is about, in no family.
const NameInDNS = "name in DNS"

// Title returns what a note is about, with its family.
func (n *Note) Title() string {
	if n.What == NameInDNS {
		return n.What
	}
	return n.Family.String() + " " + n.What
}

// Compare returns the Services that differ between two Programs of one node and
// family, sorted by name, and the number of compared classes of packets. A nil
// Program has no Services and no node. If ctx ends because of a prove.Limit,
// Compare returns the result so far with an error of type Unfinished.
func Compare(ctx context.Context, where Network, a, b *ir.Program) ([]Service, int, error) {
	return CompareOf(ctx, where, a, b, func(ir.Name) bool { return true })
}

// Unfinished is the reason for an incomplete comparison.
type Unfinished string

func (u Unfinished) Error() string { return string(u) }

// CompareOf is Compare for the selected Services. It compares only their
// destinations. Destinations without a Service have the zero name.
func CompareOf(ctx context.Context, where Network, a, b *ir.Program, of func(ir.Name) bool) ([]Service, int, error) {
	a, b = orEmpty(a, b), orEmpty(b, a)
	changes := ir.Diff(a, b)
	node := NodeOf(a, b)
	d := newDescriber(where, node, a, b)
	r, services, err := d.compare(ctx, d.sides[0], d.sides[1], both(touched(a, b, changes), ofServices(a, b, of)))
	if err != nil {
		return nil, 0, err
	}
	var unfinished error
	if len(r.Doubts) > 0 { // Programs cause no doubts, except for too many classes or too much time
		why := r.Doubts[0].Unknown[0]
		if !errors.As(context.Cause(ctx), new(prove.Limit)) {
			return nil, 0, fmt.Errorf("node %s: cannot be compared, because of %s", b.Node.Name, why)
		}
		unfinished = Unfinished(why)
	}
	return slices.DeleteFunc(services, func(s Service) bool { return !of(s.Name) }), r.Classes, unfinished
}

// compare compares two sides that implement the Programs at some destinations.
func (d *describer) compare(ctx context.Context, a, b prove.Side, at func(prove.Addrs) bool) (*prove.Result, []Service, error) {
	var mu sync.Mutex
	parts := map[int][]owned{} // by the number of the destination
	r, err := prove.CompareAt(ctx, d.node, a, b, at, func(i int, of []prove.Difference) {
		flows := d.flows(of)
		mu.Lock()
		defer mu.Unlock()
		parts[i] = flows
	})
	if err != nil {
		return nil, nil, err
	}
	return r, d.services(func(yield func([]owned) bool) {
		for _, i := range slices.Sorted(maps.Keys(parts)) {
			if !yield(parts[i]) {
				return
			}
			delete(parts, i)
		}
	}), nil
}

// orEmpty replaces a nil Program by an empty one.
func orEmpty(p, other *ir.Program) *ir.Program {
	if p != nil {
		return p
	}
	return &ir.Program{Family: other.Family, Node: ir.Node{Name: other.Node.Name, Mode: other.Node.Mode}}
}

// NodeOf returns a node with the addresses of both sides.
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

// describer describes the differences of one family.
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
		s.services[p.Services[i].Name] = &p.Services[i]
	}
	for _, f := range p.Frontends() {
		s.at[f.Match] = f
		s.owner[f.Match.Addr] = cmp.Or(s.owner[f.Match.Addr], f)
	}
	return s
}

func newDescriber(where Network, node prove.Node, a, b *ir.Program) *describer {
	return &describer{network: newNetwork(where, node, a, b), node: node, design: prove.NewDesign(prove.MeantBy(a), prove.MeantBy(b)), sides: [2]*side{newSide(a), newSide(b)}, byName: map[ir.Name]*Service{}}
}

// Describe describes differences that prove found between two sides. The sides
// implement the two Programs, for example as rules. It adds changes that affect
// no packet.
func Describe(where Network, node prove.Node, a, b *ir.Program, differences []prove.Difference) []Service {
	d := newDescriber(where, node, a, b)
	return d.services(slices.Values([][]owned{d.flows(differences)}))
}

// owned is a flow of a Service.
type owned struct {
	name ir.Name
	Flow
}

// flows describes sorted differences. It is safe for concurrent use.
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

// services groups flows by Service, sorted by name.
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
	ir.Parallel(len(out), func(i int) { out[i].Flows = d.joinDestinations(out[i].Flows) })
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

// frontend returns the frontend that matches the packets of a class, or nil.
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

// to returns the destination of a class, and its Service.
func (d *describer) to(c *prove.Class) (Destination, ir.Name) {
	for _, s := range [...]*side{d.sides[1], d.sides[0]} {
		if f := s.frontend(c); f != nil {
			to := Destination{Kind: f.Kind.String(), Match: f.Match, Hijacked: hijacked(d.sides[0].frontend(c), f)}
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
			to.Hijacked = hijacked(d.sides[0].owner[c.Packet.Dst], f)
			return to, f.Port.Service
		}
	}
	return to, ir.Name{}
}

// hijacked reports whether a frontend is an external IP that its Service did not
// have before. was is the frontend before; it may be nil.
func hijacked(was, is *ir.Frontend) bool {
	return is.Kind == ir.ExternalIP && (was == nil || was.Port.Service != is.Port.Service)
}

// destination describes the differences of one port of one destination.
func (d *describer) destination(all []prove.Difference) (flows []owned) {
	type group struct {
		change  Change
		first   *prove.Difference
		classes []*prove.Class
	}
	var groups []*group
	at := map[string]*group{}
	var loose []int // indexes of classes whose client address is unknown
	join := func(key string, i int, c Change) {
		g := at[key]
		if g == nil {
			g = &group{change: c, first: &all[i]}
			at[key] = g
			groups = append(groups, g)
		}
		g.classes = append(g.classes, &all[i].Class)
	}
	was, is := d.sides[0].frontend(&all[0].Class), d.sides[1].frontend(&all[0].Class)
	targets := sync.OnceValue(func() func([]netip.AddrPort) []string {
		before, after, ports := d.endpoints(0, was), d.endpoints(1, is), d.sides[0].ports(was)
		renumbered := func(workloads []string, port uint16) bool { return d.renumbered(workloads, port, ports) }
		return func(added []netip.AddrPort) []string { return newTargets(before, after, ports, added, renumbered) }
	})
	changes := make([]Change, len(all))
	for i := range all {
		c, pkt, a, b := &changes[i], all[i].Packet, &all[i].A, &all[i].B
		*c = changeOf(pkt.Src, *a, *b)
		moved := a.Fate == sim.Accepted && b.Fate == sim.Accepted && len(c.Added)+len(c.Removed) > 0
		if moved && len(c.Added) > 0 {
			c.Targets = targets()(c.Added)
		}
		before, after := d.sides[0].claim(was, pkt, moved), d.sides[1].claim(is, pkt, moved)
		if before.owner != after.owner && after.admits && is != nil && len(is.Routes) == 0 {
			after.paused = d.paused(after.owner)
			c.Waits = "opens nothing yet, without an endpoint"
			if after.paused != "" {
				c.Waits = "opens as soon as " + after.paused + " has a pod"
			}
		}
		c.Effect = effectOf(c, a, b, before, after)
		if changes[i].unaddressed() {
			loose = append(loose, i)
			continue
		}
		join(changes[i].key(false), i, changes[i])
	}
	for _, i := range loose { // merge with neighbouring classes that are reported alike
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
			f.To[0].Open = f.To[0].Open || f.Change.Effect == Opens && f.From[i].Kind == Outside && d.open(is)
		}
		d.explain(&f)
		flows = append(flows, owned{name, f})
	}
	return flows
}

// isBackend reports whether all these clients are backends of the difference on
// some side.
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

// key is equal for flows that are reported together, regardless of their
// destinations.
func (f *Flow) key() string {
	k := []byte{byte(f.Family)}
	if len(f.To[0].Ports) > 0 {
		k = append(k, " of no frontend "...)
	}
	k = append(k, f.Change.key(false)...)
	for i := range f.From {
		c := &f.From[i]
		k = append(strconv.AppendBool(strconv.AppendBool(append(k, byte(c.Kind)), c.All), c.Itself), c.Interface...)
		for _, list := range [...][]netip.Prefix{c.Prefixes, c.But} {
			k = append(k, '|')
			for _, p := range list {
				k = append(p.AppendTo(k), ' ')
			}
		}
	}
	return string(k)
}

// joinDestinations merges flows that differ only in their destinations.
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

// joinTo adds a destination to a list. It merges destinations that differ only in
// addresses or ports.
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

// complete sets Every for a node port, and joins adjacent ports.
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
