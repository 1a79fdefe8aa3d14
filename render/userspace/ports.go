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

// AssignPorts assigns every service port of a Program a proxy port of its own
// out of portRange. Its name decides which, so that Services may come and go
// and the others keep theirs; where two names meet, the later in order takes
// the next free number. Node ports of the Program are not used. What finds
// none is in unserved.
func AssignPorts(p *ir.Program) (ports Ports, unserved []ir.ServicePort) {
	first, last := uint16(FirstEphemeral), uint16(LastEphemeral)
	if u := p.Node.Userspace; u != nil && u.PortMax != 0 {
		first, last = u.PortMin, u.PortMax
	}
	free := newPortRange(first, last)
	var names []ir.ServicePort
	for i := range p.Services {
		for _, f := range p.Services[i].Frontends {
			names = append(names, f.Port)
			if f.Match.NodeAddrs() {
				free.take(f.Match.Port)
			}
		}
	}
	slices.SortFunc(names, ir.ServicePort.Compare)
	ports = make(Ports, len(names))
	for _, name := range slices.Compact(names) {
		n, ok := free.from(hash(name.String() + "/" + name.Protocol.String()))
		if !ok {
			unserved = append(unserved, name)
			continue
		}
		free.take(n)
		ports[name] = n
	}
	return ports, unserved
}

// portRange is a range of port numbers, some of which are taken. To find the
// next free one costs next to nothing however full it is: next leads from
// each number to where the search goes on, a free number to itself, and each
// search shortens the way for those after it (a disjoint-set forest).
type portRange struct {
	first uint16
	next  []uint32 // by offset from first; len(next) is the end of the range
}

func newPortRange(first, last uint16) *portRange {
	r := &portRange{first: max(first, 1)}
	if last >= r.first {
		r.next = make([]uint32, int(last-r.first)+2)
	}
	for i := range r.next {
		r.next[i] = uint32(i)
	}
	return r
}

// size is how many numbers there are, taken or not.
func (r *portRange) size() uint32 { return uint32(max(0, len(r.next)-1)) }

func (r *portRange) take(port uint16) {
	if i := uint32(port) - uint32(r.first); port >= r.first && i < r.size() && r.next[i] == i {
		r.next[i] = i + 1
	}
}

// from returns the first free number from the one that start stands for, round
// the range; false when all are taken.
func (r *portRange) from(start uint32) (uint16, bool) {
	if r.size() == 0 {
		return 0, false
	}
	i := r.find(start % r.size())
	if i == r.size() {
		i = r.find(0)
	}
	return r.first + uint16(i), i < r.size()
}

func (r *portRange) find(i uint32) uint32 {
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
