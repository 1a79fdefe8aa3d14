package compiler

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// claims are the Services that want a Match, in one family. kube-proxy leaves
// it to chance who gets it (SNAP-32); here a ClusterIP goes before the address
// of a load balancer, and that before an external IP, so that nobody takes by
// choice what was given to others. Among equals the older object wins, and of
// two of one age the first by name.
type claims struct {
	only   map[ir.Match]claim    // wanted by one
	shared map[ir.Match]*contest // wanted by several
	moved  map[ir.Match]standing // since settle: which were contested, and who had them before

	// own are the node's addresses that node ports answer at; taken are those
	// of them that somebody claims, by the node port that is hidden there.
	own   map[netip.Addr]bool
	taken map[ir.Match][]netip.Addr

	compared int // claims held against each other, for tests
}

// claim is that a Service wants a Match.
type claim struct {
	*entry
	kind ir.Kind
}

// standing is a claim as it was, which later changes of the entry do not change.
type standing struct {
	claim
	created time.Time
}

func (c claim) standing() standing {
	if c.entry == nil {
		return standing{}
	}
	return standing{c, c.created}
}

// contest is a Match that several Services want.
type contest struct {
	by    map[*entry]ir.Kind
	first claim // the owner; zero: to be found
}

func newClaims(node *ir.Node, services int) *claims {
	c := &claims{only: make(map[ir.Match]claim, services), shared: map[ir.Match]*contest{}, moved: map[ir.Match]standing{},
		own: map[netip.Addr]bool{}, taken: map[ir.Match][]netip.Addr{}}
	for _, a := range node.Addrs {
		if node.NodePorts.Has(a, true) {
			c.own[a] = true
		}
	}
	return c
}

// order orders by who wins.
func (c claim) order(o claim) int {
	return cmp.Or(cmp.Compare(c.kind.Rank(), o.kind.Rank()), c.age(o.entry))
}

// age orders the older first. An object whose creationTimestamp is missing, as
// in files written by hand, is not there yet: it counts as younger.
func (e *entry) age(o *entry) int {
	if e.created.IsZero() != o.created.IsZero() {
		return -e.created.Compare(o.created)
	}
	return cmp.Or(e.created.Compare(o.created), e.name.Compare(o.name))
}

// why returns why a claim is stronger than another one.
func (c claim) why(o claim) string {
	switch {
	case c.kind.Rank() != o.kind.Rank():
		return "whose " + c.kind.String() + " it is"
	case c.created.Equal(o.created):
		return "which comes first by name"
	}
	return "which is older"
}

// sameClaims reports whether a Service claims the same in two versions.
func sameClaims(a, b *ir.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Frontends, b.Frontends, func(x, y ir.Frontend) bool { return x.Kind == y.Kind && x.Match == y.Match })
}

// add notes what a Service wants. Its cost does not depend on who else wants it.
func (c *claims) add(e *entry, s *ir.Service) {
	for m, kind := range matches(s) {
		mine := claim{e, kind}
		other, one := c.only[m]
		contested := c.shared[m]
		switch {
		case contested != nil:
			c.note(m, contested.first)
			if contested.by[e] = kind; contested.first.entry != nil && c.before(mine, contested.first) {
				contested.first = mine
			}
		case one:
			c.note(m, other)
			delete(c.only, m)
			contested = &contest{by: map[*entry]ir.Kind{e: kind, other.entry: other.kind}, first: other}
			if c.before(mine, other) {
				contested.first = mine
			}
			c.shared[m] = contested
		default:
			c.only[m] = mine
			c.take(m, claim{}, true)
		}
	}
}

// remove takes back what add noted.
func (c *claims) remove(e *entry, s *ir.Service) {
	for m := range matches(s) {
		contested := c.shared[m]
		if contested == nil {
			c.take(m, c.only[m], false)
			delete(c.only, m)
			continue
		}
		c.note(m, contested.first)
		delete(contested.by, e)
		if contested.first.entry == e {
			contested.first = claim{}
		}
		if len(contested.by) == 1 {
			delete(c.shared, m)
			for last, kind := range contested.by {
				c.only[m] = claim{last, kind}
			}
		}
	}
}

// matches returns what a Service wants, and as what.
func matches(s *ir.Service) func(func(ir.Match, ir.Kind) bool) {
	return func(yield func(ir.Match, ir.Kind) bool) {
		if s == nil {
			return
		}
		for i := range s.Frontends {
			if f := &s.Frontends[i]; !yield(f.Match, f.Kind) {
				return
			}
		}
	}
}

func (c *claims) before(a, b claim) bool {
	c.compared++
	return a.order(b) < 0
}

// note remembers who had a Match before the first change since settle.
func (c *claims) note(m ir.Match, owner claim) {
	if _, noted := c.moved[m]; !noted {
		c.moved[m] = owner.standing()
	}
}

// take notes that one of the node's own addresses, which was owner's, is
// somebody's now, or nobody's any more.
func (c *claims) take(m ir.Match, owner claim, on bool) {
	if !c.own[m.Addr] {
		return
	}
	c.note(m, owner)
	port := ir.Match{Protocol: m.Protocol, Port: m.Port}
	addrs := slices.DeleteFunc(c.taken[port], func(a netip.Addr) bool { return a == m.Addr })
	if on {
		addrs = append(addrs, m.Addr)
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	if len(addrs) == 0 {
		delete(c.taken, port)
	} else {
		c.taken[port] = addrs
	}
}

// settle finds who has what was contested since it was last called. touched is
// called with all whose share that may have changed, but for those that were
// added or removed themselves.
func (c *claims) settle(touched func(*entry)) {
	for m, before := range c.moved {
		if c.owner(m).standing() == before {
			continue
		}
		c.each(m, touched)
		if c.own[m.Addr] {
			c.each(ir.Match{Protocol: m.Protocol, Port: m.Port}, touched)
		}
	}
	clear(c.moved)
}

// each calls f with all who want a Match.
func (c *claims) each(m ir.Match, f func(*entry)) {
	if one, ok := c.only[m]; ok {
		f(one.entry)
	}
	if contested := c.shared[m]; contested != nil {
		for e := range contested.by {
			f(e)
		}
	}
}

// owner returns the claim that wins a Match; zero where there is none.
func (c *claims) owner(m ir.Match) claim {
	contested := c.shared[m]
	if contested == nil {
		return c.only[m]
	}
	if contested.first.entry == nil {
		for e, kind := range contested.by {
			if mine := (claim{e, kind}); contested.first.entry == nil || c.before(mine, contested.first) {
				contested.first = mine
			}
		}
	}
	return contested.first
}

// conflictsPass leaves out of a Service what belongs to another, and reports
// where another takes packets to the node that a node port would have taken:
// an exact address goes before node ports (PKT-18), in kube-proxy too. There is one
// finding for each address, which names the first port and counts the others.
func (c *claims) conflictsPass(e *entry, s *ir.Service) (*ir.Service, diag.List) {
	if s == nil || len(c.shared)+len(c.taken) == 0 {
		return s, nil
	}
	var found byAddress
	lost := false
	for i := range s.Frontends {
		f := &s.Frontends[i]
		mine := claim{e, f.Kind}
		if o := c.owner(f.Match); o.entry != e {
			lost = true
			if found.count(f.Match.Addr, true) {
				continue
			}
			code := diag.VIPClaimed
			if f.Match.IsNodePort() {
				code = diag.NodePortClaimed
			}
			found.add(diag.Diagnostic{Severity: diag.Error, Code: code, Object: f.Origin.Object, Path: f.Origin.Field,
				Msg: f.Match.String() + " belongs to Service " + o.name.String() + ", " + o.why(mine) + ": it is left out here"})
			continue
		}
		if f.Match.IsNodePort() {
			c.hidden(e, f, &found)
		}
	}
	if lost {
		s = without(s, func(f *ir.Frontend) bool { return c.owner(f.Match).entry != e })
	}
	return s, found.list
}

// hidden reports at which of the node's addresses a node port does not answer,
// since another Service has that address and port.
func (c *claims) hidden(e *entry, f *ir.Frontend, found *byAddress) {
	for _, a := range c.taken[f.Match] {
		o := c.owner(ir.Match{Addr: a, Protocol: f.Match.Protocol, Port: f.Match.Port})
		if o.entry == e || found.count(a, false) {
			continue
		}
		found.add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NodePortHidden, Object: f.Origin.Object, Path: f.Origin.Field,
			Msg: strings.TrimPrefix(f.Match.String(), "node:") + " at the node's address " + a.String() + " is Service " + o.name.String() +
				"'s " + o.kind.String() + ", which takes the packets to the node port there while it has endpoints"})
	}
}

// byAddress are the findings about one Service, one for each address at which it
// lost ports, and one for each at which its node ports are hidden.
type byAddress struct {
	list diag.List
	at   map[lostAt]int // index in list
}

type lostAt struct {
	addr netip.Addr // zero: node ports
	lost bool       // not hidden
}

// count counts another port at an address, and reports whether there is a finding about
// that address. If there is none, the caller adds it.
func (b *byAddress) count(addr netip.Addr, lost bool) bool {
	k := lostAt{addr, lost}
	i, known := b.at[k]
	if known {
		b.list[i].More++
		return true
	}
	if b.at == nil {
		b.at = map[lostAt]int{}
	}
	b.at[k] = len(b.list)
	return false
}

func (b *byAddress) add(d diag.Diagnostic) { b.list.Add(d) }
