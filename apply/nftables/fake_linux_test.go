package nftables

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// fake simulates the nf_tables of a kernel for our batches. It decodes their bytes, and rejects
// what the kernel rejects, for the same reason.
type fake map[ir.Family]*fakeTable

type fakeTable struct {
	chains map[string]*rules.Chain
	sets   map[string]*fakeSet
}

type fakeSet struct {
	rules.Set
	elements map[rules.Key]rules.Element
}

func (f fake) clone() fake {
	c := fake{}
	for family, t := range f {
		n := &fakeTable{map[string]*rules.Chain{}, map[string]*fakeSet{}}
		for name, ch := range t.chains {
			copied := *ch
			n.chains[name] = &copied
		}
		for name, s := range t.sets {
			n.sets[name] = &fakeSet{s.Set, maps.Clone(s.elements)}
		}
		c[family] = n
	}
	return c
}

// send commits a batch completely, or returns the reasons for its rejection.
func (f fake) send(batch []conn.Message) (all []conn.Refusal) {
	next := f.clone()
	for i := range batch {
		if err := next.message(&batch[i]); err != nil {
			all = append(all, conn.Refusal{Index: i, Err: err})
		}
	}
	if len(all) == 0 {
		clear(f)
		maps.Copy(f, next)
	}
	return all
}

func (f fake) message(m *conn.Message) error {
	family := ir.IPv4
	if m.Data()[0] == unix.NFPROTO_IPV6 {
		family = ir.IPv6
	}
	b := m.Data()[codec.NfgenHead:]
	a, err := codec.Parse(b)
	if err != nil {
		return err
	}
	t := f[family]
	switch m.Type {
	case unix.NFT_MSG_NEWTABLE:
		if t != nil {
			return exists(m)
		}
		f[family] = &fakeTable{map[string]*rules.Chain{}, map[string]*fakeSet{}}
		return nil
	case unix.NFT_MSG_DELTABLE:
		if t == nil {
			return unix.ENOENT
		}
		delete(f, family)
		return nil
	}
	if t == nil {
		return unix.ENOENT
	}
	switch m.Type {
	case unix.NFT_MSG_NEWCHAIN:
		return t.newChain(m, a)
	case unix.NFT_MSG_DELCHAIN:
		return t.delChain(a.Text(unix.NFTA_CHAIN_NAME))
	case unix.NFT_MSG_NEWRULE:
		return t.newRule(a, family)
	case unix.NFT_MSG_DELRULE:
		c := t.chains[a.Text(unix.NFTA_RULE_CHAIN)]
		if c == nil {
			return unix.ENOENT
		}
		c.Rules = nil
		return nil
	case unix.NFT_MSG_NEWSET:
		s, _ := codec.DecodeSet(a, family)
		if t.sets[s.Name] != nil {
			return exists(m)
		}
		if !m.Create { // it changes the size of one
			return unix.ENOENT
		}
		t.sets[s.Name] = &fakeSet{s, map[rules.Key]rules.Element{}}
		return nil
	case unix.NFT_MSG_DELSET:
		name := a.Text(unix.NFTA_SET_NAME)
		switch {
		case t.sets[name] == nil:
			return unix.ENOENT
		case t.looksUp(name):
			return unix.EBUSY
		}
		delete(t.sets, name)
		return nil
	}
	return t.elements(m, a, b, family)
}

// exists returns the answer to a message that creates an existing object.
func exists(m *conn.Message) error {
	if m.Create {
		return unix.EEXIST
	}
	return nil
}

func (t *fakeTable) newChain(m *conn.Message, a codec.Fields) error {
	c, _, err := codec.DecodeChain(a)
	if err != nil {
		return err
	}
	if t.chains[c.Name] != nil {
		return exists(m)
	}
	t.chains[c.Name] = &c
	return nil
}

func (t *fakeTable) delChain(name string) error {
	if t.chains[name] == nil {
		return unix.ENOENT
	}
	gone := t.chains[name]
	delete(t.chains, name)
	if t.jumpsTo(name) {
		t.chains[name] = gone
		return unix.EBUSY
	}
	return nil
}

func (t *fakeTable) newRule(a codec.Fields, f ir.Family) error {
	name, r := codec.DecodeRule(a, f)
	c := t.chains[name]
	if c == nil {
		return unix.ENOENT
	}
	for _, s := range r.Stmts {
		if v, ok := s.(rules.Verdict); ok && v.Chain != "" && t.chains[v.Chain] == nil {
			return unix.ENOENT
		}
		if set := setOf(s); set != "" && t.sets[set] == nil {
			return unix.ENOENT
		}
	}
	c.Rules = append(slices.Clone(c.Rules), r)
	return nil
}

// setOf returns the set that a statement names.
func setOf(s rules.Stmt) string {
	switch s := s.(type) {
	case rules.MatchSet:
		return s.Set
	case rules.LookupVerdict:
		return s.Map
	case rules.LookupDNAT:
		return s.Map
	case rules.Update:
		return s.Map
	}
	return ""
}

func (t *fakeTable) looksUp(set string) bool {
	for _, c := range t.chains {
		for _, r := range c.Rules {
			if slices.ContainsFunc(r.Stmts, func(s rules.Stmt) bool { return setOf(s) == set }) {
				return true
			}
		}
	}
	return false
}

func (t *fakeTable) jumpsTo(chain string) bool {
	for _, c := range t.chains {
		for _, r := range c.Rules {
			if slices.ContainsFunc(r.Stmts, func(s rules.Stmt) bool { v, ok := s.(rules.Verdict); return ok && v.Chain == chain }) {
				return true
			}
		}
	}
	for _, s := range t.sets {
		for _, e := range s.elements {
			if e.Verdict.Chain == chain {
				return true
			}
		}
	}
	return false
}

// elements adds or removes the elements in a message, up to the first invalid one.
func (t *fakeTable) elements(m *conn.Message, a codec.Fields, b []byte, f ir.Family) error {
	s := t.sets[a.Text(unix.NFTA_SET_ELEM_LIST_SET)]
	if s == nil {
		return unix.ENOENT
	}
	if m.Type == unix.NFT_MSG_DELSETELEM && a[unix.NFTA_SET_ELEM_LIST_ELEMENTS] == nil {
		clear(s.elements)
		return nil
	}
	some := s.Set
	if err := decodeMessage(b, &some, f); err != nil {
		return err
	}
	for _, e := range some.Elements {
		_, there := s.elements[e.Key]
		switch {
		case m.Type == unix.NFT_MSG_DELSETELEM && !there:
			return unix.ENOENT
		case m.Type == unix.NFT_MSG_DELSETELEM:
			delete(s.elements, e.Key)
		case e.Verdict.Chain != "" && t.chains[e.Verdict.Chain] == nil:
			return unix.ENOENT
		case there:
			return unix.EEXIST
		case s.Interval && s.overlaps(e.Key):
			return unix.EEXIST
		default:
			s.elements[e.Key] = e
		}
	}
	return nil
}

// decodeMessage decodes the elements of a message that contains both edges of each interval.
func decodeMessage(b []byte, s *rules.Set, f ir.Family) error {
	if !s.Interval {
		return codec.DecodeElements(b, s, f, &codec.Comments{})
	}
	edges, err := codec.DecodeEdges(b, f, nil)
	for len(edges) > 0 {
		n := 1
		if len(edges) > 1 && edges[1].End {
			n = 2
		}
		of, strays := codec.Intervals(edges[:n:n])
		s.Elements, s.Foreign = append(s.Elements, of...), s.Foreign || strays
		edges = edges[n:]
	}
	return err
}

// overlaps reports whether a key of an interval set overlaps an existing one.
func (s *fakeSet) overlaps(k rules.Key) bool {
	net := func(k rules.Key) netip.Prefix { return netip.PrefixFrom(k.Addr2, int(k.Bits)) }
	for o := range s.elements {
		if o.Addr == k.Addr && o.Proto == k.Proto && o.Port == k.Port && net(o).Overlaps(net(k)) {
			return true
		}
	}
	return false
}

// read returns the tables as a reader would.
func (f fake) read() (tables rules.Tables) {
	for family, t := range f {
		r := &rules.Ruleset{Family: family, Exists: true}
		for _, c := range t.chains {
			r.Chains = append(r.Chains, *c)
		}
		for _, s := range t.sets {
			set := s.Set
			set.Elements = slices.Collect(maps.Values(s.elements))
			r.Sets = append(r.Sets, set)
		}
		sortSets(r.Sets)
		*tables.At(family) = r
	}
	return tables
}

// commit executes a Plan that the kernel should accept.
func (f fake) commit(t *testing.T, p *Plan) {
	t.Helper()
	if no := f.send(newBatch(p, nil).messages); len(no) > 0 {
		t.Fatalf("%d refused: %v", len(no), no[0])
	}
}

func (f fake) holds(t *testing.T, want rules.Tables) {
	t.Helper()
	if d := cmp.Diff(lines(t, want), lines(t, f.read())); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	if p := newPlan(f.read(), want); !p.Empty() {
		t.Fatalf("still to do: %v", slices.Collect(p.Operations))
	}
}

// TestHistories is TestStateHoldsHistories and TestKernelHoldsHistories without a kernel. Plans by
// changes and plans by reading are accepted, and have the same result.
func TestHistories(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 2))
		as := func(p *ir.Program) *ir.Program { return p }
		if seed%2 == 1 {
			as = oneService
		}
		byState, byReading := fake{}, fake{}
		empty := both(func(f ir.Family) *ir.Program { return &ir.Program{Family: f, Node: nftest.Node(f)} })
		byState.commit(t, newPlan(rules.Tables{}, empty))
		states := map[ir.Family]*rules.Lowerer{ir.IPv4: rules.NewLowerer(ir.IPv4), ir.IPv6: rules.NewLowerer(ir.IPv6)}
		programs := map[ir.Family]*ir.Program{}
		for step := range 20 {
			plan := &Plan{}
			for _, f := range ir.Families() {
				now := vary(nftest.Program(f), random)
				now.Node = nftest.Node(f)
				if step%3 > 0 { // most of the time one Service changes, or few
					now = some(programs[f], now, random)
				}
				*plan.families.At(f) = update(states[f], &now.Node, changes(as(programs[f]), as(now))...)
				programs[f] = now
			}
			want := lower(as(programs[ir.IPv4]), as(programs[ir.IPv6]))
			byState.commit(t, plan)
			byState.holds(t, want)
			byReading.commit(t, newPlan(byReading.read(), want))
			byReading.holds(t, want)
		}
	}
}

// oneService returns a Program with the Services of another one as ports of a single Service.
func oneService(p *ir.Program) *ir.Program {
	if p == nil {
		return nil
	}
	whole := &ir.Service{Name: ir.Name{Namespace: "ns", Name: "all"}, Origin: ir.Origin{Object: "Service ns/all"}}
	for i := range p.Services {
		s := &p.Services[i]
		rename := func(port *ir.ServicePort) { port.Service, port.Port = whole.Name, s.Name.Name }
		for _, f := range s.Frontends {
			f.Routes = slices.Clone(f.Routes)
			for j := range f.Routes {
				f.Routes[j].Pool += len(whole.Pools)
			}
			rename(&f.Port)
			whole.Frontends = append(whole.Frontends, f)
		}
		for _, pool := range s.Pools {
			rename(&pool.Port)
			whole.Pools = append(whole.Pools, pool)
		}
		whole.Draining = append(whole.Draining, s.Draining...)
	}
	slices.SortFunc(whole.Frontends, func(a, b ir.Frontend) int { return a.Compare(&b) })
	one := *p
	one.Services = []ir.Service{*whole}
	return &one
}

// The fake behaves like the kernel: both accept the same batches, and reject the same messages of
// others for the same reason. The batches are those of random histories, with messages omitted,
// repeated or swapped.
func TestFakeMatchesKernel(t *testing.T) {
	random := rand.New(rand.NewPCG(applytest.Seed(t), 3))
	n := newNode(t)
	f := fake{}
	reasons := map[error]int{}
	for step := range 150 {
		want := both(func(f ir.Family) *ir.Program { return vary(nftest.Program(f), random) })
		if random.IntN(3) == 0 {
			spoilRanges(want.IPv4)
		}
		b := newBatch(newPlan(f.read(), want), nil)
		if m := b.messages; len(m) > 2 && step%3 > 0 {
			i, j := random.IntN(len(m)), random.IntN(len(m))
			switch random.IntN(3) {
			case 0:
				b.messages, b.purposes = slices.Delete(m, i, i+1), slices.Delete(b.purposes, i, i+1)
			case 1:
				twin := m[j]
				twin.Raw = slices.Clone(twin.Raw)
				b.messages, b.purposes = slices.Insert(m, i, twin), slices.Insert(b.purposes, i, b.purposes[j])
			default:
				m[i], m[j] = m[j], m[i]
				b.purposes[i], b.purposes[j] = b.purposes[j], b.purposes[i]
			}
		}
		kernels, err := n.writer.conn.Send(t.Context(), b.messages)
		if err != nil {
			t.Fatal(err)
		}
		ours := f.send(b.messages)
		for _, r := range ours {
			reasons[r.Err]++
		}
		if d := cmp.Diff(verdicts(b, kernels), verdicts(b, ours)); d != "" {
			t.Fatalf("step %d: refused (-by the kernel +by the fake):\n%s", step, d)
		}
		have, err := n.reader.read(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(lines(t, have), lines(t, f.read())); d != "" {
			t.Fatalf("step %d (-kernel +fake):\n%s", step, d)
		}
	}
	t.Log(reasons)
	for _, reason := range []error{unix.ENOENT, unix.EEXIST, unix.EBUSY} {
		if reasons[reason] == 0 {
			t.Errorf("nothing was refused with %v", reason)
		}
	}
}

// spoilRanges makes two source ranges of one list overlap.
func spoilRanges(r *rules.Ruleset) {
	s := &r.Sets[len(r.Sets)-1]
	if rules.IsSources(s.Name) && s.Elements[0].Key.Bits < 32 {
		e := s.Elements[0]
		e.Key.Bits++
		s.Elements = append(slices.Clone(s.Elements), e)
	}
}

// verdicts returns the indexes of the rejected messages, with the reasons.
func verdicts(b *batch, all []conn.Refusal) (out []string) {
	for _, r := range all {
		reason, _ := errors.AsType[unix.Errno](r.Err)
		out = append(out, strings.Join([]string{b.purposes[r.Index].object, reason.Error(), strconv.Itoa(r.Index)}, " "))
	}
	return out
}
