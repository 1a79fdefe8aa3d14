package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	tables "github.com/proxyc/proxyc/render/iptables"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// fakeKernel behaves like the kernel for our requests, including rejections. TestFakeIsTheKernel
// compares it with a real one.
type fakeKernel struct {
	families   ir.PerFamily[*state]
	schedulers map[string]bool
	// refuse rejects requests; optional.
	refuse func(*request) error
	// met is called before each request; optional.
	met func(*request)
	// request wraps the execution of a request; optional. It has to call do.
	request func(do func() error) error
	made    int // number of requests
	looked  int // number of reads of the real servers of one virtual server
}

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{schedulers: map[string]bool{"rr": true, "mh": true, "lc": true}}
	k.families.IPv4, k.families.IPv6 = newState(), newState()
	for _, f := range k.families.All() {
		f.times = timeouts{tcp: 900e9, tcpFin: 120e9, udp: 300e9}
	}
	return k
}

func (k *fakeKernel) listen(context.Context, func(error)) (func(), error) { return func() {}, nil }
func (k *fakeKernel) close() error                                        { return nil }

func (s *state) clone() *state {
	c := *s
	c.servers, c.sets = map[ir.Match]*server{}, map[rules.Set]*set{}
	c.bound, c.local = maps.Clone(s.bound), maps.Clone(s.local)
	for key, v := range s.servers {
		one := *v
		one.dests = maps.Clone(v.dests)
		c.servers[key] = &one
	}
	for name, of := range s.sets {
		c.sets[name] = &set{of.max, maps.Clone(of.elements)}
	}
	return &c
}

func (k *fakeKernel) through(do func() error) error {
	if k.request == nil {
		return do()
	}
	return k.request(do)
}

func (k *fakeKernel) read(_ context.Context, f ir.Family) (s *state, err error) {
	err = k.through(func() error { s = k.families.Of(f).clone(); return nil })
	return s, err
}

func (k *fakeKernel) dests(_ context.Context, key ir.Match) (all map[netip.AddrPort]dest, err error) {
	k.looked++
	err = k.through(func() error {
		if v := k.families.Of(ir.FamilyOf(key.Addr)).servers[key]; v != nil {
			all = maps.Clone(v.dests)
		}
		return nil
	})
	return all, err
}

func (k *fakeKernel) counted(_ context.Context, f ir.Family) (all []apply.Value[ir.Match], err error) {
	for key, v := range k.families.Of(f).servers {
		all = append(all, apply.Value[ir.Match]{ID: key, Count: v.conns})
	}
	return all, nil
}

func (k *fakeKernel) do(ctx context.Context, requests []request) (failures []failure, err error) {
	for i := range requests {
		if err := ctx.Err(); err != nil {
			return failures, err
		}
		r := &requests[i]
		k.made++
		if k.met != nil {
			k.met(r)
		}
		var no error
		err := k.through(func() error { no = k.one(r); return nil })
		if err != nil {
			return failures, err
		}
		if no != nil {
			failures = append(failures, failure{i, no})
		}
	}
	return failures, nil
}

var errNoScheduler = errors.New("the kernel has none")

func (k *fakeKernel) one(r *request) error {
	s := k.families.Of(r.family)
	if k.refuse != nil {
		if err := k.refuse(r); err != nil {
			return err
		}
	}
	switch r.op {
	case makeDevice:
		if s.device {
			return errExists
		}
		k.families.IPv4.device, k.families.IPv6.device = true, true
	case setTimeouts:
		k.families.IPv4.times, k.families.IPv6.times = r.times, r.times
	case makeSet, growSet, addElement, removeElement:
		return s.elements(r)
	case addAddress, removeAddress:
		switch has := s.bound[r.element.Addr]; {
		case !s.device:
			return errMissing
		case r.op == addAddress && has:
			return errExists
		case r.op == removeAddress && !has:
			return errMissing
		}
		if r.op == addAddress {
			s.bound[r.element.Addr] = true
		} else {
			delete(s.bound, r.element.Addr)
		}
	default:
		return k.balance(s, r)
	}
	return nil
}

func (s *state) elements(r *request) error {
	if r.op == makeSet {
		if s.sets[r.set] != nil {
			return errExists
		}
		most := r.max
		if r.set.Type() == rules.BitmapPort {
			most = 0
		}
		s.sets[r.set] = &set{most, map[rules.ElementKey]*rules.Element{}}
		return nil
	}
	name := r.set
	if r.element != nil {
		name = r.element.Set
	}
	of := s.sets[name]
	switch {
	case of == nil:
		return errMissing
	case r.op == growSet:
		of.max = r.max
	case r.op != growSet && name.Type() == rules.HashIPPortNet && r.element.Source.Bits() == 0:
		return errors.New("the value of the CIDR parameter is invalid")
	case r.op == removeElement: // without NLM_F_EXCL a missing one is no error
		delete(of.elements, r.element.ElementKey)
	case of.max > 0 && len(of.elements) == of.max && !of.has(r.element.ElementKey):
		return fmt.Errorf("%w: the set is full", errEnvironment)
	default:
		of.elements[r.element.ElementKey] = nil
	}
	return nil
}

func (k *fakeKernel) balance(s *state, r *request) error {
	v := s.servers[r.server.Key]
	if r.op == addServer || r.op == setServer {
		switch {
		case r.op == addServer && v != nil:
			return errExists
		case r.op == setServer && v == nil:
			return errMissing
		case !k.schedulers[r.server.Scheduler]:
			return errNoScheduler
		}
		if v == nil {
			v = &server{dests: map[netip.AddrPort]dest{}}
			s.servers[r.server.Key] = v
		}
		v.singleAddress = true
		v.VirtualServer = rules.VirtualServer{Key: r.server.Key, Scheduler: r.server.Scheduler, Flags: r.server.Flags, Timeout: r.server.Timeout}
		return nil
	}
	if v == nil {
		return errMissing
	}
	if r.op == removeServer {
		delete(s.servers, r.server.Key)
		return nil
	}
	to := r.dest.AddrPort
	have, there := v.dests[to]
	switch {
	case r.op == addDest && there:
		return errExists
	case r.op != addDest && !there:
		return errMissing
	case r.op == removeDest:
		delete(v.dests, to)
	default:
		v.dests[to] = dest{weight: r.dest.Weight, conns: have.conns, standard: true}
	}
	return nil
}

// connect sets the connections of a real server.
func (k *fakeKernel) connect(key ir.Match, to netip.AddrPort, conns uint32) {
	v := k.families.Of(ir.FamilyOf(key.Addr)).servers[key]
	d := v.dests[to]
	d.conns = conns
	v.dests[to] = d
}

// fakeTables is a fake of the iptables rules.
type fakeTables struct {
	have, found tables.Rulesets
	applied     apply.Applied
	refuse      map[ir.Name]bool
	err         error
	met         func()
}

type tablesPlan struct {
	have, want tables.Rulesets
	programs   ir.Programs
	full       bool
	changes    ir.Changes
}

func textOf(of tables.Rulesets) (s string) {
	for _, o := range of.Outputs() {
		w := &writer{}
		o.Write(w)
		s += string(*w)
	}
	return s
}

type writer []byte

func (w *writer) Write(b []byte) (int, error) { *w = append(*w, b...); return len(b), nil }

func (t *fakeTables) Read(context.Context, ir.Programs) error { t.found = t.have; return t.err }
func (t *fakeTables) Plan(want ir.Programs) apply.Plan {
	return &tablesPlan{have: t.found, want: rules.LowerRules(want), programs: want, full: true}
}
func (t *fakeTables) PlanChanges(changes ir.Changes) apply.Plan {
	var after apply.Applied
	after.Replace(t.applied.Programs())
	after.Change(changes)
	return &tablesPlan{have: rules.LowerRules(t.applied.Programs()), want: rules.LowerRules(after.Programs()), changes: changes}
}
func (t *fakeTables) Commit(_ context.Context, p apply.Plan) (apply.Result, error) {
	plan := p.(*tablesPlan)
	if t.met != nil {
		t.met()
	}
	if t.err != nil {
		return apply.Result{}, t.err
	}
	var result apply.Result
	for name := range t.refuse {
		result.Refused = append(result.Refused, apply.Refusal{Service: name, Reason: errors.New("no such match")})
	}
	t.have = plan.want
	if plan.full {
		t.applied.Replace(plan.programs)
	} else {
		t.applied.Change(plan.changes)
	}
	return result, nil
}
func (t *fakeTables) Applied() *apply.Applied                        { return &t.applied }
func (t *fakeTables) Drift(context.Context) (<-chan struct{}, error) { return nil, nil }
func (t *fakeTables) Close() error                                   { return nil }

func (p *tablesPlan) Empty() bool { return textOf(p.have) == textOf(p.want) }
func (p *tablesPlan) Operations(yield func(apply.Operation) bool) {
	if !p.Empty() {
		yield(apply.Operation{Verb: apply.Change, Object: "iptables"})
	}
}
func (p *tablesPlan) Differences(yield func(apply.Operation) bool) { p.Operations(yield) }
func (p *tablesPlan) RemovedFrontends() (gone []ir.Match) {
	for _, r := range ir.Present(p.have.PerFamily) {
		gone = append(gone, r.Frontends()...)
	}
	return gone
}

// difference describes the difference between a kernel and Programs; "" if there is none.
func (k *fakeKernel) difference(want ir.Programs, tables *fakeTables) string {
	if have, want := textOf(tables.have), textOf(rules.LowerRules(want)); have != want {
		return "the rules differ"
	}
	for f, p := range ir.Present(want) {
		r, s := rules.Lower(p), k.families.Of(f)
		n := 0
		for _, of := range s.sets {
			n += len(of.elements)
		}
		for i := range r.Elements {
			if e := &r.Elements[i]; !s.sets[e.Set].has(e.ElementKey) {
				return "lacks " + e.Set.Name(f) + " " + e.String()
			}
		}
		if n != len(r.Elements) {
			return fmt.Sprintf("%d elements, want %d", n, len(r.Elements))
		}
		if len(s.bound) != len(r.Addresses()) {
			return fmt.Sprintf("%d addresses, want %d", len(s.bound), len(r.Addresses()))
		}
		own := 0
		for key := range s.servers {
			if s.owned(key) {
				own++
			}
		}
		if own != len(r.VirtualServers) {
			return fmt.Sprintf("%d virtual servers, want %d", own, len(r.VirtualServers))
		}
		for i := range r.VirtualServers {
			v := &r.VirtualServers[i]
			have := s.servers[v.Key]
			if have == nil || !have.Same(v) {
				return "virtual server " + v.Key.String()
			}
			serving := 0
			for to, d := range have.dests {
				if d.weight > 0 {
					serving++
					if !slices.ContainsFunc(v.RealServers, func(r rules.RealServer) bool { return r.AddrPort == to }) {
						return v.Key.String() + ": serves " + to.String()
					}
				} else if d.conns == 0 {
					return v.Key.String() + ": drains without connections " + to.String()
				}
			}
			if serving != len(v.RealServers) {
				return fmt.Sprintf("%s: %d real servers, want %d", v.Key, serving, len(v.RealServers))
			}
		}
	}
	return ""
}
