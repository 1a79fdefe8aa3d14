package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// Plan is the difference between what a node has and what it should have, as
// requests in the order in which they are made. In between, where the rules of
// iptables change, is the place of their own plan.
type Plan struct {
	grow   []request // sets, then virtual servers with their real servers
	unbind []request // addresses that go
	rules  apply.Plan
	bind   []request // addresses that come: they draw traffic
	remove []request // virtual servers, then elements

	gone, wanted []ir.Match // frontends

	desired apply.Desired // in force when it is committed
	size    ir.PerFamily[sizes]
}

// sizes are how many elements sets have.
type sizes map[rules.Set]int

// policy is what Plans depend on beside the two states.
type policy struct {
	// manageAll is kube-proxy's way: virtual servers of anybody go.
	manageAll bool
	// draining are the real servers whose end somebody sees to already.
	draining func(key ir.Match, to netip.AddrPort) bool
}

// drainable reports whether the connections of a virtual server are worth waiting
// for, as kube-proxy has it (IPV-6).
func drainable(p ir.Protocol) bool { return p == ir.TCP }

// compare adds what leads from a family's state to what is wanted.
func (p *Plan) compare(have *state, want *rules.Ruleset, o policy) {
	if !have.device && !slices.ContainsFunc(p.grow, func(r request) bool { return r.op == makeDevice }) {
		p.grow = append(p.grow, request{op: makeDevice, family: want.Family})
	}
	of := sizes{}
	var gone []request
	rest := want.Elements
	for _, s := range rules.Sets() {
		n := 0
		for n < len(rest) && rest[n].Set == s {
			n++
		}
		of[s] = n
		gone = append(gone, p.compareSet(have.sets[s], want.Family, s, rest[:n])...)
		rest = rest[n:]
	}
	*p.size.At(want.Family) = of
	p.compareServers(have, want, o)
	p.compareAddresses(have, want)
	p.remove = append(p.remove, gone...)
}

// compareSet returns what goes.
func (p *Plan) compareSet(have *set, f ir.Family, s rules.Set, want []rules.Element) (gone []request) {
	switch {
	case have == nil:
		p.grow = append(p.grow, request{op: makeSet, family: f, set: s, max: rules.MaxElem(len(want))})
		have = &set{}
	case have.max > 0 && have.max < len(want):
		p.grow = append(p.grow, grown(f, s, len(want)))
	}
	wanted := make(map[rules.ElementKey]bool, len(want))
	for i := range want {
		e := &want[i]
		wanted[e.ElementKey] = true
		if !have.elements[e.ElementKey] {
			p.grow = append(p.grow, request{op: addElement, family: f, element: e})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(have.elements), rules.ElementKey.Compare) {
		if !wanted[k] {
			gone = append(gone, request{op: removeElement, family: f, element: &rules.Element{ElementKey: k}})
		}
	}
	return gone
}

func grown(f ir.Family, s rules.Set, n int) request {
	return request{op: growSet, family: f, set: s, max: rules.MaxElem(n)}
}

func (p *Plan) compareServers(have *state, want *rules.Ruleset, o policy) {
	wanted := make(map[ir.Match]bool, len(want.VirtualServers))
	for i := range want.VirtualServers {
		v := &want.VirtualServers[i]
		wanted[v.Key] = true
		p.wanted = append(p.wanted, v.Match)
		h := have.servers[v.Key]
		if h == nil {
			p.addServer(want.Family, v)
			continue
		}
		if !h.VirtualServer.Same(v) || !h.whole {
			p.grow = append(p.grow, request{op: setServer, family: want.Family, server: v, have: describe(&h.VirtualServer)})
		}
		p.compareDests(h, want.Family, v, o)
	}
	for _, key := range slices.SortedFunc(maps.Keys(have.servers), ir.Match.Compare) {
		if wanted[key] || !o.manageAll && !have.owned(key) || excluded(key.Addr, want.ExcludeCIDRs) {
			continue
		}
		p.remove = append(p.remove, request{op: removeServer, family: want.Family, server: &have.servers[key].VirtualServer})
		p.gone = append(p.gone, have.frontend(key))
	}
}

func excluded(a netip.Addr, cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (p *Plan) addServer(f ir.Family, v *rules.VirtualServer) {
	p.grow = append(p.grow, request{op: addServer, family: f, server: v})
	for i := range v.RealServers {
		p.grow = append(p.grow, request{op: addDest, family: f, server: v, dest: &v.RealServers[i]})
	}
}

func (p *Plan) compareDests(have *server, f ir.Family, v *rules.VirtualServer, o policy) {
	wanted := make(map[netip.AddrPort]bool, len(v.RealServers))
	for i := range v.RealServers {
		to := &v.RealServers[i]
		wanted[to.AddrPort] = true
		switch h, there := have.dests[to.AddrPort]; {
		case !there:
			p.grow = append(p.grow, request{op: addDest, family: f, server: v, dest: to})
		case h.weight != to.Weight || !h.plain:
			p.grow = append(p.grow, request{op: setDest, family: f, server: v, dest: to, have: h.String()})
		}
	}
	for _, to := range slices.SortedFunc(maps.Keys(have.dests), netip.AddrPort.Compare) {
		h := have.dests[to]
		switch {
		case wanted[to]:
		case h.weight > 0:
			p.letGo(f, v, to)
		case !drainable(v.Key.Protocol), h.conns == 0 && !o.draining(v.Key, to):
			p.grow = append(p.grow, request{op: removeDest, family: f, server: v, dest: &rules.RealServer{AddrPort: to}})
		}
	}
}

// letGo ends a real server: at once, or when its connections are over.
func (p *Plan) letGo(f ir.Family, v *rules.VirtualServer, to netip.AddrPort) {
	r := request{op: removeDest, family: f, server: v, dest: &rules.RealServer{AddrPort: to}}
	if drainable(v.Key.Protocol) {
		r.op, r.have = setDest, dest{weight: 1}.String()
	}
	p.grow = append(p.grow, r)
}

func (d dest) String() string { return "-w " + strconv.FormatUint(uint64(d.weight), 10) }

func (p *Plan) compareAddresses(have *state, want *rules.Ruleset) {
	addresses := want.Addresses()
	wanted := make(map[netip.Addr]bool, len(addresses))
	for i := range addresses {
		e := &addresses[i]
		wanted[e.Addr] = true
		if !have.bound[e.Addr] {
			p.bind = append(p.bind, request{op: addAddress, family: want.Family, element: e})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(have.bound), netip.Addr.Compare) {
		if !wanted[a] {
			p.unbind = append(p.unbind, request{op: removeAddress, family: want.Family, element: &rules.Element{ElementKey: rules.ElementKey{Set: rules.IPVSIPs, Addr: a}}})
		}
	}
}

// change adds what a Delta makes of a family whose sets have room for max
// elements. It reads nothing, and looks at nothing of other Services.
func (p *Plan) change(d *rules.Delta, room func(rules.Set) int) {
	of := sizes{}
	for i := range d.Added {
		s := d.Added[i].Set
		if of[s] == 0 {
			of[s] = d.Size[s]
			if max := room(s); max > 0 && max < d.Size[s] {
				p.grow = append(p.grow, grown(d.Family, s, d.Size[s]))
			}
		}
	}
	*p.size.At(d.Family) = of
	for i := range d.Added {
		e := &d.Added[i]
		p.grow = append(p.grow, request{op: addElement, family: d.Family, element: e})
		if e.Set == rules.IPVSIPs {
			p.bind = append(p.bind, request{op: addAddress, family: d.Family, element: e})
		}
	}
	for _, s := range d.Servers {
		p.changeServer(d.Family, s)
	}
	for i := range d.Removed {
		e := &d.Removed[i]
		p.remove = append(p.remove, request{op: removeElement, family: d.Family, element: e})
		if e.Set == rules.IPVSIPs {
			p.unbind = append(p.unbind, request{op: removeAddress, family: d.Family, element: e})
		}
	}
}

func (p *Plan) changeServer(f ir.Family, s rules.ServerDelta) {
	switch {
	case s.Old == nil:
		p.addServer(f, s.New)
		p.wanted = append(p.wanted, s.New.Match)
		return
	case s.New == nil:
		p.remove = append(p.remove, request{op: removeServer, family: f, server: s.Old})
		p.gone = append(p.gone, s.Old.Match)
		return
	case !s.Old.Same(s.New):
		p.grow = append(p.grow, request{op: setServer, family: f, server: s.New, have: describe(s.Old)})
	}
	p.wanted = append(p.wanted, s.New.Match)
	has := func(list []rules.RealServer) map[netip.AddrPort]bool {
		m := make(map[netip.AddrPort]bool, len(list))
		for _, r := range list {
			m[r.AddrPort] = true
		}
		return m
	}
	old, now := has(s.Old.RealServers), has(s.New.RealServers)
	for i := range s.New.RealServers {
		if to := &s.New.RealServers[i]; !old[to.AddrPort] {
			p.grow = append(p.grow, request{op: addDest, family: f, server: s.New, dest: to})
		}
	}
	for _, r := range s.Old.RealServers {
		if !now[r.AddrPort] {
			p.letGo(f, s.New, r.AddrPort)
		}
	}
}

// phases are the requests in their order; that of the rules is left out.
func (p *Plan) phases() [4]*[]request { return [4]*[]request{&p.grow, &p.unbind, &p.bind, &p.remove} }

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool {
	for _, of := range p.phases() {
		if len(*of) > 0 {
			return false
		}
	}
	return p.rules == nil || p.rules.Empty()
}

// Operations returns what changes, in the order of commit.
func (p *Plan) Operations(yield func(apply.Operation) bool) {
	p.operations(yield, false)
}

// Differences returns the Operations with what the node has and should have.
func (p *Plan) Differences(yield func(apply.Operation) bool) {
	p.operations(yield, true)
}

func (p *Plan) operations(yield func(apply.Operation) bool, texts bool) {
	on := true
	each := func(requests []request) {
		for i := 0; on && i < len(requests); i++ {
			on = yield(requests[i].operation(texts))
		}
	}
	each(p.grow)
	if p.takesOver() {
		each(p.bind)
	}
	each(p.unbind)
	if on && p.rules != nil {
		of := p.rules.Operations
		if texts {
			of = p.rules.Differences
		}
		of(func(op apply.Operation) bool { on = yield(op); return on })
	}
	if !p.takesOver() {
		each(p.bind)
	}
	each(p.remove)
}

// takesOver reports whether the rules of iptables that go lead to backends
// themselves, as those of mode iptables. Then addresses are bound before they
// go: translated packets do not care, and the others find a virtual server.
func (p *Plan) takesOver() bool { return p.rules != nil && len(p.rules.RemovedFrontends()) > 0 }

func (r *request) operation(texts bool) apply.Operation {
	op := apply.Operation{Object: r.object(), Service: r.service()}
	switch r.op {
	case setTimeouts, growSet, setServer, setDest:
		op.Verb = apply.Change
	case removeAddress, removeDest, removeServer, removeElement:
		op.Verb = apply.Remove
	}
	if op.Verb != apply.Remove {
		op.Origin = r.origin()
	}
	if !texts || op.Verb != apply.Change {
		return op
	}
	want := ""
	switch r.op {
	case setTimeouts:
		want = r.times.String()
	case growSet:
		want = "maxelem " + strconv.Itoa(r.max)
	case setServer:
		want = describe(r.server)
	case setDest:
		want = dest{weight: r.dest.Weight}.String()
	}
	if r.have != "" {
		op.Have = []string{r.have}
	}
	op.Want = []string{want}
	return op
}

// RemovedFrontends returns the frontends that the node has and will not have any longer.
func (p *Plan) RemovedFrontends() []ir.Match {
	gone := slices.Clone(p.gone)
	if p.rules != nil {
		gone = append(gone, p.rules.RemovedFrontends()...)
	}
	stay := make(map[ir.Match]bool, len(p.wanted))
	for _, m := range p.wanted {
		stay[m] = true
	}
	gone = slices.DeleteFunc(gone, func(m ir.Match) bool { return stay[m] })
	slices.SortFunc(gone, ir.Match.Compare)
	return slices.Compact(gone)
}

// Without returns the Plan without the requests about some objects. Rules of
// iptables cannot be told apart.
func (p *Plan) Without(objects map[string]bool) (apply.Plan, bool) {
	if p.rules != nil && !p.rules.Empty() {
		return nil, false
	}
	rest := *p
	for _, of := range rest.phases() {
		*of = slices.DeleteFunc(slices.Clone(*of), func(r request) bool { return objects[r.object()] })
	}
	return &rest, true
}

var _ apply.Plan = (*Plan)(nil)
