package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// state is what the kernel has of one family: the sets that bear our names, the
// addresses of kube-ipvs0, and all virtual servers, whoever made them.
type state struct {
	servers map[ir.Match]*server
	sets    map[rules.Set]*set  // those that there are
	bound   map[netip.Addr]bool // addresses of kube-ipvs0
	local   map[netip.Addr]bool // those of other devices
	device  bool                // there is kube-ipvs0
	times   timeouts
}

// server is a virtual server. The kernel has its Key, Scheduler, Flags and Timeout.
type server struct {
	rules.VirtualServer
	whole bool // persistence goes by whole addresses
	dests map[netip.AddrPort]dest
}

// dest is a real server of the kernel. With weight 0 it drains: it gets no new
// connections.
type dest struct {
	weight uint32
	conns  uint32 // active and inactive ones
	plain  bool   // masqueraded, without thresholds: as ours are
}

// set is an ipset.
type set struct {
	max      int                                 // how many elements it takes; 0: any number
	elements map[rules.ElementKey]*rules.Element // nil: the kernel has it, and not whom it serves
}

// has reports whether there is a set, with the element.
func (s *set) has(k rules.ElementKey) bool {
	if s == nil {
		return false
	}
	_, ok := s.elements[k]
	return ok
}

// timeouts are those of the kernel's table of connections; 0 leaves one as it is.
type timeouts struct{ tcp, tcpFin, udp time.Duration }

// over returns t with what o sets.
func (t timeouts) over(o timeouts) timeouts {
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

// wantedTimeouts are those of a node, in whole seconds, as the kernel has them.
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

// addressSets name virtual servers by address and port; nodePortSets (of all
// policies) by port alone, but for SCTP.
var addressSets = [...]rules.Set{rules.ClusterIP, rules.ExternalIP, rules.ExternalIPLocal, rules.LoadBalancer, rules.NodePortSCTP}

// owned reports whether a virtual server is proxyc's or kube-proxy's: sets name
// it, or its address is bound to kube-ipvs0. Sets are filled before virtual
// servers come and emptied after they go, so that this holds also where a
// process was killed between. Others, such as keepalived, have virtual servers
// at addresses of the node, too.
func (s *state) owned(key ir.Match) bool {
	return s.bound[key.Addr] || s.named(key) || s.nodePort(key)
}

func (s *state) named(key ir.Match) bool {
	for _, name := range addressSets {
		if s.sets[name].has(rules.ElementKey{Set: name, Addr: key.Addr, Protocol: key.Protocol, Number: key.Port}) {
			return true
		}
	}
	return false
}

// nodePort reports whether sets name a virtual server as that of a node port.
func (s *state) nodePort(key ir.Match) bool {
	name := rules.NodePortTCP
	switch key.Protocol {
	case ir.UDP:
		name = rules.NodePortUDP
	case ir.SCTP:
		return false // in addressSets
	}
	return s.local[key.Addr] && s.sets[name].has(rules.ElementKey{Set: name, Number: key.Port})
}

// frontend is what a virtual server was for.
func (s *state) frontend(key ir.Match) ir.Match {
	if m := s.servers[key].Match; m != (ir.Match{}) { // it was read from no kernel
		return m
	}
	if !s.bound[key.Addr] && !s.named(key) && s.nodePort(key) {
		key.Addr = netip.Addr{}
	}
	return key
}

// ruleset is the state as a Ruleset, without rules. A real server of weight 0 gets no new
// connections, and is left out.
func (s *state) ruleset(f ir.Family) *rules.Ruleset {
	r := &rules.Ruleset{Family: f, Bound: s.bound, Unclear: map[ir.Match]string{}}
	for key, have := range s.servers {
		v := have.VirtualServer
		const followed = rules.Persistent | rules.Fallback | rules.SourceHash
		switch {
		case v.Flags&rules.Persistent != 0 && !have.whole:
			r.Unclear[key] = "clients stick by networks"
		case v.Flags&^followed != 0:
			r.Unclear[key] = "has flags besides, in " + describe(&v)
		}
		for to, d := range have.dests {
			switch {
			case d.weight == 0:
				continue
			case !d.plain:
				r.Unclear[key] = "real server " + to.String() + " is not masqueraded, or takes a limited number of connections"
			case d.weight > 1:
				r.Unclear[key] = "real server " + to.String() + " has another weight than 1"
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

// operation is what a request does.
type operation uint8

const (
	makeDevice operation = iota
	setTimeouts
	makeSet
	growSet // another one takes its place, with the same elements and room for more
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

// request is one thing to do. The kernel does it or refuses it.
type request struct {
	op      operation
	family  ir.Family
	set     rules.Set // of makeSet and growSet, which give it room for max elements
	max     int
	element *rules.Element       // of addElement to removeElement, and addresses
	server  *rules.VirtualServer // of servers and dests
	dest    *rules.RealServer
	have    string   // what an object has that changes
	times   timeouts // of setTimeouts
}

// object is how messages name what a request is about.
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

// service is whom the object serves; zero where that is not one Service alone.
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

// describe is what a virtual server does, in the words of ipvsadm.
func describe(v *rules.VirtualServer) string {
	var b strings.Builder
	b.WriteString("-s " + v.Scheduler)
	if v.Flags&rules.Persistent != 0 {
		b.WriteString(" -p " + v.Timeout.String())
	}
	if rest := v.Flags &^ rules.Persistent; rest != 0 {
		b.WriteString(" flags 0x")
		const digits = "0123456789abcdef"
		b.WriteByte(digits[rest>>4&15])
		b.WriteByte(digits[rest&15])
	}
	return b.String()
}
