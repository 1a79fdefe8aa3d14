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

// claims are the Services that claim each Match, in one family. kube-proxy
// assigns a contested Match at random. Here a fixed order decides (SNAP-32). A
// ClusterIP wins over a load balancer address, and that over an external IP, so
// that a chosen address never overrides an allocated one. Among equal kinds the
// older object wins, then the first by name. An author of files could choose all of
// these. There, only a ClusterIP in a ServiceCIDR wins over other claims, and otherwise
// no Service gets the Match.
type claims struct {
	only   map[ir.Match]claim    // claimed by one Service
	shared map[ir.Match]*contest // claimed by several
	moved  map[ir.Match]standing // since settle: changed matches, with their previous owners

	files bool
	cidrs []netip.Prefix // of the ServiceCIDRs

	// own are the node's addresses where node ports answer. taken are those of
	// them that a Service claims, by the node port that is hidden there.
	own   map[netip.Addr]bool
	taken map[ir.Match][]netip.Addr

	compared int // comparisons of claims, for tests
}

// claim is a Service's claim of a Match.
type claim struct {
	*entry
	kind ir.Kind
}

// standing is a snapshot of a claim. Later changes of the entry do not affect it.
type standing struct {
	claim
	created time.Time
	tied    bool // there is no owner; what names the other Services changes with each of them
}

func (c *claims) standing(m ir.Match, owner claim) standing {
	s := standing{claim: owner, tied: c.shared[m] != nil && c.shared[m].tied}
	if owner.entry != nil {
		s.created = owner.created
	}
	return s
}

// contest is a Match that several Services claim.
type contest struct {
	by    map[*entry]ir.Kind
	first claim // the owner; zero if not determined yet
	tied  bool  // nothing decides between first, the first by name, and another claim: there is no owner
}

func newClaims(in *nodeInput, node *ir.Node, services int) *claims {
	c := &claims{only: make(map[ir.Match]claim, services), shared: map[ir.Match]*contest{}, moved: map[ir.Match]standing{},
		own: map[netip.Addr]bool{}, taken: map[ir.Match][]netip.Addr{}, files: in.facts.Files}
	for _, s := range in.cidrs {
		c.cidrs = append(c.cidrs, s.CIDRs...)
	}
	for _, a := range node.Addrs {
		if node.NodePorts.Has(a, true) {
			c.own[a] = true
		}
	}
	return c
}

// order compares two claims of a Match by precedence. It returns 0 if nothing decides.
func (c *claims) order(m ir.Match, a, b claim) int {
	c.compared++
	if !c.files {
		return cmp.Or(cmp.Compare(a.kind.Rank(), b.kind.Rank()), a.age(b.entry))
	}
	rank := func(of claim) int {
		if of.kind == ir.ClusterIP && slices.ContainsFunc(c.cidrs, func(p netip.Prefix) bool { return p.Contains(m.Addr) }) {
			return 0
		}
		return 1
	}
	return cmp.Compare(rank(a), rank(b))
}

// contend compares a claim with the first one of a contest.
func (c *claims) contend(m ir.Match, in *contest, mine claim) {
	switch order := c.order(m, mine, in.first); {
	case order < 0:
		in.first, in.tied = mine, false
	case order == 0:
		if in.tied = true; mine.name.Compare(in.first.name) < 0 {
			in.first = mine
		}
	}
}

// age compares by creation, the older first. An object without creationTimestamp,
// as in files written by hand, does not exist in the cluster yet and counts as
// younger.
func (e *entry) age(o *entry) int {
	if e.created.IsZero() != o.created.IsZero() {
		return -e.created.Compare(o.created)
	}
	return cmp.Or(e.created.Compare(o.created), e.name.Compare(o.name))
}

// why returns why a claim wins over another one.
func (c claim) why(o claim) string {
	switch {
	case c.kind.Rank() != o.kind.Rank():
		return "whose " + c.kind.String() + " it is"
	case c.created.Equal(o.created):
		return "which comes first by name"
	}
	return "which is older"
}

// sameClaims reports whether two versions of a Service claim the same.
func sameClaims(a, b *ir.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Frontends, b.Frontends, func(x, y ir.Frontend) bool { return x.Kind == y.Kind && x.Match == y.Match })
}

// add adds the claims of a Service. Its cost does not depend on other claims.
func (c *claims) add(e *entry, s *ir.Service) {
	for m, kind := range matches(s) {
		mine := claim{e, kind}
		other, one := c.only[m]
		contested := c.shared[m]
		switch {
		case contested != nil:
			c.note(m, contested.first)
			if contested.by[e] = kind; contested.first.entry != nil {
				c.contend(m, contested, mine)
			}
		case one:
			c.note(m, other)
			delete(c.only, m)
			contested = &contest{by: map[*entry]ir.Kind{e: kind, other.entry: other.kind}, first: other}
			c.contend(m, contested, mine)
			c.shared[m] = contested
		default:
			c.only[m] = mine
			c.claimNode(m, claim{}, true)
		}
	}
}

// remove undoes add.
func (c *claims) remove(e *entry, s *ir.Service) {
	for m := range matches(s) {
		contested := c.shared[m]
		if contested == nil {
			c.claimNode(m, c.only[m], false)
			delete(c.only, m)
			continue
		}
		c.note(m, contested.first)
		delete(contested.by, e)
		if contested.first.entry == e || contested.tied {
			contested.first, contested.tied = claim{}, false
		}
		if len(contested.by) == 1 {
			delete(c.shared, m)
			for last, kind := range contested.by {
				c.only[m] = claim{last, kind}
			}
		}
	}
}

// matches returns the claims of a Service with their kinds.
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

// note records the owner of a Match before the first change since settle.
func (c *claims) note(m ir.Match, owner claim) {
	if _, noted := c.moved[m]; !noted {
		c.moved[m] = c.standing(m, owner)
	}
}

// claimNode records that one of the node's own addresses, which belonged to owner, is
// claimed now (on) or free.
func (c *claims) claimNode(m ir.Match, owner claim, on bool) {
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

// settle determines the owners of the matches that changed since the last call.
// It calls touched with all Services whose result may have changed, except those
// that were added or removed themselves.
func (c *claims) settle(touched func(*entry)) {
	for m, before := range c.moved {
		if now := c.standing(m, c.owner(m)); now == before && !now.tied {
			continue
		}
		c.each(m, touched)
		if c.own[m.Addr] {
			c.each(ir.Match{Protocol: m.Protocol, Port: m.Port}, touched)
		}
	}
	clear(c.moved)
}

// each calls f with all Services that claim a Match.
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

// owner returns the winning claim of a Match, or a zero claim if there is none.
func (c *claims) owner(m ir.Match) claim {
	contested := c.shared[m]
	if contested == nil {
		return c.only[m]
	}
	if contested.first.entry == nil {
		for e, kind := range contested.by {
			if mine := (claim{e, kind}); contested.first.entry == nil {
				contested.first = mine
			} else {
				c.contend(m, contested, mine)
			}
		}
	}
	if contested.tied {
		return claim{}
	}
	return contested.first
}

// conflictsPass removes the frontends of a Service that another Service owns. It
// also reports node ports that another Service's address hides: an exact address
// takes precedence over node ports, as in kube-proxy (PKT-18). Each address gets
// one finding, which names the first port and counts the others.
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
			why := f.Match.String() + " is also that of Service " + c.rival(f.Match, e).String() + ", and no file can decide between them: neither Service has it"
			if o.entry != nil {
				why = f.Match.String() + " belongs to Service " + o.name.String() + ", " + o.why(mine) + ": it is ignored here"
			}
			found.add(diag.Diagnostic{Severity: diag.Error, Code: code, Object: f.Origin.Object, Path: f.Origin.Field, Msg: why})
			continue
		}
		if f.Match.IsNodePort() {
			c.hidden(e, f, &found)
		}
	}
	if lost {
		s = s.Part(func(f *ir.Frontend) bool { return c.owner(f.Match).entry == e }, nil)
	}
	return s, found.list
}

// rival returns the first other Service in a contest without an owner.
func (c *claims) rival(m ir.Match, e *entry) (name ir.Name) {
	contested := c.shared[m]
	if contested.first.entry != e {
		return contested.first.name
	}
	for o := range contested.by {
		if o != e && (name == ir.Name{} || o.name.Compare(name) < 0) {
			name = o.name
		}
	}
	return name
}

// hidden reports the node's addresses at which a node port does not answer
// because another Service owns that address and port.
func (c *claims) hidden(e *entry, f *ir.Frontend, found *byAddress) {
	for _, a := range c.taken[f.Match] {
		o := c.owner(ir.Match{Addr: a, Protocol: f.Match.Protocol, Port: f.Match.Port})
		if o.entry == nil || o.entry == e || found.count(a, false) {
			continue
		}
		found.add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NodePortHidden, Object: f.Origin.Object, Path: f.Origin.Field,
			Msg: strings.TrimPrefix(f.Match.String(), "node:") + " at the node's address " + a.String() + " is Service " + o.name.String() +
				"'s " + o.kind.String() + ", which receives the packets to the node port there while it has endpoints"})
	}
}

// byAddress collects the findings about one Service: one for each address at
// which it lost ports, and one for each at which its node ports are hidden.
type byAddress struct {
	list diag.List
	at   map[lostAt]int // index in list
}

type lostAt struct {
	addr netip.Addr // zero for node ports
	lost bool       // lost, otherwise hidden
}

// count adds a port to the finding about an address. It returns false if no such
// finding exists; the caller then adds it.
func (b *byAddress) count(addr netip.Addr, lost bool) bool {
	k := lostAt{addr, lost}
	i, known := b.at[k]
	if known {
		b.list[i].More++
		return true
	}
	ir.SetIn(&b.at, k, len(b.list))
	return false
}

func (b *byAddress) add(d diag.Diagnostic) { b.list.Add(d) }
