package nftables

import (
	"cmp"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fragment is the part of a table that one Service adds. Fragments may share
// equal chains and elements without data. Chains that test the number of a
// frontend's backends depend on all Fragments: see countingChains.
type Fragment struct {
	Elements [setCount][]Element
	Chains   []Chain
	Maps     []Set // of a port: affinity maps, which rules fill, and the sets of shared pools
	Lists    []Set // source ranges, which Fragments may share
}

// Lower returns the whole table of a Program.
func Lower(p *ir.Program) *Ruleset {
	l := newLowering(&p.Node, p.Family)
	l.reserve(p.Services)
	for i := range p.Services {
		l.service(&p.Services[i])
	}
	r := l.table()
	for id := range l.frag.Elements {
		r.Sets[id].Elements = l.frag.Elements[id]
	}
	return r
}

// LowerBare is Lower without the elements of the fixed sets, which are the
// largest part of a table. It calls each with the elements of every Service,
// without keeping them. If each returns false, LowerBare stops and returns nil.
func LowerBare(p *ir.Program, each func(id SetID, elements []Element) bool) *Ruleset {
	l := newLowering(&p.Node, p.Family)
	l.shared = make(map[sharedElement]struct{}, len(p.Services))
	for i := range p.Services {
		l.service(&p.Services[i])
		for id := range l.frag.Elements {
			elements := &l.frag.Elements[id]
			if len(*elements) > 0 && !each(SetID(id), *elements) {
				return nil
			}
			*elements = (*elements)[:0]
		}
	}
	return l.table()
}

// table returns the whole table without the elements of the fixed sets.
func (l *lowering) table() *Ruleset {
	r := Fixed(l.node, l.family)
	l.frag.Chains = r.depend(l.node, l.frag.Chains)
	slices.SortFunc(l.frag.Chains, func(a, b Chain) int { return cmp.Compare(a.Name, b.Name) })
	more := slices.Concat(l.frag.Maps, l.frag.Lists)
	slices.SortFunc(more, func(a, b Set) int { return cmp.Compare(a.Name, b.Name) })
	r.Chains = append(r.Chains, l.frag.Chains...)
	slices.SortStableFunc(r.Chains, func(a, b Chain) int { return ir.Int(a.Base == nil) - ir.Int(b.Base == nil) })
	r.Sets = append(r.Sets, more...)
	return r
}

// LowerService returns the Fragment of one Service. It does not depend on other
// Services.
func LowerService(node *ir.Node, family ir.Family, svc *ir.Service) Fragment {
	l := newLowering(node, family)
	l.alone(svc)
	return l.frag
}

// sharedSets returns the sets whose elements Services may share.
func sharedSets() []SetID { return []SetID{ClusterIPs, Hairpin, AffinityAddrs} }

// lowering combines the Fragments of Services without duplicating shared parts.
type lowering struct {
	node   *ir.Node
	family ir.Family
	frag   Fragment
	names  map[target]string   // the chains in frag
	affine [2]bool             // frag has affinityChains, for addresses and for node ports
	lists  map[listOf]string   // chains of source ranges by list; "" if the list admits all clients
	made   map[string]struct{} // the chains in frag that store a backend, and the chains and sets of source ranges
	shared map[sharedElement]struct{}
}

type sharedElement struct {
	set SetID
	key Key
}

func newLowering(node *ir.Node, family ir.Family) *lowering {
	return &lowering{node: node, family: family, names: map[target]string{}, shared: map[sharedElement]struct{}{},
		lists: map[listOf]string{}, made: map[string]struct{}{}}
}

// alone adds a Service with everything that it uses, even if another Service added it.
func (l *lowering) alone(svc *ir.Service) {
	clear(l.names)
	clear(l.lists)
	clear(l.made)
	clear(l.shared)
	l.affine = [2]bool{}
	l.reserve([]ir.Service{*svc})
	l.service(svc)
}

// clear removes all parts, and keeps their memory.
func (f *Fragment) clear() {
	for id := range f.Elements {
		f.Elements[id] = f.Elements[id][:0]
	}
	f.Chains, f.Maps, f.Lists = f.Chains[:0], f.Maps[:0], f.Lists[:0]
}

// reserve allocates the sets that grow with the Services, to avoid repeated
// copying.
func (l *lowering) reserve(services []ir.Service) {
	var n [setCount]int
	for i := range services {
		shared := l.sharing(&services[i])
		for j := range services[i].Frontends {
			f := &services[i].Frontends[j]
			maps := &dispatchMaps[ir.Int(f.Match.IsNodePort())]
			n[maps.all]++
			if f.Kind == ir.ClusterIP {
				n[ClusterIPs]++
			}
			if len(f.Routes) == 0 || shared.has(f, f.Routes[0].Pool) {
				continue
			}
			if f.Maglev != nil {
				n[maglevTables[ir.Int(f.Match.IsNodePort())].set] += int(f.Maglev.Slots)
			} else {
				n[maps.backends] += len(services[i].Pools[f.Routes[0].Pool].Backends)
			}
		}
	}
	for id, n := range n {
		if n > 0 {
			l.frag.Elements[id] = slices.Grow(l.frag.Elements[id], n)
		}
	}
}

func (l *lowering) add(id SetID, e Element) {
	l.frag.Elements[id] = append(l.frag.Elements[id], e)
}

// addShared adds an element that Services or frontends may share.
func (l *lowering) addShared(id SetID, e Element) {
	k := sharedElement{id, e.Key}
	if _, ok := l.shared[k]; !ok {
		l.shared[k] = struct{}{}
		l.add(id, e)
	}
}

func (l *lowering) service(svc *ir.Service) {
	shared := l.sharing(svc)
	sticky := l.affinity(svc, shared)
	for i := range svc.Frontends {
		l.frontend(&lowerable{svc, &svc.Frontends[i], sticky, shared})
	}
}

// lowerable is a frontend with the data that its lowering requires.
type lowerable struct {
	svc *ir.Service
	*ir.Frontend
	sticky []stickyPool // by pool
	shared sharing
}

// class is a class of packet sources; a route's scope is one of them, or all.
type class uint8

const (
	pod class = iota
	host
	outsider
)

// choice is the route of packets of one class.
type choice struct {
	pool int // -1 if there is no route
	snat bool
}

// choose returns the first route that matches the class.
func choose(f *ir.Frontend, c class) choice {
	for _, r := range f.Routes {
		if r.From == ir.Any || r.From == ir.Pods && c == pod || r.From == ir.ThisNode && c == host {
			return choice{r.Pool, r.SNAT}
		}
	}
	return choice{pool: -1}
}

// dispatchMaps are the maps for the lookup of frontends, for addresses and for
// node ports.
var dispatchMaps = [2]struct {
	all, inside, outside, empty, backends SetID
	bySource                              string // chain that distinguishes inside from outside
}{
	{ServiceIPs, InsideIPs, OutsideIPs, NoEndpointIPs, Backends, chainIPsBySource},
	{ServicePorts, InsidePorts, OutsidePorts, NoEndpointPorts, PortBackends, chainPortsBySource},
}

// choices returns the routes of pods, of the node and of other sources.
func (l *lowering) choices(f *ir.Frontend) (pods, node, others choice) {
	pods, node, others = choose(f, pod), choose(f, host), choose(f, outsider)
	if l.node.Detector.Mode == ir.DetectNone {
		pods = node // no source is detected as a pod: only the node is inside
	}
	return pods, node, others
}

func (l *lowering) frontend(f *lowerable) {
	pods, node, others := l.choices(f.Frontend)
	maps := &dispatchMaps[ir.Int(f.Match.IsNodePort())]
	list := l.guard(f)
	if list != "" {
		l.add(RestrictedIPs, Element{Key: frontendKeyOf(f.Match), Frontend: f.Frontend, Origin: &f.Origin})
	}
	if m, ok := commonMarks(pods, node, others); ok {
		if others.pool < 0 && list != "" {
			l.add(maps.all, f.element(Verdict{Jump, list}))
		}
		l.dispatch(f, maps.all, others.pool, target{marks: m}, list)
		l.remember(f, others.pool)
	} else {
		l.add(maps.all, f.element(l.guarded(list, f, Verdict{Goto, maps.bySource})))
		l.dispatch(f, maps.inside, pods.pool, target{marks: insideMarks(pods, node)}, "")
		l.dispatch(f, maps.outside, others.pool, target{marks: marksIf(others.snat), outside: true}, "")
		l.remember(f, pods.pool, others.pool)
	}
	if pods.pool < 0 || node.pool < 0 || others.pool < 0 {
		l.refuse(f, maps.empty)
	}
	if f.Match.IsNodePort() && l.node.NodePorts.RejectsLocalhost(f.Match.Protocol) {
		l.add(LocalhostPorts, Element{Key: frontendKeyOf(f.Match), Frontend: f.Frontend, Origin: &f.Origin})
	}
	if f.Kind == ir.ClusterIP && !f.Match.IsNodePort() {
		l.addShared(ClusterIPs, Element{Key: Key{Addr: f.Match.Addr}, Origin: &f.Origin})
	}
}

// commonMarks returns the marks with which all sources can share one chain, if
// possible.
func commonMarks(pods, node, others choice) (marks, bool) {
	if pods.pool != node.pool || node.pool != others.pool || node.snat != others.snat {
		return 0, false
	}
	if pods.snat && !node.snat {
		return 0, false
	}
	return insideMarks(pods, node), true
}

// insideMarks returns the marks for pods and the node, which have the same pool.
// If the node's packets are not masqueraded, the pods' are not either.
func insideMarks(pods, node choice) marks {
	if node.snat && !pods.snat {
		return markNonLocal
	}
	return marksIf(node.snat)
}

func marksIf(snat bool) marks {
	if snat {
		return markAll
	}
	return markNone
}

// element returns the frontend's element of a verdict map.
func (f *lowerable) element(v Verdict) Element {
	return Element{Key: frontendKeyOf(f.Match), Verdict: v, Frontend: f.Frontend, Origin: &f.Origin}
}

func frontendKeyOf(m ir.Match) Key { return Key{Addr: m.Addr, Proto: m.Protocol, Port: m.Port} }

// dispatch forwards the packets that the map matches to the backends of the pool,
// if it exists. A list of source ranges precedes them, unless its name is "".
func (l *lowering) dispatch(f *lowerable, id SetID, pool int, t target, list string) {
	if pool < 0 {
		return
	}
	p := &f.svc.Pools[pool]
	t.nodePort = f.Match.IsNodePort()
	t.n = len(p.Backends)
	if f.Maglev != nil {
		t.maglev, t.n = true, int(f.Maglev.Slots)
	}
	t.affinity = f.sticky[pool].name
	if f.shared.has(f.Frontend, pool) {
		t.pool, t.nodePort, t.outside = poolName(p.Port, policyName(p.Policy)), false, false
	}
	l.add(id, f.element(l.guarded(list, f, l.verdict(f, id, t, p))))
	if t.pool != "" {
		return // the chain has the backends
	}
	set := t.table().set
	key := frontendKeyOf(f.Match)
	slot := func(i int, b *ir.Backend) {
		key.Slot = uint32(i)
		l.add(set, Element{Key: key, To: b.AddrPort, Frontend: f.Frontend, Origin: &b.Origin})
	}
	if f.Maglev != nil {
		for i, b := range f.Maglev.Table(p.Backends) {
			slot(i, &p.Backends[b])
		}
	}
	for i := range p.Backends {
		if f.Maglev == nil {
			slot(i, &p.Backends[i])
		}
	}
	l.hairpins(p)
}

// hairpins adds the elements of backends on this node, whose connections to
// themselves must be masqueraded (PKT-7).
func (l *lowering) hairpins(p *ir.Pool) {
	for i := range p.Backends {
		if b := &p.Backends[i]; b.Local {
			a := b.AddrPort.Addr()
			l.addShared(Hairpin, Element{Key: Key{Addr: a, Addr2: a}, Origin: &b.Origin})
		}
	}
}

// refuse adds the verdict for packets without a route: rejected if no endpoint
// exists (PKT-8), dropped if only other nodes have one (PKT-9).
func (l *lowering) refuse(f *lowerable, id SetID) {
	v := Verdict{Kind: Drop}
	if f.Fallback == ir.Reject {
		v.Kind = Continue // to the rejecting rule
	}
	e := f.element(v)
	e.Origin = &f.FallbackOrigin
	l.add(id, e)
}

// chain returns the name of the target's chain, and adds it if it is new.
func (l *lowering) chain(t target, p *ir.Pool) string {
	if name, ok := l.names[t]; ok {
		return name
	}
	c := Chain{Name: t.name()}
	switch picks := t.picks(); {
	case t.pool != "" && picks != t:
		c.Rules = append(markRules(l.node, t.marks), Rule{[]Stmt{Verdict{Goto, l.chain(picks, p)}}, fixed("one chain for all frontends of the pool picks a backend")})
	case t.pool != "":
		c.Rules = append(stickyRules(t, p), l.sharedPool(t, p))
	case picks != t:
		c.Rules = slices.Concat(markRules(l.node, t.marks), stickyRules(t, p), []Rule{{[]Stmt{Verdict{Goto, l.chain(picks, p)}}, fixed("one chain for all frontends with as many backends picks one")}})
	default:
		c.Rules = balanceRules(t)
	}
	l.names[t] = c.Name
	if t.affinity != "" || t.pool != "" {
		c.Port = p.Port
	}
	l.frag.Chains = append(l.frag.Chains, c)
	return c.Name
}

// markRules mark packets for masquerade.
func markRules(node *ir.Node, m marks) []Rule {
	mark := []Stmt{SetMark{node.MasqueradeMark()}}
	switch m {
	case markNone:
		return nil
	case markNonLocal:
		return []Rule{{slices.Concat(fromPods(&node.Detector, true), mark), node.Detector.Origin}}
	}
	return []Rule{{mark, ir.Origin{Object: "config", Field: "masqueradeBit", Reason: "these connections are masqueraded"}}}
}

// balanceRules select one of n backends at random, or by the client's address and
// port.
func balanceRules(t target) []Rule {
	slot, origin := t.slot()
	return []Rule{{[]Stmt{LookupDNAT{Key: append(slices.Clip(frontendTerms(t.nodePort)), slot), Map: t.table().set.String()}}, origin}}
}

// slot returns the part of a key that selects a backend.
func (t target) slot() (Term, ir.Origin) {
	if t.maglev {
		return Term{ClientHash, uint32(t.n)}, fixed("the client's address and port choose, on every node alike")
	}
	return Term{Random, uint32(t.n)}, fixed("connections are spread evenly, at random")
}

// frontendTerms returns the key of a packet in the maps of frontends.
func frontendTerms(nodePort bool) []Term {
	if nodePort {
		return []Term{{Field: L4Proto}, {Field: DstPort}}
	}
	return []Term{{Field: DstAddr}, {Field: L4Proto}, {Field: DstPort}}
}

// fromPods matches packets that the detector detects as packets of pods, or all
// others if not is set. Without a detector it matches every packet.
func fromPods(d *ir.Detector, not bool) []Stmt {
	switch d.Mode {
	case ir.DetectCIDR:
		return []Stmt{MatchNet{SrcAddr, d.Prefix, not}}
	case ir.DetectInterface, ir.DetectPrefix:
		return []Stmt{MatchInterface{d.Interface, d.Mode == ir.DetectPrefix, not}}
	}
	return nil
}
