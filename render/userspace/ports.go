package userspace

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Ports that are assigned where the configuration leaves the choice to the
// kernel: a program that runs elsewhere cannot ask it, and so takes the range
// from which Linux picks (net.ipv4.ip_local_port_range).
const (
	FirstEphemeral = 32768
	LastEphemeral  = 60999
)

// ProxyPorts returns the range of a node's proxy ports, and whether a proxy may
// have others where these are taken: the configuration leaves it the choice.
func ProxyPorts(n *ir.Node) (first, last uint16, others bool) {
	if u := n.Userspace; u != nil && u.PortMax != 0 {
		return u.PortMin, u.PortMax, false
	}
	return FirstEphemeral, LastEphemeral, true
}

// start stands for the number from which a service port looks for its proxy port.
func start(name ir.ServicePort) uint32 { return hash(name.String() + "/" + name.Protocol.String()) }

// AssignPorts assigns every service port of a Program a proxy port of its own
// out of portRange: the one that it has in kept, which may be nil, or else one
// by its name, so that Services may come and go and the others keep theirs;
// where two names meet, the later in order takes the next free number. Node
// ports of the Program are not used. What finds none is in unserved.
func AssignPorts(p *ir.Program, kept Ports) (ports Ports, unserved []ir.ServicePort) {
	first, last, others := ProxyPorts(&p.Node)
	free := NewPortRange(first, last)
	var names []ir.ServicePort
	for i := range p.Services {
		for _, f := range p.Services[i].Frontends {
			names = append(names, f.Port)
			if f.Match.IsNodePort() {
				free.Take(f.Match.Port)
			}
		}
	}
	slices.SortFunc(names, ir.ServicePort.Compare)
	names = slices.Compact(names)
	ports = make(Ports, len(names))
	used := map[uint16]bool{}
	for _, name := range names {
		if n := kept[name]; n != 0 && !used[n] && (others || first <= n && n <= last) {
			ports[name], used[n] = n, true
			free.Take(n)
		}
	}
	for _, name := range names {
		if ports[name] != 0 {
			continue
		}
		n, ok := free.Assign(name)
		if !ok {
			unserved = append(unserved, name)
			continue
		}
		ports[name] = n
	}
	return ports, unserved
}

// PortRange is a range of port numbers, some of which are taken. To find the
// next free one costs next to nothing however full it is: next leads from
// each number to where the search goes on, a free number to itself, and each
// search shortens the way for those after it (a disjoint-set forest).
type PortRange struct {
	first uint16
	next  []uint32 // by offset from first; len(next) is the end of the range
}

// NewPortRange returns the numbers from first to last, but for 0, none of them taken.
func NewPortRange(first, last uint16) *PortRange {
	r := &PortRange{first: max(first, 1)}
	if last >= r.first {
		r.next = make([]uint32, int(last-r.first)+2)
	}
	for i := range r.next {
		r.next[i] = uint32(i)
	}
	return r
}

// size is how many numbers there are, taken or not.
func (r *PortRange) size() uint32 { return uint32(max(0, len(r.next)-1)) }

// Take takes a number, if it is one of the range.
func (r *PortRange) Take(port uint16) {
	if i := uint32(port) - uint32(r.first); port >= r.first && i < r.size() && r.next[i] == i {
		r.next[i] = i + 1
	}
}

// Assign takes the first free number for a service port, from where its name says,
// round the range; ok is false when all are taken.
func (r *PortRange) Assign(name ir.ServicePort) (port uint16, ok bool) {
	return r.takeFrom(start(name))
}

// Next takes the first free number from port on, round the range; ok is false when
// all are taken.
func (r *PortRange) Next(port uint16) (next uint16, ok bool) {
	return r.takeFrom(uint32(port) - uint32(r.first))
}

func (r *PortRange) takeFrom(start uint32) (uint16, bool) {
	if r.size() == 0 {
		return 0, false
	}
	i := r.find(start % r.size())
	if i == r.size() {
		i = r.find(0)
	}
	if i == r.size() {
		return 0, false
	}
	r.next[i] = i + 1
	return r.first + uint16(i), true
}

func (r *PortRange) find(i uint32) uint32 {
	for r.next[i] != i {
		r.next[i] = r.next[r.next[i]]
		i = r.next[i]
	}
	return i
}

// hash is FNV-1a.
func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}
