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

// AssignPorts gives every service port of a Program a proxy port of its own
// out of portRange. Its name decides which, so that Services may come and go
// and the others keep theirs; where two names meet, the later in order takes
// the next free number. Node ports of the Program are not used. What finds
// none is in unserved.
func AssignPorts(p *ir.Program) (ports Ports, unserved []ir.ServicePort) {
	first, last := uint16(FirstEphemeral), uint16(LastEphemeral)
	if u := p.Node.Userspace; u != nil && u.PortMax != 0 {
		first, last = u.PortMin, u.PortMax
	}
	taken := make(map[uint16]bool)
	var names []ir.ServicePort
	for i := range p.Services {
		for _, f := range p.Services[i].Frontends {
			names = append(names, f.Port)
			if f.Match.NodeAddrs() {
				taken[f.Match.Port] = true
			}
		}
	}
	slices.SortFunc(names, ir.ServicePort.Compare)
	ports = make(Ports, len(names))
	for _, name := range slices.Compact(names) {
		var n uint16
		ok := len(unserved) == 0 // a range that is full stays full
		if ok {
			n, ok = pick(name, max(first, 1), last, taken)
		}
		if !ok {
			unserved = append(unserved, name)
			continue
		}
		taken[n] = true
		ports[name] = n
	}
	return ports, unserved
}

// pick gives the first free number from the one that the name hashes to, round the range.
func pick(name ir.ServicePort, first, last uint16, taken map[uint16]bool) (uint16, bool) {
	if last < first {
		return 0, false
	}
	size := uint32(last-first) + 1
	start := hash(name.String()+"/"+name.Protocol.String()) % size
	for i := range size {
		if n := first + uint16((start+i)%size); !taken[n] {
			return n, true
		}
	}
	return 0, false
}

// hash is FNV-1a.
func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}
