package nftables

import (
	"math/bits"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// Session affinity. Each pool with affinity has maps from clients to backends,
// which rules fill. The chain of the pool looks up a client before it selects a
// backend. When the connection leaves the node, a rule stores the backend for the
// client, or renews the entry. All frontends of the pool share the maps.
//
// There is a map for each port of the pool's backends, usually one. It contains
// only addresses: nft 1.0.6 aborts on a rule that adds more than 16 bytes of data
// to a map, which IPv6 address and port exceed.
//
// The map for a leaving connection is found by its backend and its original
// destination. A backend of both pools of a service port is stored in both maps.
// kube-proxy stores it once for both. The key contains the backend, so that only
// backends of the pool are ever stored.

// stickyPool is a pool's affinity state; zero without affinity.
type stickyPool struct {
	name    string
	shared  bool                        // a pool of the port is shared: sets contain the members, not elements of frontends
	sibling int                         // index of the sticky pool of the other policy and the same port, or -1
	members map[netip.AddrPort]struct{} // its backends; nil if it has no sibling
}

func (s *stickyPool) has(b netip.AddrPort) bool {
	_, ok := s.members[b]
	return ok
}

// affinityMap returns the name of the map of a pool for the backends of one port.
// The name contains the timeout, because some kernels cannot change the timeout
// of a map.
func affinityMap(p *ir.Pool, port uint16) string {
	return cut("affinity-" + poolName(p.Port, policyName(p.Policy), strconv.Itoa(int(port)), p.Affinity.Timeout.String()))
}

// mapSize returns the maximum number of clients in the map of a port: MaxClients
// for each backend, as in kube-proxy. It is rounded up to a power of two, so that
// few changes of endpoints change it.
func mapSize(p *ir.Pool, port uint16) uint32 {
	n := 0
	for i := range p.Backends {
		if p.Backends[i].AddrPort.Port() == port {
			n++
		}
	}
	return MaxClients << min(bits.Len(uint(n-1)), 15)
}

// backendPorts returns the ports of the pool's backends.
func backendPorts(p *ir.Pool) []uint16 {
	var ports []uint16
	for i := range p.Backends {
		if port := p.Backends[i].AddrPort.Port(); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return ports
}

// affinity adds the maps of the Service's pools. It returns, by pool, what the
// lowering of frontends requires.
func (l *lowering) affinity(svc *ir.Service, shared sharing) []stickyPool {
	sticky := make([]stickyPool, len(svc.Pools))
	for i := range svc.Pools {
		p := &svc.Pools[i]
		if p.Affinity == nil {
			continue
		}
		s := &sticky[i]
		s.name, s.sibling = poolName(p.Port, policyName(p.Policy)), -1
		for _, port := range backendPorts(p) {
			l.frag.Maps = append(l.frag.Maps, Set{
				Name: affinityMap(p, port), Key: addrKey, Data: AddrData,
				Timeout: p.Affinity.Timeout, Size: mapSize(p, port), Port: p.Port, Origin: p.Affinity.Origin,
			})
		}
		if j := i - 1; j >= 0 && sticky[j].name != "" && svc.Pools[j].Port == p.Port {
			s.sibling, s.members = j, members(p)
			sticky[j].sibling, sticky[j].members = i, members(&svc.Pools[j])
		}
	}
	for i, s := range shared {
		if s.random && sticky[i].name != "" {
			sticky[i].shared = true
			if j := sticky[i].sibling; j >= 0 {
				sticky[j].shared = true
			}
		}
	}
	for i := range sticky {
		if sticky[i].shared {
			l.frag.Maps = append(l.frag.Maps, memberSets(&svc.Pools[i])...)
		}
	}
	return sticky
}

func policyName(p ir.Policy) string { return [...]string{ir.Cluster: "cluster", ir.Local: "local"}[p] }

func members(p *ir.Pool) map[netip.AddrPort]struct{} {
	m := make(map[netip.AddrPort]struct{}, len(p.Backends))
	for _, b := range p.Backends {
		m[b.AddrPort] = struct{}{}
	}
	return m
}

// remember adds elements that store the backends of a frontend's connections, for
// each of the pools.
func (l *lowering) remember(f *lowerable, pools ...int) {
	id, shared := AffinityIPs, AffinityPools
	if f.Match.IsNodePort() {
		id, shared = AffinityPorts, AffinityPortPools
	}
	for i, pool := range pools {
		if pool < 0 || f.sticky[pool].name == "" || i > 0 && pool == pools[0] {
			continue
		}
		if len(f.svc.Pools[pool].Backends) > 0 {
			l.affinityOf(f)
		}
		if f.sticky[pool].shared {
			l.add(shared, f.element(Verdict{Goto, l.rememberShared(f, pool)}))
			return // the chain stores the backends of both pools
		}
		for k := range f.svc.Pools[pool].Backends {
			b := &f.svc.Pools[pool].Backends[k]
			if i > 0 && pools[0] >= 0 && f.sticky[pools[0]].has(b.AddrPort) {
				continue
			}
			l.add(id, Element{
				Key: Key{Addr: b.AddrPort.Addr(), Port: b.AddrPort.Port(),
					Addr2: f.Match.Addr, Proto: f.Match.Protocol, Port2: f.Match.Port},
				Verdict:  Verdict{Goto, l.rememberIn(f, pool, b)},
				Frontend: f.Frontend, Origin: &b.Origin,
			})
		}
	}
}

// affinityOf adds the chains and elements that make the rules check connections
// of a frontend.
func (l *lowering) affinityOf(f *lowerable) {
	nodePort := f.Match.IsNodePort()
	if has := &l.affine[ir.Int(nodePort)]; !*has {
		*has = true
		l.frag.Chains = append(l.frag.Chains, affinityChains(nodePort)...)
	}
	if !nodePort {
		l.addShared(AffinityAddrs, Element{Key: Key{Addr: f.Match.Addr}, Origin: &f.Origin})
	}
}

// rememberIn returns the chain that stores a backend of the pool.
func (l *lowering) rememberIn(f *lowerable, pool int, b *ir.Backend) string {
	p, s := &f.svc.Pools[pool], &f.sticky[pool]
	what, pools := policyName(p.Policy), []*ir.Pool{p}
	if s.sibling >= 0 && f.sticky[s.sibling].has(b.AddrPort) {
		what, pools = "both", []*ir.Pool{&f.svc.Pools[min(pool, s.sibling)], &f.svc.Pools[max(pool, s.sibling)]}
	}
	port := b.AddrPort.Port()
	name := cut("remember-" + poolName(p.Port, what, strconv.Itoa(int(port))))
	if !l.makes(name) {
		return name
	}
	c := Chain{Name: name, Port: p.Port}
	for _, p := range pools {
		c.Rules = append(c.Rules, Rule{
			[]Stmt{Update{affinityMap(p, port), Term{Field: OrigSrcAddr}, Term{Field: DstAddr}}},
			p.Affinity.Origin,
		})
	}
	l.frag.Chains = append(l.frag.Chains, c)
	return name
}

// rememberShared returns the chain that stores the backends of a port with a shared
// pool. A set for each map contains the backends that may be stored in it.
func (l *lowering) rememberShared(f *lowerable, pool int) string {
	port := f.svc.Pools[pool].Port
	name := cut("remember-" + poolName(port, "shared"))
	if !l.makes(name) {
		return name
	}
	c := Chain{Name: name, Port: port}
	sibling := f.sticky[pool].sibling
	for _, i := range [...]int{min(pool, sibling), max(pool, sibling)} {
		if i < 0 {
			continue
		}
		p := &f.svc.Pools[i]
		for _, to := range backendPorts(p) {
			c.Rules = append(c.Rules, Rule{[]Stmt{
				MatchSet{Key: []Term{{Field: DstAddr}, {Field: DstPort}}, Set: memberSet(p, to)},
				Update{affinityMap(p, to), Term{Field: OrigSrcAddr}, Term{Field: DstAddr}},
			}, p.Affinity.Origin})
		}
	}
	l.frag.Chains = append(l.frag.Chains, c)
	return name
}

// stickyRules returns rules that forward a known client of a pool with affinity
// to its backend.
func stickyRules(t target, p *ir.Pool) (rules []Rule) {
	if t.affinity == "" {
		return nil
	}
	for _, port := range backendPorts(p) {
		rules = append(rules, Rule{
			[]Stmt{MatchProto{p.Port.Protocol}, LookupDNAT{Key: []Term{{Field: SrcAddr}}, Map: affinityMap(p, port), Port: port}},
			p.Affinity.Origin,
		})
	}
	return rules
}
