package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Ruleset is all that a node needs for one IP family.
type Ruleset struct {
	Family         ir.Family
	VirtualServers []VirtualServer // by Key
	Elements       []Element       // of all sets: by Set, then Compare; no two alike
	Rules          *iptables.Ruleset
	// ExcludeCIDRs hold virtual servers of others, which stay (ipvs.excludeCIDRs, IPV-7).
	ExcludeCIDRs []netip.Prefix
	// Bound are the addresses of kube-ipvs0, where a kernel was asked; nil: those of set IPVSIPs.
	Bound map[netip.Addr]bool
	// Unclear is, by virtual server, what a kernel does there and an Evaluator does not follow.
	Unclear map[ir.Match]string
}

// Fragment is what one Service adds to a Ruleset.
type Fragment struct {
	VirtualServers []VirtualServer
	Elements       []Element
	OutFilter      []iptables.Rule // rules of KUBE-IPVS-OUT-FILTER
}

// Flags are the kernel's flags of a virtual server (IP_VS_SVC_F_*).
type Flags uint32

const (
	Persistent Flags = 0x01 // clients stick to a real server
	Fallback         = Flags(ir.SchedulerFallback)
	SourceHash       = Flags(ir.SchedulerPort)
)

// VirtualServer is one address and port that the kernel balances.
type VirtualServer struct {
	Key       ir.Match // Addr is always valid
	Kind      ir.Kind
	Scheduler string
	Flags     Flags
	Timeout   time.Duration // with Persistent: how long a client sticks, whole seconds
	// RealServers take the connections; without any the kernel refuses them (IPV-5).
	RealServers []RealServer
	Port        ir.ServicePort
	Match       ir.Match // of the frontend; without an address for a node port
	Origin      ir.Origin
}

// RealServer is a backend, reached by address translation (masquerading).
type RealServer struct {
	AddrPort netip.AddrPort
	Weight   uint32
	Origin   ir.Origin
}

// Element is one element of a set. Which fields of the key count depends on Set.Type.
type Element struct {
	ElementKey
	Port   ir.ServicePort
	Match  ir.Match // of the frontend it serves; zero for health checks
	Origin ir.Origin
}

// ElementKey is what the kernel sees of an Element.
type ElementKey struct {
	Set      Set
	Addr     netip.Addr
	Protocol ir.Protocol
	Number   uint16       // the port
	Source   netip.Prefix // the second address or the network
}

// Compare orders elements of the same set next to each other.
func (k ElementKey) Compare(o ElementKey) int {
	return cmp.Or(
		cmp.Compare(k.Set, o.Set),
		k.Addr.Compare(o.Addr),
		cmp.Compare(k.Number, o.Number),
		cmp.Compare(k.Protocol, o.Protocol),
		k.Source.Addr().Compare(o.Source.Addr()),
		cmp.Compare(k.Source.Bits(), o.Source.Bits()),
	)
}

// Addresses returns those of kube-ipvs0, sorted.
func (r *Ruleset) Addresses() []Element { return r.elements(IPVSIPs) }

// elements returns the elements of one set.
func (r *Ruleset) elements(s Set) []Element {
	at := func(s Set) int {
		i, _ := slices.BinarySearchFunc(r.Elements, s, func(e Element, s Set) int {
			return cmp.Or(cmp.Compare(e.Set, s), 1) // before the first of s
		})
		return i
	}
	return r.Elements[at(s):at(s+1)]
}

// Carries reports whether kube-ipvs0 has an address, which is one of a Service.
func (r *Ruleset) Carries(a netip.Addr) bool {
	if r.Bound != nil {
		return r.Bound[a]
	}
	return r.Has(ElementKey{Set: IPVSIPs, Addr: a})
}

// Has reports whether a set has an element.
func (r *Ruleset) Has(key ElementKey) bool {
	_, ok := slices.BinarySearchFunc(r.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	return ok
}

// Server returns the virtual server of an address and port, nil if there is none.
func (r *Ruleset) Server(key ir.Match) *VirtualServer {
	i, ok := slices.BinarySearchFunc(r.VirtualServers, key, func(v VirtualServer, key ir.Match) int {
		return v.Key.Compare(key)
	})
	if !ok {
		return nil
	}
	return &r.VirtualServers[i]
}

// canon sorts what the fragments brought and drops what several of them did:
// a backend may serve several Services, and an address several of their ports.
func (r *Ruleset) canon() {
	slices.SortStableFunc(r.Elements, func(a, b Element) int { return a.Compare(b.ElementKey) })
	r.Elements = slices.CompactFunc(r.Elements, func(a, b Element) bool { return a.ElementKey == b.ElementKey })
	// A node port yields to a frontend that names the same address (PKT-18): Kind NodePort sorts last.
	slices.SortStableFunc(r.VirtualServers, func(a, b VirtualServer) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind))
	})
	r.VirtualServers = slices.CompactFunc(r.VirtualServers, func(a, b VirtualServer) bool { return a.Key == b.Key })
}
