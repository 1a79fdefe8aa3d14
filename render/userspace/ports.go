package userspace

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// The range of assigned ports if the configuration lets the kernel choose. A
// program on another machine cannot ask the kernel, so it uses Linux' default
// range (net.ipv4.ip_local_port_range).
const (
	FirstEphemeral = 32768
	LastEphemeral  = 60999
)

// ProxyPorts returns the range of a node's proxy ports. others reports whether a
// proxy may use further ports if these are in use, because the configuration does
// not restrict them.
func ProxyPorts(n *ir.Node) (first, last uint16, others bool) {
	if u := n.Userspace; u != nil && u.PortMax != 0 {
		return u.PortMin, u.PortMax, false
	}
	return FirstEphemeral, LastEphemeral, true
}

// start returns the offset at which the search for a service port's proxy port
// starts.
func start(name ir.ServicePort) uint32 { return hash(name.String() + "/" + name.Protocol.String()) }

// AssignPorts assigns a proxy port of portRange to every service port of a
// Program. It keeps the ports in kept, which may be nil. Other ports depend on
// the name, so that they do not change when Services are added or removed. If two
// names have the same number, the later one gets the next free number. Node ports
// of the Program are excluded. unserved contains the service ports for which no
// port is free.
func AssignPorts(p *ir.Program, kept Ports) (ports Ports, unserved []ir.ServicePort) {
	first, last, others := ProxyPorts(&p.Node)
	free := NewPortRange(first, last)
	var names []ir.ServicePort
	for _, f := range p.Frontends() {
		names = append(names, f.Port)
		if f.Match.IsNodePort() {
			free.Take(f.Match.Port)
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

// PortRange is a range of port numbers, some of which are in use. Finding the
// next free number is fast even if the range is almost full: next is a
// disjoint-set forest. It links each number to the next candidate, a free number
// to itself, and each search shortens the paths.
type PortRange struct {
	first uint16
	next  []uint32 // by offset from first; len(next) is the end of the range
}

// NewPortRange returns the numbers from first to last without 0, all of them
// free.
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

// size returns the number of ports in the range, free or not.
func (r *PortRange) size() uint32 { return uint32(max(0, len(r.next)-1)) }

// Take marks a number as used, if it is in the range.
func (r *PortRange) Take(port uint16) {
	if i := uint32(port) - uint32(r.first); port >= r.first && i < r.size() && r.next[i] == i {
		r.next[i] = i + 1
	}
}

// Assign takes the first free number for a service port, starting at an offset
// derived from its name, and wraps around. ok is false if none is free.
func (r *PortRange) Assign(name ir.ServicePort) (port uint16, ok bool) {
	return r.takeFrom(start(name))
}

// Next takes the first free number from port on, and wraps around. ok is false if
// none is free.
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
