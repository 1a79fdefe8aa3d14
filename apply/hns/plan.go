package hns

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// Plan is the difference between the state of a host and the desired state.
type Plan struct {
	desired apply.Desired
	want    *desired
	missing []netip.Addr // pods of this node that changed Services require, without an endpoint before
	err     error        // of the request for these
	// endpointNames are the addresses of the endpoints of removed or changed load balancers, by id.
	// They are recorded here since the state changes with the commit.
	endpointNames map[string]string

	// In the order of commit. Load balancers are removed before others are added, since each port is
	// unique. Endpoints are added before the load balancers that use them, and removed after those.
	removals []removal // load balancers
	replaced []replacement
	added    []*need
	changes  []change // of load balancers: modified, or replaced one by one
	news     []change
	unused   []*Endpoint
}

// removal is a load balancer to remove.
type removal struct {
	key
	have    *LoadBalancer
	service ir.Name // the Service whose new load balancers replace it; zero if none
}

// replacement is an endpoint to remove since another one requires its address.
type replacement struct {
	have *Endpoint
	need *need
}

// change is a load balancer to add, or to put in the place of another.
type change struct {
	key
	have  *LoadBalancer
	claim *claim
}

// compare returns the Plan from a state to the desired one.
func compare(s *state, w *desired) *Plan {
	p := &Plan{want: w, endpointNames: map[string]string{}}
	p.endpoints(s, w, sets.KeySet(w.endpoints).Union(sets.KeySet(s.byAddr)))
	p.balancers(s, w, sets.KeySet(w.balancers).Union(sets.KeySet(s.balancers)))
	for _, l := range s.obsoleteBalancers {
		k, _ := keyOf(l)
		p.recordNames(s, l)
		p.removals = append(p.removals, removal{key: k, have: l})
	}
	p.unused = append(p.unused, s.obsoleteEndpoints...)
	return p
}

// endpoints plans the endpoints of some addresses.
func (p *Plan) endpoints(s *state, w *desired, addrs sets.Set[netip.Addr]) {
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		have, want := s.byAddr[a], w.endpoints[a]
		switch {
		case want == nil:
			if have != nil && s.createdByProxy(have) && w.node.Of(ir.FamilyOf(a)) != nil {
				p.unused = append(p.unused, have)
			}
		case have == nil:
			if want.role() != rules.LocalPod {
				p.added = append(p.added, want)
			}
		case s.stale(w, a, have):
			// A pod of this node now has the address. The old endpoint leads nowhere, even before HNS has
			// the pod's endpoint.
			p.unused = append(p.unused, have)
		case !s.fits(w, want, have):
			p.replaced = append(p.replaced, replacement{have, want})
		}
	}
}

// replacedAddrs returns the addresses of endpoints to remove or replace.
func (p *Plan) replacedAddrs() (addrs []netip.Addr) {
	for _, r := range p.replaced {
		addrs = append(addrs, r.need.Address)
	}
	for _, e := range p.unused {
		addrs = append(addrs, e.Addrs...)
	}
	return addrs
}

// balancers plans the load balancers of some keys, after the endpoints.
func (p *Plan) balancers(s *state, w *desired, keys sets.Set[key]) {
	removed, added := p.changedEndpoints()
	recreate := map[ir.Name]bool{} // Services whose load balancers are all removed first
	var changes []change
	for _, k := range slices.SortedFunc(maps.Keys(keys), key.compare) {
		if w.node.Of(k.family) == nil {
			continue
		}
		have, want := s.balancers[k], w.claim(k)
		wish, awaits := s.balancer(w, k, want), want != nil && added.HasAny(want.HCN.HostComputeEndpoints...)
		switch {
		case wish == nil && !awaits:
			if have != nil {
				p.recordNames(s, have)
				p.removals = append(p.removals, removal{key: k, have: have})
			}
		case have == nil:
			p.news = append(p.news, change{key: k, claim: want})
		case awaits || removed.HasAny(lowered(have.HostComputeEndpoints)...) || !same(have, wish):
			p.recordNames(s, have)
			changes = append(changes, change{k, have, want})
			recreate[want.service] = recreate[want.service] || want.NoOptimize
		}
	}
	for _, c := range changes {
		if recreate[c.claim.service] || p.replaces(c.have) {
			p.removals = append(p.removals, removal{c.key, c.have, c.claim.service})
			p.news = append(p.news, change{key: c.key, claim: c.claim})
			continue
		}
		p.changes = append(p.changes, c)
	}
}

// changedEndpoints returns the ids of removed endpoints, and the references of added ones.
func (p *Plan) changedEndpoints() (removed, added sets.Set[string]) {
	removed, added = sets.Set[string]{}, sets.Set[string]{}
	for _, r := range p.replaced {
		removed.Insert(r.have.ID)
	}
	for _, e := range p.unused {
		removed.Insert(e.ID)
	}
	for _, n := range p.added {
		added.Insert(n.Ref)
	}
	return removed, added
}

// replaces reports whether a load balancer uses an endpoint that is to be replaced.
func (p *Plan) replaces(l *LoadBalancer) bool {
	return slices.ContainsFunc(p.replaced, func(r replacement) bool {
		return slices.ContainsFunc(l.HostComputeEndpoints, func(id string) bool { return strings.EqualFold(id, r.have.ID) })
	})
}

// Empty reports whether the Plan has no operations.
func (p *Plan) Empty() bool {
	return len(p.removals)+len(p.replaced)+len(p.added)+len(p.changes)+len(p.news)+len(p.unused) == 0
}

// RemovedFrontends returns the frontends that exist and that the Plan removes.
func (p *Plan) RemovedFrontends() (gone []ir.Match) {
	for _, r := range p.removals {
		if r.service == (ir.Name{}) {
			gone = append(gone, r.match)
		}
	}
	return gone
}

// Operations yields the operations in the order of commit.
func (p *Plan) Operations(yield func(apply.Operation) bool) { p.operations(false, yield) }

// Differences yields the Operations with the actual and the desired values.
func (p *Plan) Differences(yield func(apply.Operation) bool) { p.operations(true, yield) }

func (p *Plan) operations(texts bool, yield func(apply.Operation) bool) {
	lines := func(l ...string) []string {
		if !texts {
			return nil
		}
		return l
	}
	out := apply.Emitter{Yield: yield}
	recreate := map[key]*LoadBalancer{}
	for _, r := range p.removals {
		if r.service != (ir.Name{}) {
			recreate[r.key] = r.have
			continue
		}
		out.Emit(apply.Operation{Verb: apply.Remove, Object: r.object(), Have: lines(p.text(r.have))})
	}
	for _, r := range p.replaced {
		out.Emit(apply.Operation{Verb: apply.Change, Object: endpointObject(r.need.Address), Service: r.need.service, Origin: r.need.Origin,
			Have: lines(endpointText(r.have)), Want: lines(p.needText(r.need))})
	}
	for _, n := range p.added {
		out.Emit(apply.Operation{Verb: apply.Add, Object: endpointObject(n.Address), Service: n.service, Origin: n.Origin, Want: lines(p.needText(n))})
	}
	for _, c := range slices.Concat(p.changes, p.news) {
		op := apply.Operation{Verb: apply.Add, Object: c.object(), Service: c.claim.service, Origin: c.claim.Origin, Want: lines(mappingText(&c.claim.HCN) + strings.Join(c.claim.HCN.HostComputeEndpoints, " "))}
		if have := cmp.Or(c.have, recreate[c.key]); have != nil {
			op.Verb, op.Have = apply.Change, lines(p.text(have))
		}
		out.Emit(op)
	}
	for _, e := range p.unused {
		out.Emit(apply.Operation{Verb: apply.Remove, Object: endpointObject(e.Addrs[0]), Have: lines(endpointText(e))})
	}
}

func mappingText(l *rules.HostComputeLoadBalancer) string {
	m := l.PortMappings[0]
	text := fmt.Sprintf("to port %d, flags %d/%d", m.InternalPort, l.Flags, m.Flags)
	if m.DistributionType != rules.PerConnection {
		text += ", by source"
	}
	if l.SourceVIP != "" {
		text += ", from " + l.SourceVIP
	}
	return text + ": "
}

// recordNames records the addresses of the endpoints of an existing load balancer.
func (p *Plan) recordNames(s *state, l *LoadBalancer) {
	for _, id := range l.HostComputeEndpoints {
		if e := s.byID[strings.ToLower(id)]; e != nil && len(e.Addrs) > 0 {
			p.endpointNames[id] = e.Addrs[0].String()
		}
	}
}

// text describes an existing load balancer, with the addresses or ids of its endpoints.
func (p *Plan) text(l *LoadBalancer) string {
	var backends []string
	for _, id := range l.HostComputeEndpoints {
		backends = append(backends, cmp.Or(p.endpointNames[id], id))
	}
	slices.Sort(backends)
	return mappingText(&l.HostComputeLoadBalancer) + strings.Join(backends, " ")
}

func endpointText(e *Endpoint) string {
	text := "mac " + e.MAC
	if e.Provider.IsValid() {
		text += ", at " + e.Provider.String()
	}
	return text
}

func (p *Plan) needText(n *need) string {
	return strings.TrimSpace(string(n.Role) + " " + n.HCN.MacAddress)
}
