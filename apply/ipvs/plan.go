package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// Plan is the difference between the state of a node and the desired state, as requests in the
// order of execution. The plan of the iptables rules is executed between unbind and bind.
type Plan struct {
	grow   []request // add sets, then virtual servers with their real servers
	unbind []request // remove addresses
	rules  apply.Plan
	bind   []request // add addresses, which attract traffic
	remove []request // remove virtual servers, then elements

	gone, wanted []ir.Match // frontends

	desired apply.Desired // applied after the commit
	size    ir.PerFamily[sizes]
}

// sizes are the numbers of elements of sets.
type sizes map[rules.Set]int

// policy is the input of Plans besides the two states.
type policy struct {
	// manageAll removes virtual servers of every program, like kube-proxy.
	manageAll bool
	// ours are the applied virtual servers. The node may have lost the address of a node port since.
	ours map[ir.Match]bool
	// draining reports whether a drain of a real server is already tracked.
	draining func(key ir.Match, to netip.AddrPort) bool
}

// drainable reports whether connections of a protocol are drained. As in kube-proxy, only TCP is
// (IPV-6, graceful termination).
func drainable(p ir.Protocol) bool { return p == ir.TCP }

// change is the actual and the desired state of a family, complete or restricted to changes.
type change struct {
	have *state
	want *rules.Ruleset
	size sizes // final numbers of elements
	policy
}

// fullChange returns the change from a family's state to a Ruleset.
func fullChange(have *state, want *rules.Ruleset, o policy) change {
	size := sizes{}
	for _, s := range rules.Sets() {
		size[s] = 0 // empty sets are created, too
	}
	for i := range want.Elements {
		size[want.Elements[i].Set]++
	}
	return change{have, want, size, o}
}

// partialChange returns the change of Services, for sets with a capacity. The previously applied
// rules are the state.
func partialChange(l *rules.Lowerer, changes []ir.Change, room sizes) change {
	old, want := l.Change(changes)
	have, size := newState(), sizes{}
	have.device = true
	for _, s := range rules.Sets() {
		have.sets[s], size[s] = &set{max: room[s], elements: map[rules.ElementKey]*rules.Element{}}, l.Size(s)
	}
	for i := range old.Elements {
		e := &old.Elements[i]
		have.sets[e.Set].elements[e.ElementKey] = e
		if e.Set == rules.IPVSIPs {
			have.bound[e.Addr] = true
		}
	}
	for _, v := range old.VirtualServers {
		dests := make(map[netip.AddrPort]dest, len(v.RealServers))
		for _, to := range v.RealServers {
			dests[to.AddrPort] = dest{weight: to.Weight, standard: true}
		}
		have.servers[v.Key] = &server{VirtualServer: v, singleAddress: true, dests: dests}
	}
	return change{have, want, size, policy{manageAll: true}}
}

// add adds the requests for a change.
func (p *Plan) add(c change) {
	f := c.want.Family
	if !c.have.device && !slices.ContainsFunc(p.grow, func(r request) bool { return r.op == makeDevice }) {
		p.grow = append(p.grow, request{op: makeDevice, family: f})
	}
	var gone []request
	rest := c.want.Elements
	for _, s := range rules.Sets() {
		n := 0
		for n < len(rest) && rest[n].Set == s {
			n++
		}
		gone = append(gone, p.addSet(c, s, rest[:n])...)
		rest = rest[n:]
	}
	*p.size.At(f) = c.size
	p.addServers(c)
	p.addAddresses(c)
	p.remove = append(p.remove, gone...)
}

// addSet adds the new elements of a set, and returns the removal of obsolete ones.
func (p *Plan) addSet(c change, s rules.Set, want []rules.Element) (gone []request) {
	f, n, have := c.want.Family, c.size[s], c.have.sets[s]
	switch {
	case have == nil:
		p.grow = append(p.grow, request{op: makeSet, family: f, set: s, max: rules.MaxElem(n)})
		have = &set{}
	case have.max > 0 && have.max < n:
		p.grow = append(p.grow, request{op: growSet, family: f, set: s, max: rules.MaxElem(n)})
	}
	wanted := make(map[rules.ElementKey]bool, len(want))
	for i := range want {
		e := &want[i]
		wanted[e.ElementKey] = true
		if !have.has(e.ElementKey) {
			p.grow = append(p.grow, request{op: addElement, family: f, element: e})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(have.elements), rules.ElementKey.Compare) {
		if !wanted[k] {
			gone = append(gone, request{op: removeElement, family: f, element: have.element(k)})
		}
	}
	return gone
}

// element returns an element that may exist, with its Service if known.
func (s *set) element(k rules.ElementKey) *rules.Element {
	if s != nil && s.elements[k] != nil {
		return s.elements[k]
	}
	return &rules.Element{ElementKey: k}
}

func (p *Plan) addServers(c change) {
	have, want := c.have, c.want
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
		if !h.VirtualServer.Same(v) || !h.singleAddress {
			p.grow = append(p.grow, request{op: setServer, family: want.Family, server: v, have: describe(&h.VirtualServer)})
		}
		p.addDests(h, want.Family, v, c.policy)
	}
	for _, key := range slices.SortedFunc(maps.Keys(have.servers), ir.Match.Compare) {
		if wanted[key] || !c.manageAll && !c.ours[key] && !have.owned(key) || excluded(key.Addr, want.ExcludeCIDRs) {
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

func (p *Plan) addDests(have *server, f ir.Family, v *rules.VirtualServer, o policy) {
	wanted := make(map[netip.AddrPort]bool, len(v.RealServers))
	for i := range v.RealServers {
		to := &v.RealServers[i]
		wanted[to.AddrPort] = true
		switch h, exists := have.dests[to.AddrPort]; {
		case !exists:
			p.grow = append(p.grow, request{op: addDest, family: f, server: v, dest: to})
		case h.weight != to.Weight || !h.standard:
			p.grow = append(p.grow, request{op: setDest, family: f, server: v, dest: to, have: h.String()})
		}
	}
	for _, to := range slices.SortedFunc(maps.Keys(have.dests), netip.AddrPort.Compare) {
		h := have.dests[to]
		switch {
		case wanted[to]:
		case h.weight > 0:
			p.drainOrRemove(f, v, to)
		case !drainable(v.Key.Protocol), h.conns == 0 && !o.draining(v.Key, to):
			p.grow = append(p.grow, request{op: removeDest, family: f, server: v, dest: &rules.RealServer{AddrPort: to}})
		}
	}
}

// drainOrRemove removes a real server, or drains it first if its protocol allows.
func (p *Plan) drainOrRemove(f ir.Family, v *rules.VirtualServer, to netip.AddrPort) {
	r := request{op: removeDest, family: f, server: v, dest: &rules.RealServer{AddrPort: to}}
	if drainable(v.Key.Protocol) {
		r.op, r.have = setDest, dest{weight: 1}.String()
	}
	p.grow = append(p.grow, r)
}

func (d dest) String() string { return "-w " + strconv.FormatUint(uint64(d.weight), 10) }

func (p *Plan) addAddresses(c change) {
	have, want := c.have, c.want
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
			e := have.sets[rules.IPVSIPs].element(rules.ElementKey{Set: rules.IPVSIPs, Addr: a})
			p.unbind = append(p.unbind, request{op: removeAddress, family: want.Family, element: e})
		}
	}
}

// Empty reports whether the Plan has no requests.
func (p *Plan) Empty() bool {
	return len(p.grow)+len(p.unbind)+len(p.bind)+len(p.remove) == 0 && (p.rules == nil || p.rules.Empty())
}

// Operations yields the changes in the order of commit.
func (p *Plan) Operations(yield func(apply.Operation) bool) {
	p.operations(yield, false)
}

// Differences yields the Operations with the actual and the desired values.
func (p *Plan) Differences(yield func(apply.Operation) bool) {
	p.operations(yield, true)
}

func (p *Plan) operations(yield func(apply.Operation) bool, texts bool) {
	out := &apply.Emitter{Yield: yield}
	each := func(requests []request) {
		for i := 0; !out.Stopped && i < len(requests); i++ {
			out.Emit(requests[i].operation(texts))
		}
	}
	each(p.grow)
	if p.adoptsFlows() {
		each(p.bind)
	}
	each(p.unbind)
	if p.rules != nil {
		of := p.rules.Operations
		if texts {
			of = p.rules.Differences
		}
		of(func(op apply.Operation) bool { out.Emit(op); return !out.Stopped })
	}
	if !p.adoptsFlows() {
		each(p.bind)
	}
	each(p.remove)
}

// adoptsFlows reports whether the removed iptables rules translate to backends, like those of mode
// iptables. Addresses are then bound before the rules are removed: translated packets are
// unaffected, and the others find a virtual server.
func (p *Plan) adoptsFlows() bool { return p.rules != nil && len(p.rules.RemovedFrontends()) > 0 }

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

// RemovedFrontends returns the frontends that exist and that the Plan removes.
func (p *Plan) RemovedFrontends() []ir.Match {
	gone := slices.Clone(p.gone)
	if p.rules != nil {
		gone = append(gone, p.rules.RemovedFrontends()...)
	}
	gone = slices.DeleteFunc(gone, sets.New(p.wanted...).Has)
	slices.SortFunc(gone, ir.Match.Compare)
	return slices.Compact(gone)
}

var _ apply.Plan = (*Plan)(nil)
