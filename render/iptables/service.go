package iptables

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Fragment is what one Service adds to a Ruleset: chains of its own in nat, and
// entries in the dispatch chains.
type Fragment struct {
	Service ir.Name
	Chains  []Chain // of table nat
	Entries [dispatchCount][]Rule
	Hairpin []*ir.Pool // whose backends have rules in dispatchHairpin
	Health  []Rule     // of filter KUBE-NODEPORTS
}

// dispatchChain is a chain in which many Services have entries.
type dispatchChain int

const (
	dispatchServices      dispatchChain = iota // nat KUBE-SERVICES: address and port to the chain that decides
	dispatchNodePorts                          // nat KUBE-NODEPORTS: port to the chain that decides
	dispatchEmptyCluster                       // filter KUBE-SERVICES: ClusterIPs that some source cannot use
	dispatchEmptyExternal                      // filter KUBE-EXTERNAL-SERVICES: the same of other addresses
	dispatchEmptyNodePort                      // filter KUBE-EXTERNAL-SERVICES: the same of node ports
	dispatchGuard                              // filter KUBE-PROXY-FIREWALL: addresses with source ranges
	dispatchHairpin                            // nat KUBE-HAIRPIN: addresses of backends
	dispatchCount
)

// table returns the place of the dispatch chain's table in Ruleset.Tables.
func (d dispatchChain) table() int {
	switch d {
	case dispatchServices, dispatchNodePorts, dispatchHairpin:
		return 1
	}
	return 0
}

// entries returns what Fragments have in a dispatch chain, under the keys of its rules.
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

// LowerService returns what s adds on node. It reads nothing of other Services,
// and keeps pointers into s and node, which never change.
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

// lowering is one Service on its way. The first chains of its Fragment are
// those of the Service's pools, in the same order.
type lowering struct {
	*Fragment
	family  ir.Family
	node    *ir.Node
	service *ir.Service
	made    map[string]*ir.Frontend // the frontend for which a KUBE-EXT- or KUBE-FW- chain was made
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
		entry.Comment, entry.Target = clean(text+label(f.Kind)), Jump
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
	// Whom no route takes, or no range admits, has been left as he was. The node
	// port of the same number, which is looked at later, is not for him, unless
	// there is no backend at all (PKT-18).
	if len(routes) > 0 && !f.Match.IsNodePort() && l.node.NodePorts.Has(f.Match.Addr, l.node.HasAddr(f.Match.Addr)) {
		stay := match
		stay.Comment, stay.Target = clean(text+" is no node port here"), Accept
		l.enter(dispatchServices, stay)
	}
	if len(routes) > 0 && len(f.SourceRanges) > 0 {
		guard := match
		guard.Comment, guard.Target = clean(text+" traffic outside of loadBalancerSourceRanges"), Drop
		l.enter(dispatchGuard, guard)
	}
	if !ir.RoutesAll(routes) {
		l.empty(f, match, text)
	}
}

// label returns what the comment of a dispatch rule says after the service port.
func label(k ir.Kind) string {
	switch k {
	case ir.ClusterIP:
		return " cluster IP"
	case ir.ExternalIP:
		return " external IP"
	case ir.LoadBalancer:
		return " loadbalancer IP"
	}
	return ""
}

// usable leaves out the routes that no packet can take: of pods, where they
// cannot be told from others.
func (l *lowering) usable(routes []ir.Route) []ir.Route {
	forPods := func(r ir.Route) bool { return r.From == ir.Pods }
	if l.node.Detector.Mode != ir.DetectNone || !slices.ContainsFunc(routes, forPods) {
		return routes
	}
	return slices.DeleteFunc(slices.Clone(routes), forPods)
}

// empty refuses new connections that no route takes (PKT-8, PKT-9). The rules
// stand in the filter table, where an address that was not translated is still
// the one that the client asked for.
func (l *lowering) empty(f *ir.Frontend, r Rule, text string) {
	r.origin = &f.ElseOrigin
	switch f.Else {
	case ir.Reject:
		r.Target, r.Comment = Reject, clean(text+" has no endpoints")
	case ir.Drop:
		r.Target, r.Comment = Drop, clean(text+" has no local endpoints")
	default:
		return
	}
	switch {
	case f.Match.IsNodePort():
		r.DstLocal = true // whatever nodePortAddresses says (PKT-15)
		l.enter(dispatchEmptyNodePort, r)
	case f.Kind.External():
		l.enter(dispatchEmptyExternal, r)
	default:
		l.enter(dispatchEmptyCluster, r)
	}
}

// target returns the chain to which the frontend's packets go.
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

// direct reports whether a ClusterIP frontend leads straight to the chain of one
// pool, and which rule at the head of that chain then marks what is to be
// masqueraded, if anything is.
func (l *lowering) direct(f *ir.Frontend, routes []ir.Route, match Rule) (pool int, mark *Rule, ok bool) {
	if f.Kind.External() {
		return 0, nil, false
	}
	last := routes[len(routes)-1]
	// The rule that leads to the chain has the comment. Another one here, 288 bytes
	// in the kernel, would make a change in the legacy variant a tenth slower.
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

// Detect makes r match the traffic of pods, or with not all other traffic. It
// is false where nothing else exists: the pods' network is all addresses.
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

// chain returns the name of the service port's chain of that stem, made by rules.
// The frontends of a service port share it. Should one of them have to be
// treated otherwise than the first, it gets its own.
func (l *lowering) chain(stem string, f *ir.Frontend, alike func(a, b *ir.Frontend) bool, rules func() []Rule) string {
	key := portKey(&f.Port)
	name := hashed(stem, key)
	if first, ok := l.made[name]; ok {
		if alike(first, f) {
			return name
		}
		name = hashed(stem, append(key, f.Match.String()...))
	}
	if l.made == nil {
		l.made = map[string]*ir.Frontend{}
	}
	l.made[name] = f
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

// routes returns the rules of a KUBE-EXT- chain. A pool's chain never gives a
// packet back, so that what a route marks is not seen by the next.
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

// sourceRanges returns the rules of a KUBE-FW- chain: those admitted go on, others
// come back untranslated and meet KUBE-PROXY-FIREWALL (PKT-10).
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

// pool spreads new connections over the backends: each rule takes its share of
// what the rules before it left, the last one all.
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

// hairpin masks a client that was translated to itself, which would otherwise
// take its own answer for a stranger's (PKT-7). The address alone decides:
// whatever program translated such a connection, it cannot do without.
func hairpin(p *ir.Pool, b *ir.Backend) Rule {
	addr := Single(b.AddrPort.Addr())
	return Rule{Src: addr, Dst: addr, Target: Jump, Chain: ChainMarkMasq, port: &p.Port, origin: &b.Origin}
}

// affinity first looks for the client in each endpoint's list, then spreads
// those that are new. The endpoints' chains are kube-proxy's.
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

// endpoint makes the KUBE-SEP- chain of a backend. The pools of a service port share it.
func (l *lowering) endpoint(name string, p *ir.Pool, b *ir.Backend) {
	if l.ends[name] {
		return
	}
	if l.ends == nil {
		l.ends = map[string]bool{}
	}
	l.ends[name] = true
	l.Chains = append(l.Chains, Chain{name, []Rule{
		{Src: Single(b.AddrPort.Addr()), Target: Jump, Chain: ChainMarkMasq, port: &p.Port, origin: &b.Origin},
		{
			Protocol: p.Port.Protocol, Recent: Recent{Op: RecentSet, Name: name},
			Target: DNAT, To: b.AddrPort, port: &p.Port, origin: &b.Origin,
		},
	}})
}
