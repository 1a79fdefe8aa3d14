package prove

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// ports are the classes of destination ports of one address. A class is a range
// between two compared ports, divided by the kinds. It is represented by its
// first port.
type ports struct {
	kinds  *kinds
	firsts []uint16 // of the ranges; sorted after next
	known  map[uint16]bool
	lists  map[*uint16]bool      // lists that were applied
	sets   map[*sim.PortSet]bool // sets that were applied
	due    []uint16              // ports to evaluate, from index at
	at     int
	asked  map[uint16]bool
	whole  bool // all known classes are evaluated or due
}

// kinds are ports grouped by the sets that contain them. They are shared, because
// most destinations use the same sets.
type kinds struct {
	all   [][]sim.Ports // each sorted; together all ports
	finer map[*sim.PortSet]*kinds
}

// with returns the kinds divided by one more set.
func (k *kinds) with(set *sim.PortSet) *kinds {
	if known := k.finer[set]; known != nil {
		return known
	}
	next := &kinds{}
	for _, kind := range k.all {
		in, out := split(kind, set.Ports())
		for _, part := range [...][]sim.Ports{in, out} {
			if len(part) > 0 {
				next.all = append(next.all, part)
			}
		}
	}
	ir.SetIn(&k.finer, set, next)
	return next
}

// split divides ports into those among others and the rest.
func split(ports, others []sim.Ports) (in, out []sim.Ports) {
	for _, p := range ports {
		for len(others) > 0 && others[0].Last < p.First {
			others = others[1:]
		}
		rest, left := others, true
		for left && len(rest) > 0 && rest[0].First <= p.Last {
			o := rest[0]
			if p.First < o.First {
				out = append(out, sim.Ports{First: p.First, Last: o.First - 1})
			}
			in = append(in, sim.Ports{First: max(p.First, o.First), Last: min(p.Last, o.Last)})
			left = o.Last < p.Last
			p.First = o.Last + 1 // unused if nothing is left
			rest = rest[1:]
		}
		if left {
			out = append(out, p)
		}
	}
	return in, out
}

func newPorts(k *kinds) *ports {
	return &ports{kinds: k, firsts: []uint16{1}, due: []uint16{1}, known: map[uint16]bool{1: true},
		lists: map[*uint16]bool{}, sets: map[*sim.PortSet]bool{}, asked: map[uint16]bool{}}
}

// next returns the port of a class that was not evaluated, or 0.
func (p *ports) next() uint16 {
	for {
		for p.at < len(p.due) {
			port := p.due[p.at]
			p.at++
			if !p.asked[port] {
				p.asked[port] = true
				return port
			}
		}
		if p.whole {
			return 0
		}
		p.whole = true
		p.due, p.at = p.due[:0], 0
		slices.Sort(p.firsts)
		for i, first := range p.firsts {
			for _, kind := range p.kinds.all {
				if part := within(kind, sim.Ports{First: first, Last: p.last(i)}); len(part) > 0 {
					p.due = append(p.due, max(first, part[0].First))
				}
			}
		}
	}
}

// last returns the end of the i-th range.
func (p *ports) last(i int) uint16 {
	if i+1 < len(p.firsts) {
		return p.firsts[i+1] - 1
	}
	return 65535
}

// within returns the port ranges of a kind that overlap a range.
func within(kind []sim.Ports, of sim.Ports) []sim.Ports {
	from, _ := slices.BinarySearchFunc(kind, of.First, func(k sim.Ports, port uint16) int { return int(k.Last) - int(port) })
	to, found := slices.BinarySearchFunc(kind, of.Last, func(k sim.Ports, port uint16) int { return int(k.First) - int(port) })
	if found {
		to++
	}
	return kind[from:max(from, to)]
}

func (p *ports) begin(first uint32) {
	if n := uint16(first); first > 0 && first <= 65535 && !p.known[n] {
		p.known[n] = true
		p.firsts = append(p.firsts, n)
		p.due = append(p.due, n)
		p.whole = false
	}
}

func (p *ports) cut(r sim.Ports) {
	p.begin(uint32(r.First))
	p.begin(uint32(r.Last) + 1)
}

func (p *ports) cutAll(list []uint16) {
	if p.lists[&list[0]] {
		return
	}
	p.lists[&list[0]] = true
	for _, n := range list {
		p.cut(sim.Ports{First: n, Last: n})
	}
}

// split divides all ranges by a set.
func (p *ports) split(set *sim.PortSet) {
	if p.sets[set] {
		return
	}
	p.sets[set] = true
	p.kinds = p.kinds.with(set)
	p.whole = false
}

// cutAt divides all ranges at the constants that an evaluation recorded.
func (p *ports) cutAt(cuts *sim.Cuts) {
	for _, list := range cuts.Ports {
		p.cutAll(list)
	}
	for _, r := range cuts.Ranges {
		p.cut(r)
	}
	for _, set := range cuts.PortSets {
		p.split(set)
	}
}

// complete sets the ports of a class. All classes must be known.
func (p *ports) complete(c *Class) {
	i, found := slices.BinarySearch(p.firsts, c.Packet.Port)
	if !found {
		i--
	}
	c.within = sim.Ports{First: p.firsts[i], Last: p.last(i)}
	for _, kind := range p.kinds.all {
		if c.kind = within(kind, sim.Ports{First: c.Packet.Port, Last: c.Packet.Port}); len(c.kind) > 0 {
			c.kind = within(kind, c.within)
			return
		}
	}
}

// Ports returns the destination ports of the class, sorted.
func (c *Class) Ports() []sim.Ports {
	all := slices.Clone(c.kind)
	if n := len(all); n > 0 {
		all[0].First = max(all[0].First, c.within.First)
		all[n-1].Last = min(all[n-1].Last, c.within.Last)
	}
	return all
}
