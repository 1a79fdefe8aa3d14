// Package reviewtest creates clusters for tests of the review engine: random ones, the demo's, and
// large ones.
package reviewtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// World is a random cluster with a configuration. Tests remove its parts one by one to shrink a
// failure.
type World struct {
	mode     ir.Mode
	Config   func(*config.Config)
	Facts    compiler.Facts
	Services []*snapshot.Service
	Slices   []*snapshot.EndpointSlice
}

// The network of random worlds. Programs are compiled for node1. Pods of node N have the ranges
// 10.244.N.0/24 and fd00:10:244:N::/64.
const (
	randomNode    = "node1"
	podBridge     = "cni0"
	podPrefix     = "cni"
	nodes         = 3
	servicesPer   = 6 // maximum
	endpointsPer  = 5 // maximum in a slice
	nodePortFirst = 30000
)

var randomRanges = []string{"198.51.100.0/24", "192.0.2.0/24", "10.244.1.0/24", " 198.51.100.128/25", "0.0.0.0/0",
	"2001:db8:51::/48", "2001:db8:0:1::/64", "::/0", "nonsense"}

// Random creates worlds and packets from one random source.
type Random struct{ *rand.Rand }

// New returns a source. The same seed and n always produce the same world.
func New(seed, n uint64) *Random { return &Random{rand.New(rand.NewPCG(seed, n))} }

// Chance returns true with probability 1/n.
func (r *Random) Chance(n int) bool { return r.IntN(n) == 0 }

// Pick returns a random element.
func Pick[T any](r *Random, from []T) T { return from[r.IntN(len(from))] }

// World returns a random cluster with a configuration for a mode.
func (r *Random) World(mode ir.Mode) *World {
	w := &World{mode: mode, Config: r.config(mode), Facts: r.facts()}
	for i := range 1 + r.IntN(servicesPer) {
		w.Services = append(w.Services, r.service(i))
		for j := range r.IntN(6) {
			w.Slices = append(w.Slices, r.slice(w.Services[i], j))
		}
	}
	r.towardsServices(w)
	r.withoutNode(w, mode)
	r.contest(w)
	return w
}

// contest gives a Service an address of the node as an external IP, at the number of a node port.
// Either may have no endpoint, or endpoints on other nodes only.
func (r *Random) contest(w *World) {
	a, b := Pick(r, w.Services), Pick(r, w.Services)
	port := b.Ports[0]
	if !r.Chance(3) || port.NodePort == 0 {
		return
	}
	a.Ports[0].Protocol, a.Ports[0].Port = port.Protocol, port.NodePort
	a.ExternalIPs = append(a.ExternalIPs, "192.0.2.11", "2001:db8:0:1::11")
	without := map[ir.Name][]string{}
	for _, s := range [...]*snapshot.Service{a, b} {
		without[s.Name] = Pick(r, [][]string{nil, {"node1", ""}, {"node1", "node2", "node3", ""}})
	}
	for _, s := range w.Slices {
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e snapshot.Endpoint) bool { return slices.Contains(without[s.Service], e.NodeName) })
		for k, p := range s.Ports {
			if s.Service == a.Name && p.Name == a.Ports[0].Name {
				s.Ports[k].Protocol = port.Protocol
			}
		}
	}
}

// withoutNode removes the node names of some endpoints that other slices also contain.
func (r *Random) withoutNode(w *World, mode ir.Mode) {
	for _, s := range w.Slices {
		for j := range s.Endpoints {
			if r.Chance(12) && mode != ir.ModeKernelspace { // HNS accepts an address only once
				s.Endpoints[j].NodeName = ""
			}
		}
	}
}

// towardsServices gives some endpoints addresses and ports of Services, or ones that a Service
// could have.
func (r *Random) towardsServices(w *World) {
	ports := map[string]int32{} // the same in all slices of a Service, because HNS has one port for all
	for _, s := range w.Services {
		for k, p := range s.Ports {
			if r.Chance(8) {
				ports[s.Name.Name+p.Name] = Pick(r, []int32{int32(80 + k), int32(nodePortFirst + 10*r.IntN(servicesPer) + k)})
			}
		}
	}
	for _, s := range w.Slices {
		for k, p := range s.Ports {
			if port, ok := ports[s.Service.Name+p.Name]; ok {
				s.Ports[k].Port = port
			}
		}
		for j := range s.Endpoints {
			if !r.Chance(12) {
				continue
			}
			i := r.IntN(servicesPer)
			text := Pick(r, []string{fmt.Sprintf("10.96.0.%d", 10+i), "10.96.0.250", fmt.Sprintf("198.18.0.%d", 10+i), fmt.Sprintf("203.0.113.%d", 10+i)})
			if s.AddressType == "IPv6" {
				text = Pick(r, []string{fmt.Sprintf("fd00:10:96::%x", 16+i), "fd00:10:96::fa", fmt.Sprintf("2001:db8:198::%x", 16+i), fmt.Sprintf("2001:db8:203::%x", 16+i)})
			}
			e := &s.Endpoints[j]
			e.Address, e.Addr, e.NodeName = text, netip.MustParseAddr(text), ""
			if e.Addr.As16()[15]%2 == 0 { // in every slice, because HNS accepts an address only once
				e.NodeName = randomNode
			}
		}
	}
}

func (r *Random) config(mode ir.Mode) func(*config.Config) {
	all, localhost, bit := r.Chance(4), r.Chance(2), int32(r.IntN(31))
	detect := r.IntN(8)
	nodePorts := Pick(r, [][]string{nil, nil, {"192.0.2.0/24"}, {"primary"}, {"127.0.0.0/8", "192.0.2.11/32"},
		{"0.0.0.0/0"}, {"2001:db8:0:1::/64"}, {"203.0.113.0/24", "::/0"}})
	return func(c *config.Config) {
		c.Mode = string(mode)
		c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = all, all
		c.IPTables.LocalhostNodePorts = &localhost
		c.IPTables.MasqueradeBit, c.NFTables.MasqueradeBit = &bit, &bit
		c.NodePortAddresses = nodePorts
		c.ClusterCIDR = "10.244.0.0/16,fd00:10:244::/48"
		switch detect {
		case 0:
			c.ClusterCIDR = ""
		case 1:
			c.ClusterCIDR = "10.244.1.0/24"
		case 2:
			c.DetectLocalMode = "NodeCIDR"
		case 3:
			c.DetectLocalMode, c.DetectLocal.BridgeInterface = "BridgeInterface", podBridge
		case 5:
			c.ClusterCIDR = "10.0.0.0/8" // contains the addresses of Services, too
		case 4:
			c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", podPrefix
		}
	}
}

// facts returns interfaces. One of them may have addresses that a Service also has (a node may
// connect to a load balancer address that it has itself, PKT-11). Sometimes there are none, as in
// offline use.
func (r *Random) facts() compiler.Facts {
	f := compiler.Facts{NodeName: randomNode}
	if r.Chance(2) {
		return f
	}
	f.Interfaces = []compiler.Interface{
		{Name: "lo", Addrs: Prefixes("127.0.0.1/8", "::1/128")},
		{Name: "eth0", Addrs: Prefixes("192.0.2.11/24", "2001:db8:0:1::11/64")},
		{Name: podBridge, Addrs: Prefixes("10.244.1.1/24", "fd00:10:244:1::1/64")},
	}
	if r.Chance(2) {
		f.Interfaces[0].Addrs = append(f.Interfaces[0].Addrs, Prefixes("203.0.113.10/32", "2001:db8:203::10/128")...)
	}
	return f
}

// Prefixes parses networks. It panics if one is invalid.
func Prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func (r *Random) service(i int) *snapshot.Service {
	name := ir.Name{Namespace: "ns", Name: fmt.Sprintf("svc%d", i)}
	v4, v6 := fmt.Sprintf("10.96.0.%d", 10+i), fmt.Sprintf("fd00:10:96::%x", 16+i)
	s := &snapshot.Service{
		Name: name, Object: "Service " + name.String(),
		ClusterIPs: []string{v4, v6}, IPFamilies: []string{"IPv4", "IPv6"},
		Type:          Pick(r, []string{"ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"}),
		InternalLocal: r.Chance(4),
		ExternalLocal: r.Chance(2),
	}
	switch r.IntN(4) {
	case 0:
		s.ClusterIPs, s.IPFamilies = s.ClusterIPs[:1], s.IPFamilies[:1]
	case 1:
		s.ClusterIPs, s.IPFamilies = s.ClusterIPs[1:], s.IPFamilies[1:]
	}
	s.ClusterIP = s.ClusterIPs[0]
	for j := range 1 + r.IntN(3) {
		p := snapshot.ServicePort{Name: fmt.Sprintf("p%d", j), Protocol: Pick(r, []string{"TCP", "TCP", "UDP", "SCTP"}),
			Port: int32(80 + j)}
		if r.Chance(6) { // as a node port of a Service, possibly of this one
			p.Port = int32(nodePortFirst + 10*r.IntN(i+1) + j)
		}
		if s.Type != "ClusterIP" && !r.Chance(4) {
			p.NodePort = int32(nodePortFirst + 10*i + j)
		}
		s.Ports = append(s.Ports, p)
	}
	if r.Chance(4) {
		s.ExternalIPs = []string{fmt.Sprintf("198.18.0.%d", 10+i), fmt.Sprintf("2001:db8:198::%x", 16+i)}
	}
	if r.Chance(6) {
		s.ExternalIPs = append(s.ExternalIPs, Pick(r, []string{"192.0.2.11", "2001:db8:0:1::11", "198.18.0.10"}))
	}
	if s.Type == "LoadBalancer" {
		s.LoadBalancer = []snapshot.Ingress{
			{IP: fmt.Sprintf("203.0.113.%d", 10+i), IPMode: Pick(r, []string{"", "VIP", "VIP", "Proxy"})},
			{IP: fmt.Sprintf("2001:db8:203::%x", 16+i)}}
		if r.Chance(2) {
			for range 1 + r.IntN(3) {
				s.SourceRanges = append(s.SourceRanges, Pick(r, randomRanges))
			}
		}
		s.HealthPort = int32(32000 + i)
	}
	if r.Chance(4) {
		s.AffinityIP, s.AffinitySecs = true, int32(Pick(r, []int{10, 3600, 10800}))
	}
	if r.Chance(4) {
		s.Balance = "maglev"
	}
	return s
}

func (r *Random) slice(s *snapshot.Service, j int) *snapshot.EndpointSlice {
	name := ir.Name{Namespace: s.Name.Namespace, Name: fmt.Sprintf("%s-%d", s.Name.Name, j)}
	out := &snapshot.EndpointSlice{
		Name: name, Object: "EndpointSlice " + name.String(), Service: s.Name,
		AddressType: Pick(r, []string{"IPv4", "IPv6"}),
	}
	for k, p := range s.Ports {
		if r.Chance(8) {
			continue // a named port that is not in this slice
		}
		out.Ports = append(out.Ports, snapshot.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: int32(8080 + k), HasName: true, HasPort: true})
	}
	hinted := r.Chance(3)
	for range r.IntN(endpointsPer + 1) {
		out.Endpoints = append(out.Endpoints, r.endpoint(out.AddressType, hinted))
	}
	return out
}

func (r *Random) endpoint(addressType string, hinted bool) snapshot.Endpoint {
	n := 1 + r.IntN(nodes)
	host := 10 + r.IntN(8)
	nodeName := fmt.Sprintf("node%d", n)
	if r.Chance(16) { // an endpoint on an unknown node
		host, nodeName = host+100, ""
	}
	text := fmt.Sprintf("10.244.%d.%d", n, host)
	if addressType == "IPv6" {
		text = fmt.Sprintf("fd00:10:244:%d::%x", n, host)
	}
	if nodeName != "" && r.Chance(12) { // host network
		text = fmt.Sprintf("192.0.2.%d", 10+n)
		if addressType == "IPv6" {
			text = fmt.Sprintf("2001:db8:0:1::%d", 10+n)
		}
	}
	e := snapshot.Endpoint{Address: text, Addr: netip.MustParseAddr(text), NodeName: nodeName, Ready: true, Serving: true}
	switch r.IntN(5) {
	case 0:
		e.Ready, e.Serving = false, false
	case 1:
		e.Ready, e.Terminating = false, true
	}
	if hinted && !r.Chance(6) {
		e.Hints = &snapshot.Hints{Zones: []string{fmt.Sprintf("zone-%d", 1+r.IntN(nodes))}}
		if r.Chance(3) {
			e.Hints.Nodes = []string{fmt.Sprintf("node%d", 1+r.IntN(nodes))}
		}
	}
	return e
}

// Snapshot returns the world's objects in the order that order produces.
func (w *World) Snapshot(order func(n int, swap func(i, j int))) *snapshot.Snapshot {
	var put []func(*snapshot.Snapshot)
	for _, s := range w.Services {
		put = append(put, func(snap *snapshot.Snapshot) { snap.SetService(s) })
	}
	for _, s := range w.Slices {
		put = append(put, func(snap *snapshot.Snapshot) { snap.SetSlice(s) })
	}
	for i := 1; i <= nodes; i++ {
		put = append(put, func(snap *snapshot.Snapshot) { snap.SetNode(NodeObject(i)) })
	}
	put = append(put, func(snap *snapshot.Snapshot) {
		snap.SetServiceCIDR(&snapshot.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}})
	})
	if order != nil {
		order(len(put), func(i, j int) { put[i], put[j] = put[j], put[i] })
	}
	snap := snapshot.New()
	for _, p := range put {
		p(snap)
	}
	return snap
}

// NodeObject returns the i-th Node of random worlds, from 1.
func NodeObject(i int) *snapshot.Node {
	return &snapshot.Node{
		Name: fmt.Sprintf("node%d", i), Zone: fmt.Sprintf("zone-%d", i),
		Addresses: []snapshot.NodeAddress{
			{Type: "InternalIP", Address: fmt.Sprintf("192.0.2.%d", 10+i)},
			{Type: "InternalIP", Address: fmt.Sprintf("2001:db8:0:1::%d", 10+i)}},
		PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", i))},
	}
}

// Packet returns a packet that may match a rule of the Program: from any source, to an address that
// the Program has or may seem to have.
func (r *Random) Packet(p *ir.Program) sim.Packet {
	matches := []ir.Match{{Addr: r.addr(p.Family, "10.96.0.250", "fd00:10:96::fa"), Protocol: ir.TCP, Port: 80}}
	var backends []netip.Addr
	for i := range p.Services {
		for j := range p.Services[i].Frontends {
			matches = append(matches, p.Services[i].Frontends[j].Match)
		}
		for j := range p.Services[i].Pools {
			for _, b := range p.Services[i].Pools[j].Backends {
				backends = append(backends, b.AddrPort.Addr())
			}
		}
	}
	m := Pick(r, matches)
	pkt := sim.Packet{Dst: m.Addr, Protocol: m.Protocol, Port: m.Port}
	if m.IsNodePort() {
		pkt.Dst = r.nodeAddr(p)
	}
	switch r.IntN(12) {
	case 0:
		pkt.Port += 3
	case 1:
		pkt.Protocol = Pick(r, []ir.Protocol{ir.TCP, ir.UDP, ir.SCTP})
	case 2:
		pkt.Dst = r.nodeAddr(p)
	}
	pkt.Src, pkt.In = r.source(p, backends, pkt.Dst)
	return pkt
}

func (r *Random) addr(f ir.Family, v4, v6 string) netip.Addr {
	if f == ir.IPv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

// nodeAddr returns an address of node1, or sometimes of another node.
func (r *Random) nodeAddr(p *ir.Program) netip.Addr {
	if r.Chance(4) {
		return r.addr(p.Family, "127.0.0.1", "::1")
	}
	if r.Chance(6) {
		return r.addr(p.Family, "192.0.2.12", "2001:db8:0:1::12")
	}
	return Pick(r, append(slices.Clone(p.Node.Addrs), r.addr(p.Family, "192.0.2.11", "2001:db8:0:1::11")))
}

// source returns a source address and the interface on which the packet arrives. The interface is
// "" for packets that the node sends. A loopback source never leaves the node.
func (r *Random) source(p *ir.Program, backends []netip.Addr, dst netip.Addr) (netip.Addr, string) {
	if dst.IsLoopback() {
		return dst, ""
	}
	switch r.IntN(6) {
	case 0: // a pod of this node
		return r.addr(p.Family, "10.244.1.200", "fd00:10:244:1::200"), podBridge
	case 1, 2: // an endpoint, possibly one that connects to itself
		if len(backends) > 0 {
			b := Pick(r, backends)
			if !p.Node.HasAddr(b) && b != dst && !(isCarried(p, b)) {
				return b, r.in(b)
			}
		}
	case 3: // outside
		return Pick(r, []netip.Addr{r.addr(p.Family, "198.51.100.7", "2001:db8:51::7"), r.addr(p.Family, "198.51.100.200", "2001:db8:99::7"),
			r.addr(p.Family, "192.0.2.12", "2001:db8:0:1::12")}), "eth0"
	}
	if p.Node.HasAddr(dst) || isCarried(p, dst) {
		return dst, "" // as the kernel selects it
	}
	if len(p.Node.Addrs) > 0 {
		return Pick(r, p.Node.Addrs), ""
	}
	return r.addr(p.Family, "192.0.2.12", "2001:db8:0:1::12"), "eth0"
}

func (r *Random) in(src netip.Addr) string {
	local := r.addr(ir.IPv4, "10.244.1.0", "")
	if src.Is6() {
		local = r.addr(ir.IPv6, "", "fd00:10:244:1::")
	}
	bits := 24
	if src.Is6() {
		bits = 64
	}
	if netip.PrefixFrom(local, bits).Contains(src) {
		return podBridge
	}
	return "eth0"
}

// isCarried reports whether the node has the address of some frontend on a device, as in mode ipvs.
func isCarried(p *ir.Program, addr netip.Addr) bool {
	carries := prove.NodeOf(p).Carries
	return carries != nil && carries(addr)
}
