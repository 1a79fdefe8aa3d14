package userspace

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Ruleset is the complete state of a node for one IP family.
type Ruleset struct {
	Family    ir.Family
	Rules     *iptables.Ruleset
	Listeners []Listener // by Port
	// Unserved are the service ports without a free proxy port in the range.
	Unserved []ir.ServicePort
	// DialTimeouts are the timeouts of the first, second, … attempt to connect to
	// a backend over TCP. After the last one, the client's connection is closed
	// (USR-5).
	DialTimeouts []time.Duration
	// UDPIdle is the idle timeout of a UDP client's socket to a backend (USR-6).
	UDPIdle time.Duration
}

// Listener is a port on which the proxy process accepts the connections of one
// service port, with its backends.
type Listener struct {
	Port     ir.ServicePort
	Listen   netip.AddrPort
	Backends []netip.AddrPort // in turn, from the first after every change; if empty, connections are closed
	Affinity time.Duration    // since the client's last connection; 0 for none
	// Frontend is the frontend of a listener at its address and port, as returned
	// by Portals; nil if the listener serves all frontends of the service port.
	Frontend *ir.Frontend
	// Reserved are sockets that are bound and never served. They prevent other
	// programs on the node from using a node port or an external IP's port
	// (USR-3).
	Reserved []netip.AddrPort
	Origin   ir.Origin   // of the pool, or of the Service if no endpoint is ready
	origins  []ir.Origin // of Backends
}

// Object returns the name of a listener in messages: "listener
// 10.96.0.10:80/tcp".
func (l *Listener) Object() string {
	return "listener " + l.Listen.String() + "/" + l.Port.Protocol.String()
}

// Ports are the proxy ports of service ports.
type Ports map[ir.ServicePort]uint16

// Fragment is the part of a Ruleset that one Service adds.
type Fragment struct {
	Listeners []Listener
	// Ordered rules of the chains that the fields name.
	PortalsContainer, PortalsHost, NodePortContainer, NodePortHost, NodePortNonLocal []iptables.Rule
}

// Append appends another Fragment.
func (x *Fragment) Append(o Fragment) {
	x.Listeners = append(x.Listeners, o.Listeners...)
	x.PortalsContainer = append(x.PortalsContainer, o.PortalsContainer...)
	x.PortalsHost = append(x.PortalsHost, o.PortalsHost...)
	x.NodePortContainer = append(x.NodePortContainer, o.NodePortContainer...)
	x.NodePortHost = append(x.NodePortHost, o.NodePortHost...)
	x.NodePortNonLocal = append(x.NodePortNonLocal, o.NodePortNonLocal...)
}

// SameRules reports whether two Fragments have equal rules. It ignores their
// listeners.
func (x *Fragment) SameRules(o *Fragment) bool {
	same := func(a, b []iptables.Rule) bool {
		return slices.EqualFunc(a, b, func(a, b iptables.Rule) bool { return a.Equal(&b) })
	}
	return same(x.PortalsContainer, o.PortalsContainer) && same(x.PortalsHost, o.PortalsHost) &&
		same(x.NodePortContainer, o.NodePortContainer) && same(x.NodePortHost, o.NodePortHost) && same(x.NodePortNonLocal, o.NodePortNonLocal)
}

// PortsOf returns the proxy ports in rules that were parsed from a kernel.
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

// Chains returns the chains of a Ruleset that only this mode uses.
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
