package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

// Ruleset is the complete state of a node for one IP family.
type Ruleset struct {
	Family         ir.Family
	VirtualServers []VirtualServer // by Key
	Elements       []Element       // of all sets: by Set, then Compare; without duplicates
	Rules          *iptables.Ruleset
	// ExcludeCIDRs contain foreign virtual servers, which are kept
	// (ipvs.excludeCIDRs, IPV-7).
	ExcludeCIDRs []netip.Prefix
	// Bound are the addresses of kube-ipvs0 in a kernel; if nil, those of set
	// IPVSIPs.
	Bound map[netip.Addr]bool
	// Unclear describes, by virtual server, behaviour of a kernel that an
	// Evaluator does not support.
	Unclear map[ir.Match]string
}

// Fragment is the part of a Ruleset that one Service adds.
type Fragment struct {
	VirtualServers []VirtualServer
	Elements       []Element
	OutFilter      []iptables.Rule // rules of KUBE-IPVS-OUT-FILTER
}

// Flags are the kernel's flags of a virtual server (IP_VS_SVC_F_*).
type Flags uint32

const (
	Persistent Flags = 0x01 // session affinity
	Fallback         = Flags(ir.SchedulerFallback)
	SourceHash       = Flags(ir.SchedulerPort)
)

// VirtualServer is an address and port that the kernel balances.
type VirtualServer struct {
	Key       ir.Match // Addr is always valid
	Kind      ir.Kind
	Scheduler string
	Flags     Flags
	Timeout   time.Duration // of Persistent, in whole seconds
	// RealServers receive the connections; without any the kernel rejects them
	// (IPV-5).
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

// Element is an element of a set. Set.Type determines the used fields of the key.
type Element struct {
	ElementKey
	Port   ir.ServicePort
	Match  ir.Match // of the frontend; zero for health checks
	Origin ir.Origin
}

// ElementKey is the part of an Element that the kernel stores.
type ElementKey struct {
	Set      Set
	Addr     netip.Addr
	Protocol ir.Protocol
	Number   uint16       // port
	Source   netip.Prefix // the second address or the network
}

// Compare orders elements by set, then by their other fields.
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

// Addresses returns the sorted addresses of kube-ipvs0.
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

// Carries reports whether kube-ipvs0 has an address, which then belongs to a
// Service.
func (r *Ruleset) Carries(a netip.Addr) bool {
	if r.Bound != nil {
		return r.Bound[a]
	}
	return r.Has(ElementKey{Set: IPVSIPs, Addr: a})
}

// Has reports whether a set contains an element.
func (r *Ruleset) Has(key ElementKey) bool {
	_, ok := slices.BinarySearchFunc(r.Elements, key, func(e Element, k ElementKey) int { return e.Compare(k) })
	return ok
}

// Server returns the virtual server of an address and port, or nil.
func (r *Ruleset) Server(key ir.Match) *VirtualServer {
	i, ok := slices.BinarySearchFunc(r.VirtualServers, key, func(v VirtualServer, key ir.Match) int {
		return v.Key.Compare(key)
	})
	if !ok {
		return nil
	}
	return &r.VirtualServers[i]
}

// canon sorts the parts of all Fragments and removes duplicates: several Services
// may share a backend, and several ports an address.
func (r *Ruleset) canon() {
	slices.SortStableFunc(r.Elements, func(a, b Element) int { return a.Compare(b.ElementKey) })
	r.Elements = slices.CompactFunc(r.Elements, func(a, b Element) bool { return a.ElementKey == b.ElementKey })
	// Frontends with an address take precedence over node ports (PKT-18): Kind
	// NodePort sorts last.
	slices.SortStableFunc(r.VirtualServers, func(a, b VirtualServer) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind))
	})
	r.VirtualServers = slices.CompactFunc(r.VirtualServers, func(a, b VirtualServer) bool { return a.Key == b.Key })
}
