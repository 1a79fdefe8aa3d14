package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fragment is the part of a Ruleset that one Service adds: its own chains in nat,
// and entries in the dispatch chains.
type Fragment struct {
	Service ir.Name
	Chains  []Chain // of table nat
	Entries [dispatchCount][]Rule
	Hairpin []*ir.Pool // pools whose backends have rules in dispatchHairpin
	Health  []Rule     // of filter KUBE-NODEPORTS
}

// dispatchChain is a chain with entries of many Services.
type dispatchChain int

const (
	dispatchServices      dispatchChain = iota // nat KUBE-SERVICES: address and port to the deciding chain
	dispatchNodePorts                          // nat KUBE-NODEPORTS: port to the deciding chain
	dispatchEmptyCluster                       // filter KUBE-SERVICES: ClusterIPs without a route for some source
	dispatchEmptyExternal                      // filter KUBE-EXTERNAL-SERVICES: other addresses without a route
	dispatchEmptyNodePort                      // filter KUBE-EXTERNAL-SERVICES: node ports without a route
	dispatchGuard                              // filter KUBE-PROXY-FIREWALL: addresses with source ranges
	dispatchHairpin                            // nat KUBE-HAIRPIN: addresses of backends
	dispatchCount
)

// table returns the index of the dispatch chain's table in Ruleset.Tables.
func (d dispatchChain) table() int {
	switch d {
	case dispatchServices, dispatchNodePorts, dispatchHairpin:
		return 1
	}
	return 0
}

// entries returns the entries of Fragments in a dispatch chain, with their keys.
func entries(fragments []*Fragment, d dispatchChain, of func(*Rule) key) []entry {
	n := 0
	for _, f := range fragments {
		n += f.count(d)
	}
	all := make([]entry, 0, n)
	for _, f := range fragments {
		for i := range f.Entries[d] {
			r := &f.Entries[d][i]
			all = append(all, entry{key: of(r), rule: r})
		}
		if d != dispatchHairpin {
			continue
		}
		for _, p := range f.Hairpin {
			for i := range p.Backends {
				b := &p.Backends[i]
				all = append(all, entry{key: addrKey(b.AddrPort.Addr(), 0), pool: p, backend: b})
			}
		}
	}
	return all
}

func (f *Fragment) count(d dispatchChain) int {
	n := len(f.Entries[d])
	if d == dispatchHairpin {
		for _, p := range f.Hairpin {
			n += len(p.Backends)
		}
	}
	return n
}

// LowerService returns the Fragment of s on node. It is independent of other
// Services, and keeps pointers into s and node, which are immutable.
func LowerService(family ir.Family, node *ir.Node, s *ir.Service) *Fragment {
	l := lowering{family: family, node: node, service: s, Fragment: &Fragment{Service: s.Name}}
	l.Chains = make([]Chain, len(s.Pools), 2*len(s.Pools))
	for i := range s.Pools {
		l.Chains[i].Name = poolChain(&s.Pools[i])
	}
	for i := range s.Frontends {
		l.frontend(&s.Frontends[i])
	}
	for i := range s.Pools {
		l.pool(i)
	}
	if h := s.Health; h != nil {
		l.Health = []Rule{{
			Protocol: ir.TCP, Ports: Port(h.Port), Target: Accept,
			Comment: clean(s.Name.String() + " health check node port"), origin: &h.Origin,
		}}
	}
	return l.Fragment
}

// lowering is the state of lowering one Service. The first chains of its Fragment
// are those of the Service's pools, in the same order.
type lowering struct {
	*Fragment
	family  ir.Family
	node    *ir.Node
	service *ir.Service
	made    map[string]*ir.Frontend // the frontends for which KUBE-EXT- and KUBE-FW- chains were made
	ends    map[string]bool         // the KUBE-SEP- chains that were made
}

func (l *lowering) enter(d dispatchChain, r Rule) { l.Entries[d] = append(l.Entries[d], r) }

func (l *lowering) frontend(f *ir.Frontend) {
	text := f.Port.String()
	match := Rule{Protocol: f.Match.Protocol, Ports: Port(f.Match.Port)}.For(f)
	if !f.Match.IsNodePort() {
		match.Dst = Single(f.Match.Addr)
	}
	routes := l.usable(f.Routes)
	if len(routes) > 0 {
		entry := match
		entry.Comment, entry.Target = clean(text+labels[f.Kind]), Jump
		entry.Chain = l.target(f, routes, text, match)
		if f.Match.IsNodePort() {
			l.enter(dispatchNodePorts, entry)
		} else {
			l.enter(dispatchServices, entry)
		}
	}
	if ir.RoutesAll(routes) && len(f.SourceRanges) == 0 {
		return
	}
	// A client without a route or outside the ranges has not been translated. It
	// must not reach the node port of the same number, which is checked later,
	// unless there is no backend at all (PKT-18).
	if len(routes) > 0 && !f.Match.IsNodePort() && l.node.NodePorts.Has(f.Match.Addr, l.node.HasAddr(f.Match.Addr)) {
		stay := match
		stay.Comment, stay.Target = clean(text+" is no node port here"), Accept
		l.enter(dispatchServices, stay)
	}
	if len(routes) > 0 && len(f.SourceRanges) > 0 {
		guard := match
		guard.Comment, guard.Target = clean(text+guardComment), Drop
		l.enter(dispatchGuard, guard)
	}
	if !ir.RoutesAll(routes) {
		l.empty(f, match, text)
	}
}

// guardComment is the comment after the service port of rules that drop clients.
const guardComment = " traffic outside of loadBalancerSourceRanges"

// labels are the comments of dispatch rules after the service port.
var labels = [...]string{ir.ClusterIP: " cluster IP", ir.ExternalIP: " external IP", ir.LoadBalancer: " loadbalancer IP", ir.NodePort: ""}

// usable removes routes that no packet can use: those of pods, if pods are not
// detected.
func (l *lowering) usable(routes []ir.Route) []ir.Route {
	forPods := func(r ir.Route) bool { return r.From == ir.Pods }
	if l.node.Detector.Mode != ir.DetectNone || !slices.ContainsFunc(routes, forPods) {
		return routes
	}
	return slices.DeleteFunc(slices.Clone(routes), forPods)
}

// empty rejects new connections without a route (PKT-8), or drops them if other
// nodes have endpoints (PKT-9). The rules are in the filter table, where an
// address that was not translated is still the one that the client used.
func (l *lowering) empty(f *ir.Frontend, r Rule, text string) {
	r.origin = &f.FallbackOrigin
	switch f.Fallback {
	case ir.Reject:
		r.Target, r.Comment = Reject, clean(text+" has no endpoints")
	case ir.Drop:
		r.Target, r.Comment = Drop, clean(text+" has no local endpoints")
	default:
		return
	}
	switch {
	case f.Match.IsNodePort():
		r.DstLocal = true // regardless of nodePortAddresses (PKT-15)
		l.enter(dispatchEmptyNodePort, r)
	case f.Kind.External():
		l.enter(dispatchEmptyExternal, r)
	default:
		l.enter(dispatchEmptyCluster, r)
	}
}

// target returns the chain to which the frontend's packets are sent.
func (l *lowering) target(f *ir.Frontend, routes []ir.Route, text string, match Rule) string {
	var to string
	if pool, mark, ok := l.direct(f, routes, match); ok {
		to = l.Chains[pool].Name
		if mark != nil {
			l.Chains[pool].Rules = append(l.Chains[pool].Rules, *mark)
		}
	} else {
		to = l.chain(stemExternal, f, sameRoutes, func() []Rule { return l.routes(f, routes, text) })
	}
	if len(f.SourceRanges) == 0 {
		return to
	}
	return l.chain(stemFirewall, f, sameAdmission, func() []Rule { return sourceRanges(f, to, text) })
}

// direct reports whether a ClusterIP frontend jumps directly to the chain of one
// pool. mark is the rule at the head of that chain that marks packets for
// masquerade; nil if none.
func (l *lowering) direct(f *ir.Frontend, routes []ir.Route, match Rule) (pool int, mark *Rule, ok bool) {
	if f.Kind.External() {
		return 0, nil, false
	}
	last := routes[len(routes)-1]
	// The rule that jumps to the chain has the comment. Another one here, 288
	// bytes in the kernel, would make a change in the legacy variant a tenth
	// slower.
	match.Comment, match.Target, match.Chain = "", Jump, ChainMarkMasq
	match.origin = &last.Origin
	switch {
	case last.From != ir.Any:
		return 0, nil, false
	case len(routes) == 1 && !last.SNAT:
		return last.Pool, nil, true
	case len(routes) == 1:
		return last.Pool, &match, true
	case len(routes) == 2 && routes[0].From == ir.Pods && routes[0].Pool == last.Pool && !routes[0].SNAT && last.SNAT:
		if !match.Detect(&l.node.Detector, true) {
			return last.Pool, nil, true
		}
		return last.Pool, &match, true
	}
	return 0, nil, false
}

// Detect adds a match for the traffic of pods to r, or for all other traffic if
// not is set. It returns false if no such traffic exists, because the pods'
// network contains all addresses.
func (r *Rule) Detect(d *ir.Detector, not bool) bool {
	m := In
	switch d.Mode {
	case ir.DetectCIDR:
		m, r.Src = Src, Prefix(d.Prefix)
		if !r.Src.IsValid() {
			return !not
		}
	case ir.DetectInterface:
		r.In = d.Interface
	case ir.DetectPrefix:
		r.In = d.Interface + "+"
	}
	if not {
		r.Not |= m
	}
	return true
}

// chain returns the name of the service port's chain with that prefix, created
// with rules. The frontends of a service port share it. A frontend that differs
// from the first one gets a separate chain.
func (l *lowering) chain(stem string, f *ir.Frontend, alike func(a, b *ir.Frontend) bool, rules func() []Rule) string {
	key := portKey(&f.Port)
	name := hashed(stem, key)
	if first, ok := l.made[name]; ok {
		if alike(first, f) {
			return name
		}
		name = hashed(stem, append(key, f.Match.String()...))
	}
	ir.SetIn(&l.made, name, f)
	l.Chains = append(l.Chains, Chain{name, rules()})
	return name
}

func sameRoutes(a, b *ir.Frontend) bool {
	return slices.EqualFunc(a.Routes, b.Routes, func(x, y ir.Route) bool {
		return x.From == y.From && x.Pool == y.Pool && x.SNAT == y.SNAT
	})
}

func sameAdmission(a, b *ir.Frontend) bool {
	return sameRoutes(a, b) && slices.EqualFunc(a.SourceRanges, b.SourceRanges, func(x, y ir.SourceRange) bool {
		return x.Prefix == y.Prefix
	})
}

// routes returns the rules of a KUBE-EXT- chain. A packet never returns from a
// pool's chain, so the mark of one route does not affect the next.
func (l *lowering) routes(f *ir.Frontend, routes []ir.Route, text string) []Rule {
	rules := make([]Rule, 0, 2*len(routes))
	for i := range routes {
		route := &routes[i]
		r := Rule{Target: Jump, port: &f.Port, origin: &route.Origin}
		who := "traffic"
		switch route.From {
		case ir.Pods:
			who = "pod traffic"
			r.Detect(&l.node.Detector, false)
		case ir.ThisNode:
			who = "LOCAL traffic"
			r.SrcLocal = true
		}
		if route.SNAT {
			masq := r
			masq.Comment, masq.Chain = clean("masquerade "+who+" for "+text+" external destinations"), ChainMarkMasq
			rules = append(rules, masq)
		}
		if route.From != ir.Any {
			r.Comment = clean(who + " for " + text + " external destinations")
		}
		r.Chain = l.Chains[route.Pool].Name
		rules = append(rules, r)
	}
	return rules
}

// sourceRanges returns the rules of a KUBE-FW- chain. Admitted clients continue.
// Others return untranslated, and KUBE-PROXY-FIREWALL drops them (PKT-10).
func sourceRanges(f *ir.Frontend, to, text string) []Rule {
	rules := make([]Rule, 0, len(f.SourceRanges)+1)
	comment := clean(text + " loadbalancer IP")
	for i := range f.SourceRanges {
		s := &f.SourceRanges[i]
		rules = append(rules, Rule{
			Src: Prefix(s.Prefix), Comment: comment, Target: Jump, Chain: to, port: &f.Port, origin: &s.Origin,
		})
	}
	return append(rules, Rule{
		Comment: clean("other traffic to " + text + " will be dropped by " + ChainProxyFW), port: &f.Port, origin: &f.Origin,
	})
}

func poolChain(p *ir.Pool) string {
	stem := stemCluster
	if p.Policy == ir.Local {
		stem = stemLocal
	}
	return hashed(stem, portKey(&p.Port))
}

// pool distributes new connections among the backends. Each rule matches its
// share of the remaining packets, the last rule all.
func (l *lowering) pool(i int) {
	p, chain := &l.service.Pools[i], &l.Chains[i]
	n := len(p.Backends)
	if p.Affinity != nil {
		l.affinity(p, i)
		return
	}
	chain.Rules = slices.Grow(chain.Rules, n)
	for j := range p.Backends {
		b := &p.Backends[j]
		r := Rule{Protocol: p.Port.Protocol, Target: DNAT, To: b.AddrPort, port: &p.Port, origin: &b.Origin}
		if left := n - j; left > 1 {
			r.OneIn = uint32(left)
		}
		chain.Rules = append(chain.Rules, r)
	}
	l.Hairpin = append(l.Hairpin, p)
}

// hairpin marks a client that was translated to itself. Without masquerading, the
// client would receive its own reply from an unexpected address (PKT-7). The
// address alone decides, because such a connection requires it regardless of the
// program that translated it.
func hairpin(p *ir.Pool, b *ir.Backend) Rule {
	addr := Single(b.AddrPort.Addr())
	return Rule{Src: addr, Dst: addr, Target: Jump, Chain: ChainMarkMasq, port: &p.Port, origin: &b.Origin}
}

// affinity first searches the client in each endpoint's list, then distributes
// new clients. The endpoints' chains are those of kube-proxy.
func (l *lowering) affinity(p *ir.Pool, i int) {
	seconds := uint32(p.Affinity.Timeout.Seconds())
	n := len(p.Backends)
	key := portKey(&p.Port)
	rules := slices.Grow(l.Chains[i].Rules, 2*n)
	for j := range p.Backends {
		name := endpointChain(key, p.Backends[j].AddrPort)
		rules = append(rules, Rule{
			Recent: Recent{Op: RecentCheck, Seconds: seconds, Name: name},
			Target: Jump, Chain: name, port: &p.Port, origin: &p.Affinity.Origin,
		})
	}
	for j := range p.Backends {
		b := &p.Backends[j]
		r := Rule{Target: Jump, Chain: rules[len(rules)-n].Chain, port: &p.Port, origin: &b.Origin}
		if left := n - j; left > 1 {
			r.OneIn = uint32(left)
		}
		rules = append(rules, r)
		l.endpoint(r.Chain, p, b)
	}
	l.Chains[i].Rules = rules
}

// endpoint adds the KUBE-SEP- chain of a backend. The pools of a service port
// share it.
func (l *lowering) endpoint(name string, p *ir.Pool, b *ir.Backend) {
	if l.ends[name] {
		return
	}
	ir.SetIn(&l.ends, name, true)
	l.Chains = append(l.Chains, Chain{name, []Rule{
		{Src: Single(b.AddrPort.Addr()), Target: Jump, Chain: ChainMarkMasq, port: &p.Port, origin: &b.Origin},
		{
			Protocol: p.Port.Protocol, Recent: Recent{Op: RecentSet, Name: name},
			Target: DNAT, To: b.AddrPort, port: &p.Port, origin: &b.Origin,
		},
	}})
}
