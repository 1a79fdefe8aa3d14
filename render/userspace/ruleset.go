package userspace

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Ruleset is all that a node needs for one IP family.
type Ruleset struct {
	Family    ir.Family
	Rules     *iptables.Ruleset
	Listeners []Listener // by Port
	// Unserved are the service ports for which the range had no proxy port left.
	Unserved []ir.ServicePort
	// DialTimeouts are the patience of the first, second, … attempt to reach
	// a backend of a TCP connection; after the last the client is hung up on (USR-5).
	DialTimeouts []time.Duration
	// UDPIdle is how long a silent UDP client keeps its socket to a backend (USR-6).
	UDPIdle time.Duration
}

// Listener is a port on which the proxy process takes the connections of one
// service port, and where it leads them.
type Listener struct {
	Port     ir.ServicePort
	Listen   netip.AddrPort
	Backends []netip.AddrPort // in turn, from the first after every change; none: connections are closed
	Affinity time.Duration    // how long a client keeps its backend, from its last connection; 0: no affinity
	// Frontend is the one that a listener serves at its own address and port, as
	// Portals has them; nil: all of the service port are led here.
	Frontend *ir.Frontend
	// Hold are sockets that are bound and never served, so that nobody else
	// on the node takes the number of a node port or an external IP's port (USR-3).
	Hold    []netip.AddrPort
	Origin  ir.Origin   // of the pool, or of the Service where nothing is ready
	origins []ir.Origin // of Backends
}

// Object is how messages name a listener: "listener 10.96.0.10:80/tcp".
func (l *Listener) Object() string {
	return "listener " + l.Listen.String() + "/" + l.Port.Protocol.String()
}

// Ports are the proxy ports of service ports.
type Ports map[ir.ServicePort]uint16

// Fragment is what one Service adds to a Ruleset.
type Fragment struct {
	Listeners []Listener
	// Rules of the chains that the fields name, in their order.
	PortalsContainer, PortalsHost, NodePortContainer, NodePortHost, NodePortNonLocal []iptables.Rule
}

// Append adds what another Service adds.
func (x *Fragment) Append(o Fragment) {
	x.Listeners = append(x.Listeners, o.Listeners...)
	x.PortalsContainer = append(x.PortalsContainer, o.PortalsContainer...)
	x.PortalsHost = append(x.PortalsHost, o.PortalsHost...)
	x.NodePortContainer = append(x.NodePortContainer, o.NodePortContainer...)
	x.NodePortHost = append(x.NodePortHost, o.NodePortHost...)
	x.NodePortNonLocal = append(x.NodePortNonLocal, o.NodePortNonLocal...)
}

// SameRules reports whether two Fragments have equal rules; their listeners do
// not count.
func (x *Fragment) SameRules(o *Fragment) bool {
	same := func(a, b []iptables.Rule) bool {
		return slices.EqualFunc(a, b, func(a, b iptables.Rule) bool { return a.Equal(&b) })
	}
	return same(x.PortalsContainer, o.PortalsContainer) && same(x.PortalsHost, o.PortalsHost) &&
		same(x.NodePortContainer, o.NodePortContainer) && same(x.NodePortHost, o.NodePortHost) && same(x.NodePortNonLocal, o.NodePortNonLocal)
}

// PortsOf returns the proxy ports to which rules lead, as they were read from a
// kernel.
func PortsOf(r *iptables.Ruleset) Ports {
	ports := Ports{}
	for _, c := range r.Nat.Chains {
		if c.Name != iptables.ChainPortalsContainer && c.Name != iptables.ChainNodePortContainer {
			continue
		}
		for i := range c.Rules {
			rule := &c.Rules[i]
			service := rule.Service()
			if rule.To.Port() == 0 || service == (ir.Name{}) {
				continue
			}
			_, port, _ := strings.Cut(rule.Comment, ":")
			ports[ir.ServicePort{Service: service, Port: port, Protocol: rule.Protocol}] = rule.To.Port()
		}
	}
	return ports
}

// Chains returns what a Ruleset has of this mode alone.
func Chains(r *iptables.Ruleset) *iptables.Ruleset {
	ours := func(chain string) bool {
		switch chain {
		case iptables.ChainPortalsContainer, iptables.ChainPortalsHost, iptables.ChainNodePortContainer, iptables.ChainNodePortHost, iptables.ChainNodePortNonLocal:
			return true
		}
		return false
	}
	only := func(t iptables.Table) iptables.Table {
		t.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c iptables.Chain) bool { return !ours(c.Name) })
		t.Jumps = slices.DeleteFunc(slices.Clone(t.Jumps), func(j iptables.BuiltInJump) bool { return !ours(j.Rule.Chain) })
		return t
	}
	return &iptables.Ruleset{Family: r.Family, Filter: only(r.Filter), Nat: only(r.Nat)}
}
