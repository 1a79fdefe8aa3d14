package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// state is the kernel's state of one family: the sets with our names, the addresses of kube-ipvs0,
// and all virtual servers, whichever program created them.
type state struct {
	servers map[ir.Match]*server
	sets    map[rules.Set]*set  // existing sets
	bound   map[netip.Addr]bool // addresses of kube-ipvs0
	local   map[netip.Addr]bool // addresses of other devices
	device  bool                // kube-ipvs0 exists
	times   timeouts
}

// server is a virtual server. Key, Scheduler, Flags and Timeout are read from the kernel.
type server struct {
	rules.VirtualServer
	singleAddress bool // persistence uses single addresses
	dests         map[netip.AddrPort]dest
	conns         uint64 // connections since it was added
}

// dest is a real server in the kernel. With weight 0 it drains: it receives no new connections.
type dest struct {
	weight   uint32
	conns    uint32 // active and inactive
	standard bool   // masquerading and without thresholds, like ours
}

// set is an ipset.
type set struct {
	max      int                                 // capacity in elements; 0 for no limit
	elements map[rules.ElementKey]*rules.Element // nil if read from the kernel, which does not store the Service
}

// has reports whether the set exists and contains an element.
func (s *set) has(k rules.ElementKey) bool {
	if s == nil {
		return false
	}
	_, ok := s.elements[k]
	return ok
}

// timeouts are those of the kernel's connection table; 0 keeps the kernel's value.
type timeouts struct{ tcp, tcpFin, udp time.Duration }

// overriddenBy returns t with the nonzero values of o.
func (t timeouts) overriddenBy(o timeouts) timeouts {
	for _, pair := range [...]struct{ have, want *time.Duration }{{&t.tcp, &o.tcp}, {&t.tcpFin, &o.tcpFin}, {&t.udp, &o.udp}} {
		if *pair.want != 0 {
			*pair.have = *pair.want
		}
	}
	return t
}

func (t timeouts) String() string {
	return "tcp " + t.tcp.String() + ", tcpfin " + t.tcpFin.String() + ", udp " + t.udp.String()
}

// wantedTimeouts returns the timeouts of a node, in whole seconds as in the kernel.
func wantedTimeouts(n *ir.Node) timeouts {
	if n.IPVS == nil {
		return timeouts{}
	}
	whole := func(d time.Duration) time.Duration { return d.Truncate(time.Second) }
	return timeouts{whole(n.IPVS.TCPTimeout), whole(n.IPVS.TCPFinTimeout), whole(n.IPVS.UDPTimeout)}
}

func newState() *state {
	return &state{servers: map[ir.Match]*server{}, sets: map[rules.Set]*set{}, bound: map[netip.Addr]bool{}, local: map[netip.Addr]bool{}}
}

// addressSets identify virtual servers by address and port. Node ports of TCP and UDP are
// identified by their port alone; see nodePort.
var addressSets = [...]rules.Set{rules.ClusterIP, rules.ExternalIP, rules.ExternalIPLocal, rules.LoadBalancer, rules.NodePortSCTP}

// owned reports whether a virtual server is proxyc's or kube-proxy's: a set contains it, or its
// address is bound to kube-ipvs0. Sets are filled before virtual servers are added, and emptied
// after they are removed, so this also holds after a process was killed. Other programs, such as
// keepalived, also have virtual servers on the node's addresses.
func (s *state) owned(key ir.Match) bool {
	return s.bound[key.Addr] || s.inAddressSet(key) || s.nodePort(key)
}

func (s *state) inAddressSet(key ir.Match) bool {
	return slices.ContainsFunc(addressSets[:], func(name rules.Set) bool {
		return s.sets[name].has(rules.ElementKey{Set: name, Addr: key.Addr, Protocol: key.Protocol, Number: key.Port})
	})
}

// nodePort reports whether a set contains a virtual server as a node port.
func (s *state) nodePort(key ir.Match) bool {
	name := rules.NodePortTCP
	switch key.Protocol {
	case ir.UDP:
		name = rules.NodePortUDP
	case ir.SCTP:
		return false // contained in addressSets
	}
	return s.local[key.Addr] && s.sets[name].has(rules.ElementKey{Set: name, Number: key.Port})
}

// frontend returns the frontend that a virtual server implements.
func (s *state) frontend(key ir.Match) ir.Match {
	if m := s.servers[key].Match; m != (ir.Match{}) { // known if it was not read from a kernel
		return m
	}
	if !s.bound[key.Addr] && !s.inAddressSet(key) && s.nodePort(key) {
		key.Addr = netip.Addr{}
	}
	return key
}

// ruleset returns the state as a Ruleset without rules. It omits real servers of weight 0, which
// receive no new connections.
func (s *state) ruleset(f ir.Family) *rules.Ruleset {
	r := &rules.Ruleset{Family: f, Bound: s.bound, Unclear: map[ir.Match]string{}}
	for key, have := range s.servers {
		v := have.VirtualServer
		const followed = rules.Persistent | rules.Fallback | rules.SourceHash
		switch {
		case v.Flags&rules.Persistent != 0 && !have.singleAddress:
			r.Unclear[key] = "clients keep their backend by network"
		case v.Flags&^followed != 0:
			r.Unclear[key] = "has other flags: " + describe(&v)
		}
		for to, d := range have.dests {
			switch {
			case d.weight == 0:
				continue
			case !d.standard:
				r.Unclear[key] = "real server " + to.String() + " is not masqueraded, or limits its connections"
			case d.weight > 1:
				r.Unclear[key] = "real server " + to.String() + " has a weight other than 1"
			}
			v.RealServers = append(v.RealServers, rules.RealServer{AddrPort: to, Weight: d.weight})
		}
		slices.SortFunc(v.RealServers, func(a, b rules.RealServer) int { return a.AddrPort.Compare(b.AddrPort) })
		r.VirtualServers = append(r.VirtualServers, v)
	}
	for _, of := range s.sets {
		for key := range of.elements {
			r.Elements = append(r.Elements, rules.Element{ElementKey: key})
		}
	}
	slices.SortFunc(r.VirtualServers, func(a, b rules.VirtualServer) int { return a.Key.Compare(b.Key) })
	slices.SortFunc(r.Elements, func(a, b rules.Element) int { return a.Compare(b.ElementKey) })
	return r
}

// operation is the type of a request.
type operation uint8

const (
	makeDevice operation = iota
	setTimeouts
	makeSet
	growSet // replace a set by a larger one with the same elements
	addElement
	addServer
	setServer
	addDest
	setDest
	addAddress
	removeAddress
	removeDest
	removeServer
	removeElement
)

// request is one operation, which the kernel executes or rejects.
type request struct {
	op      operation
	family  ir.Family
	set     rules.Set // for makeSet and growSet, with capacity max
	max     int
	element *rules.Element       // for addElement, removeElement and addresses
	server  *rules.VirtualServer // for servers and dests
	dest    *rules.RealServer
	have    string   // previous value of a change
	times   timeouts // for setTimeouts
}

// object returns the name of the object in messages.
func (r *request) object() string {
	switch r.op {
	case makeDevice:
		return "device " + ir.IPVSDevice
	case setTimeouts:
		return "ipvs timeouts"
	case makeSet, growSet:
		return "ipset " + r.set.Name(r.family)
	case addElement, removeElement:
		return "ipset " + r.element.Set.Name(r.family) + " " + r.element.String()
	case addAddress, removeAddress:
		return ir.IPVSDevice + " " + r.element.Addr.String()
	case addServer, setServer, removeServer:
		return "ipvs " + r.server.Key.String()
	}
	return "ipvs " + r.server.Key.String() + " -> " + r.dest.AddrPort.String()
}

// service returns the Service of the object; zero if there are none or several.
func (r *request) service() ir.Name {
	switch {
	case r.server != nil:
		return r.server.Port.Service
	case r.element != nil:
		return r.element.Port.Service
	}
	return ir.Name{}
}

func (r *request) origin() ir.Origin {
	switch {
	case r.dest != nil:
		return r.dest.Origin
	case r.server != nil:
		return r.server.Origin
	case r.element != nil:
		return r.element.Origin
	case r.op == setTimeouts:
		return ir.Origin{Object: "config", Field: "ipvs"}
	}
	return ir.Origin{Object: "default", Reason: "every node in ipvs mode has it"}
}

// describe returns the options of a virtual server in ipvsadm syntax.
func describe(v *rules.VirtualServer) string {
	text := "-s " + v.Scheduler
	if v.Flags&rules.Persistent != 0 {
		text += " -p " + v.Timeout.String()
	}
	if rest := v.Flags &^ rules.Persistent; rest != 0 {
		text += fmt.Sprintf(" flags 0x%02x", uint32(rest))
	}
	return text
}
