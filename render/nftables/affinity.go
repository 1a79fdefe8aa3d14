package nftables

import (
	"math/bits"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// Session affinity. Each pool with affinity has maps from clients to backends,
// which rules fill: the chain of the pool looks a client up before it balances,
// and when the connection leaves, the backend that it got is remembered under
// the client, or the time of the entry is renewed. All frontends of the pool
// share the maps.
//
// There is a map for each port that the pool's backends have, mostly one, and
// it holds addresses only: nft 1.0.6 aborts on a rule that adds more than 16
// bytes of data to a map, which IPv6 address and port are.
//
// Which map a leaving connection belongs in is found by its backend together
// with its original destination. A backend that both pools of a service port
// have is remembered in both, as in kube-proxy, where the memory is the
// backend's. A key holds the backend so that nothing is ever remembered that
// the pool does not have.

// stickyPool is a pool's part in affinity; zero without affinity.
type stickyPool struct {
	name    string
	sibling int                         // the sticky pool of the other policy and the same port, or -1
	members map[netip.AddrPort]struct{} // its backends; nil if it has no sibling
}

func (s *stickyPool) has(b netip.AddrPort) bool {
	_, ok := s.members[b]
	return ok
}

// affinityMap names the map of a pool for the backends of one port. The timeout
// is part of the name because not every kernel can change that of a map.
func affinityMap(p *ir.Pool, port uint16) string {
	return cut("affinity-" + poolName(p.Port, policyName(p.Policy), strconv.Itoa(int(port)), p.Affinity.Timeout.String()))
}

// mapSize returns how many clients the map of a port holds: MostClients for each
// backend, as in kube-proxy. It doubles, so that few changes of endpoints change it.
func mapSize(p *ir.Pool, port uint16) uint32 {
	n := 0
	for i := range p.Backends {
		if p.Backends[i].AddrPort.Port() == port {
			n++
		}
	}
	return MostClients << min(bits.Len(uint(n-1)), 15)
}

// backendPorts returns the ports that backends of the pool have.
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

// affinity makes the maps of the Service's pools and returns, by pool, what its
// frontends need to know of them.
func (l *lowering) affinity(svc *ir.Service) []stickyPool {
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
		for j := range i {
			if sticky[j].name != "" && svc.Pools[j].Port == p.Port {
				s.sibling, s.members = j, members(p)
				sticky[j].sibling, sticky[j].members = i, members(&svc.Pools[j])
			}
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

// remember has the connections of a frontend remembered, whichever of its
// pools they meet.
func (l *lowering) remember(f *lowerable, pools ...int) {
	id := AffinityIPs
	if f.Match.IsNodePort() {
		id = AffinityPorts
	}
	for i, pool := range pools {
		if pool < 0 || f.sticky[pool].name == "" || i > 0 && pool == pools[0] {
			continue
		}
		if len(f.svc.Pools[pool].Backends) > 0 {
			l.affinityOf(f)
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

// affinityOf has the connections of a frontend looked at.
func (l *lowering) affinityOf(f *lowerable) {
	nodePort := f.Match.IsNodePort()
	if has := &l.affine[btoi(nodePort)]; !*has {
		*has = true
		l.frag.Chains = append(l.frag.Chains, affinityChains(nodePort)...)
	}
	if !nodePort {
		l.addShared(AffinityAddrs, Element{Key: Key{Addr: f.Match.Addr}, Origin: &f.Origin})
	}
}

// rememberIn returns the chain that remembers a backend of the pool.
func (l *lowering) rememberIn(f *lowerable, pool int, b *ir.Backend) string {
	p, s := &f.svc.Pools[pool], &f.sticky[pool]
	what, pools := policyName(p.Policy), []*ir.Pool{p}
	if s.sibling >= 0 && f.sticky[s.sibling].has(b.AddrPort) {
		what, pools = "both", []*ir.Pool{&f.svc.Pools[min(pool, s.sibling)], &f.svc.Pools[max(pool, s.sibling)]}
	}
	port := b.AddrPort.Port()
	name := cut("remember-" + poolName(p.Port, what, strconv.Itoa(int(port))))
	if _, ok := l.remembers[name]; ok {
		return name
	}
	l.remembers[name] = struct{}{}
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

// stickyRules send a known client of a pool with affinity to its backend.
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
