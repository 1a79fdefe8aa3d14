package nftables

import (
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// A frontend has an element for each backend of its pool. If many frontends use
// one pool, these would be the product of frontends and backends. Such a pool has
// its own map from slots to backends and its own chain, to which its frontends
// jump. Their elements are then the sum of frontends and backends.

// The package documentation contains the measurements.
const (
	// affinityWeight is the number of elements for a backend with affinity, compared with another
	// one: two, of which one is a verdict.
	affinityWeight = 4
	// minSlots is the minimum number of backends of a shared pool without affinity. For fewer, the
	// verdict elements of frontends cost more time in each commit than the backends do.
	minSlots = 4
)

// poolPrefixes are the prefixes of the maps and chains of shared pools, by maglev.
var poolPrefixes = [2]string{"pool-", "maglev-pool-"}

const membersPrefix = "members-"

// IsPool reports whether a name belongs to the map of a shared pool, whose keys
// are slots in any order.
func IsPool(set string) bool { return strings.HasPrefix(set, poolPrefixes[0]) }

// HasElements reports whether a set that is not a fixed one has elements that
// rules do not add.
func HasElements(set string) bool {
	return IsSources(set) || IsPool(set) || strings.HasPrefix(set, poolPrefixes[1]) || strings.HasPrefix(set, membersPrefix)
}

// sharing is, by pool, whether it is shared by the frontends that select a backend
// at random, and by those that select one by the client's hash. nil: no pool is.
type sharing []sharedPool

type sharedPool struct{ random, maglev bool }

// has reports whether a frontend shares a pool.
func (s sharing) has(f *ir.Frontend, pool int) bool {
	if s == nil {
		return false
	}
	if f.Maglev != nil {
		return s[pool].maglev
	}
	return s[pool].random
}

// sharing returns the shared pools of some ports of a Service. It depends on the
// port of the pool only.
func (l *lowering) sharing(svc *ir.Service) sharing {
	most := 0
	for i := range svc.Pools {
		most = max(most, len(svc.Pools[i].Backends))
	}
	if 2*len(svc.Frontends)*most*affinityWeight < ir.MinShared && !slices.ContainsFunc(svc.Frontends, func(f ir.Frontend) bool { return f.Maglev != nil }) {
		return nil // nearly all Services
	}
	users, slots := make([][2]int, len(svc.Pools)), make([]int, len(svc.Pools))
	for i := range svc.Frontends {
		f := &svc.Frontends[i]
		pods, node, others := l.choices(f)
		used := []int{pods.pool, others.pool}
		if _, ok := commonMarks(pods, node, others); ok {
			used = used[1:]
		}
		for _, pool := range used {
			if pool >= 0 {
				users[pool][ir.Int(f.Maglev != nil)]++
			}
			if pool >= 0 && f.Maglev != nil {
				slots[pool] = int(f.Maglev.Slots)
			}
		}
	}
	all := make(sharing, len(svc.Pools))
	for i, n := range users {
		p := &svc.Pools[i]
		backends := len(p.Backends)
		if p.Affinity != nil {
			backends *= affinityWeight
		}
		all[i].random = (n[0]-1)*backends >= ir.MinShared && (backends >= minSlots || p.Affinity != nil)
		all[i].maglev = (n[1]-1)*slots[i] >= ir.MinShared
	}
	return all
}

// sharedPool adds the map of a shared pool, and returns the rule that selects a
// backend. The key contains the protocol because nft accepts a port as the data of
// a map only in a rule with a protocol.
func (l *lowering) sharedPool(t target, p *ir.Pool) Rule {
	slot, origin := t.slot()
	s := Set{Name: t.name(), Key: slotKey, Data: AddrPortData, Port: p.Port, Origin: p.Origin, Elements: make([]Element, t.n)}
	add := func(i int, b *ir.Backend) {
		s.Elements[i] = Element{Key: Key{Proto: p.Port.Protocol, Slot: uint32(i)}, To: b.AddrPort, Origin: &b.Origin}
	}
	if t.maglev {
		m := ir.Maglev{Slots: uint32(t.n)}
		for i, b := range m.Table(p.Backends) {
			add(i, &p.Backends[b])
		}
	} else {
		for i := range p.Backends {
			add(i, &p.Backends[i])
		}
	}
	l.frag.Maps = append(l.frag.Maps, s)
	l.hairpins(p)
	return Rule{[]Stmt{LookupDNAT{Key: []Term{{Field: L4Proto}, slot}, Map: s.Name}}, origin}
}

// memberSet returns the name of the set of a pool's backends with one port.
func memberSet(p *ir.Pool, port uint16) string {
	return cut(membersPrefix + poolName(p.Port, policyName(p.Policy), strconv.Itoa(int(port))))
}

// memberSets returns the sets of the backends of a pool, one for each affinity map.
func memberSets(p *ir.Pool) (all []Set) {
	for _, port := range backendPorts(p) {
		s := Set{Name: memberSet(p, port), Key: backendKey, Port: p.Port, Origin: p.Affinity.Origin}
		for i := range p.Backends {
			if b := &p.Backends[i]; b.AddrPort.Port() == port {
				s.Elements = append(s.Elements, Element{Key: Key{Addr: b.AddrPort.Addr(), Port: port}, Origin: &b.Origin})
			}
		}
		all = append(all, s)
	}
	return all
}
