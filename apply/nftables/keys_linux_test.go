package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// requireCounts skips the test if the kernel does not report the number of elements of a set.
func requireCounts(t testing.TB) {
	t.Helper()
	if !linuxAtLeast(6, 17) {
		t.Skip("Linux reports the number of elements from 6.17 on")
	}
}

// requestsOf returns the number of requests of a reading.
func (n node) requestsOf(t *testing.T, read func() error) (requests int) {
	t.Helper()
	n.reader.conn.Request = func(_ []conn.Message, do func() error) error { requests++; return do() }
	defer func() { n.reader.conn.Request = conn.Direct }()
	if err := read(); err != nil {
		t.Fatal(err)
	}
	return requests
}

// Large sets are dumped only if they differ from what is expected. The reading of a family starts
// with its tables, objects, flowtables and sets, and ends with its chains and rules.
func TestLargeSetIsNotDumped(t *testing.T) {
	requireCounts(t)
	n := newNode(t)
	n.reader.lookupFrom = 1000
	program, want := large(1500)
	if _, err := n.Commit(t.Context(), newPlan(rules.Tables{}, want)); err != nil {
		t.Fatal(err)
	}
	largeSets := 0
	for i := range want.IPv4.Sets {
		if len(want.IPv4.Sets[i].Elements) >= n.reader.lookupFrom {
			largeSets++
		}
	}
	if largeSets < 3 {
		t.Fatalf("%d large sets show little", largeSets)
	}
	has := withIPv6(program)
	reads := func(expect ir.Programs) int {
		return n.requestsOf(t, func() error {
			have, err := n.reader.readExpected(t.Context(), expect)
			if err == nil && !planFor(have, has, "").Empty() {
				t.Error("the tables are not what is wanted")
			}
			for i := range have.IPv4.Sets {
				if e := len(have.IPv4.Sets[i].Elements); e > 0 && expect == has {
					t.Errorf("%s: %d elements are held", have.IPv4.Sets[i].Name, e)
				}
			}
			return err
		})
	}
	wanted := has
	dumped := reads(ir.Programs{})
	// In place of a dump the elements, as one request, and the generation.
	if got := reads(wanted); got != dumped+largeSets {
		t.Errorf("%d requests, want %d: %d without an expectation, and one more for each of %d sets", got, dumped+largeSets, dumped, largeSets)
	}
	n.reader.lookupFrom = 1_000_000
	if got := reads(wanted); got != dumped {
		t.Errorf("small sets: %d requests, want %d", got, dumped)
	}
}

// Reading by keys returns the same as a dump, however the node differs from what is expected.
func TestReadByKeysIsReadByDump(t *testing.T) {
	requireCounts(t)
	n := newNode(t)
	n.reader.lookupFrom = 1
	o := n.other(t)
	program, want := large(40)
	if _, err := n.Commit(t.Context(), newPlan(rules.Tables{}, want)); err != nil {
		t.Fatal(err)
	}
	byKeys := map[bool]int{}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 120 {
		s := mapsOf(want.IPv4)[random.IntN(len(mapsOf(want.IPv4)))]
		what, messages := differ(random, s)
		if len(messages) > 0 {
			if err := o.commit(t.Context(), messages...); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		byKeys[n.compareReadings(t, withIPv6(program), want, s.Name)]++
		if t.Failed() {
			t.Fatalf("step %d: %s", step, what)
		}
		have, err := n.Tables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := newPlan(have, want); p.Empty() == (len(messages) > 0) {
			t.Fatalf("step %d: %s: nothing to do is %t", step, what, p.Empty())
		} else if _, err := n.Commit(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if byKeys[true] < 20 || byKeys[false] < 20 {
		t.Errorf("by keys, or not: %v", byKeys)
	}
}

// A Plan is correct even if other Programs were expected when the node was read.
func TestReadForOtherPrograms(t *testing.T) {
	n := newNode(t)
	n.reader.lookupFrom = 1
	p, tables := large(40)
	if _, err := n.Commit(t.Context(), newPlan(rules.Tables{}, tables)); err != nil {
		t.Fatal(err)
	}
	has := ir.NewPrograms(p, &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)})
	fewer := *p
	fewer.Services = p.Services[1:]
	other := ir.NewPrograms(&fewer, has.IPv6)
	for _, read := range []ir.Programs{has, other, {}} {
		if err := n.Read(t.Context(), read); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if !n.Plan(has).Empty() {
				t.Error("the tables are not what is wanted")
			}
			if len(n.Plan(other).RemovedFrontends()) == 0 {
				t.Error("a Service stays that is not wanted")
			}
		}
		if err := n.Read(t.Context(), read); err != nil {
			t.Fatal(err)
		}
		if len(n.Plan(other).RemovedFrontends()) == 0 {
			t.Error("a Service stays that is not wanted")
		}
	}
}

// withIPv6 returns the Programs of both families that large uses.
func withIPv6(p *ir.Program) ir.Programs {
	return ir.NewPrograms(p, &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)})
}

// compareReadings reads everything by dump and by keys, and compares the results. It reports
// whether lookups were sufficient for a set.
func (n node) compareReadings(t *testing.T, programs ir.Programs, want rules.Tables, name string) (byKeys bool) {
	t.Helper()
	whole, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	fewer := programs // for which the node was not read
	fewer.IPv4 = &ir.Program{Family: ir.IPv4, Node: fewer.IPv4.Node, Services: fewer.IPv4.Services[len(fewer.IPv4.Services)/2:]}
	from := n.reader.lookupFrom
	for _, keyed := range []int{1, 1_000_000} {
		n.reader.lookupFrom = keyed
		got, err := n.reader.readExpected(t.Context(), programs)
		n.reader.lookupFrom = from
		if err != nil {
			t.Fatal(err)
		}
		for what, wanted := range map[string]ir.Programs{"as expected": programs, "fewer": fewer} {
			if d := cmp.Diff(unowned(newPlan(whole, rules.LowerAll(wanted))), unowned(planFor(got, wanted, ""))); d != "" {
				t.Errorf("%s, keys from %d: all read (-), what is not expected read (+):\n%s", what, keyed, d)
			}
		}
	}
	generation, err := n.reader.conn.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := setsByName(whole.IPv4)[name]
	empty := *of
	empty.Elements, empty.Foreign = nil, false
	id, _ := fixedSet(name)
	e := &expected{programs: programs, generation: generation}
	all := n.reader.readByKey(t.Context(), ir.IPv4, &empty, n.count(t, name), e)
	if got := len(empty.Elements) + met(e.ofFamily(ir.IPv4)[id]); all && (got != len(of.Elements) || of.Foreign) {
		t.Errorf("%s: %d elements by keys, %d by dump, strays %t", name, got, len(of.Elements), of.Foreign)
	}
	return all
}

// met counts the marks.
func met(m setFingerprints) (n int) {
	for _, there := range m.present {
		if there {
			n++
		}
	}
	return n
}

// unowned is allOperations without the Services of removed objects. Expected elements name theirs,
// others may not.
func unowned(p *Plan) (all []string) {
	for op := range p.Differences {
		if op.Verb == apply.Remove {
			op.Service = ir.Name{}
		}
		all = append(all, fmt.Sprint(op))
	}
	slices.Sort(all)
	return all
}

// allOperations returns the operations of a Plan, sorted.
func allOperations(p *Plan) (all []string) {
	for op := range p.Differences {
		all = append(all, fmt.Sprint(op))
	}
	slices.Sort(all)
	return all
}

// count returns the kernel's number of elements in a set.
func (n node) count(t testing.TB, name string) (count int) {
	t.Helper()
	if _, err := n.reader.conn.List(t.Context(), unix.NFT_MSG_GETSET, unix.NFPROTO_IPV4, codec.EncodeTable(rules.Table), func(a codec.Fields) error {
		if s, _ := codec.DecodeSet(a, ir.IPv4); s.Name == name {
			count = codec.ElementCount(a)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return count
}

// mapsOf returns the sets with elements that are read by key.
func mapsOf(r *rules.Ruleset) (all []*rules.Set) {
	for i := range r.Sets {
		if s := &r.Sets[i]; len(s.Elements) > 1 && !s.Interval && s.Timeout == 0 {
			all = append(all, s)
		}
	}
	return all
}

// differ returns messages that change a set, or none.
func differ(random *rand.Rand, s *rules.Set) (what string, messages []conn.Message) {
	one, two := random.IntN(len(s.Elements)), random.IntN(len(s.Elements)-1)
	if two >= one {
		two++
	}
	b := &batch{}
	c := &change{family: ir.IPv4}
	remove := func(i int) { b.elements(c, unix.NFT_MSG_DELSETELEM, s, s.Elements[i:i+1], false) }
	add := func(e rules.Element) { b.elements(c, unix.NFT_MSG_NEWSETELEM, s, []rules.Element{e}, false) }
	stranger := s.Elements[one]
	stranger.Key.Addr = netip.MustParseAddr("192.0.2.77")
	stranger.Key.Port = 7
	changed := s.Elements[one]
	switch kind := random.IntN(8); {
	case kind == 0:
		what = "one fewer"
		remove(one)
	case kind == 1:
		what = "one more"
		add(stranger)
	case kind == 2:
		what = "one in the place of another"
		remove(one)
		add(stranger)
	case kind == 3 && (changed.To != s.Elements[two].To || changed.Verdict != s.Elements[two].Verdict):
		what = "other data"
		changed.To, changed.Verdict = s.Elements[two].To, s.Elements[two].Verdict
		remove(one)
		add(changed)
	case kind == 4 && s.Comment(&changed) != "":
		what = "another comment"
		changed.Frontend = &ir.Frontend{Port: ir.ServicePort{Service: ir.Name{Namespace: "ns", Name: "other"}, Port: "p", Protocol: ir.TCP}}
		remove(one)
		add(changed)
	case kind == 5 && s.Comment(&changed) != "":
		what = "no comment"
		changed.Frontend = nil
		remove(one)
		add(changed)
	case kind == 6:
		what = "one for all other keys"
		b.add(c, unix.NFT_MSG_NEWSETELEM, codec.Encode(func(b *codec.Builder) {
			*b = append(*b, codec.ElementsIn(s.Name)...)
			b.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b *codec.Builder) {
				b.Nest(unix.NFTA_LIST_ELEM, func(b *codec.Builder) {
					b.Uint32(unix.NFTA_SET_ELEM_FLAGS, codec.NFTSetElemCatchAll)
					codec.AppendData(b, s, ir.IPv4, &changed)
				})
			})
		}), purpose{})
	default:
		what = "nothing"
	}
	return s.Name + ": " + what, b.messages
}

// withExpected returns a node with a table of that many Services, which is expected. All its sets
// are large enough to be read by key.
func withExpected(t *testing.T, services int) (n node, programs ir.Programs, generation uint32) {
	t.Helper()
	requireCounts(t)
	n = newNode(t)
	n.reader.lookupFrom = 1
	p, want := large(services)
	if _, err := n.Commit(t.Context(), newPlan(rules.Tables{}, want)); err != nil {
		t.Fatal(err)
	}
	generation, err := n.reader.conn.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n, withIPv6(p), generation
}

// Results of an earlier reading do not affect the next one, as when the tables change meanwhile.
func TestReadAgain(t *testing.T) {
	n, programs, _ := withExpected(t, 40)
	e := &expected{programs: programs}
	if _, err := n.reader.read(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if err := n.write(t, "flush map ip proxyc backends; flush chain ip proxyc nat-postrouting; delete set ip proxyc hairpin-connections"); err != nil {
		t.Fatal(err)
	}
	again, err := n.reader.read(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(unowned(newPlan(whole, rules.LowerAll(programs))), unowned(planFor(state{again, e}, programs, ""))); d != "" {
		t.Errorf("all read (-), read again (+):\n%s", d)
	}
}

// A set is dumped if the kernel reports no number of elements or another one, or if the tables
// change meanwhile.
func TestUncountedIsDumped(t *testing.T) {
	n, programs, generation := withExpected(t, 40)
	name := rules.Backends.String()
	count := n.count(t, name)
	twice := *programs.IPv4
	twice.Services = slices.Clone(twice.Services)
	first := &twice.Services[0]
	first.Pools = slices.Clone(first.Pools)
	first.Pools[0].Backends = first.Pools[0].Backends[1:] // one fewer
	twice.Services = append(twice.Services, programs.IPv4.Services[1])
	for _, c := range []struct {
		what  string
		count int
		of    ir.Programs
		after uint32
		all   bool
	}{
		{"as it is", count, programs, generation, true},
		{"no number", 0, programs, generation, false},
		{"one more", count + 1, programs, generation, false},
		{"another generation", count, programs, generation - 1, false},
		{"nothing expected", count, ir.Programs{}, generation, false},
		{"a Service expected twice", n.count(t, name), withIPv6(&twice), generation, false},
	} {
		s, e := rules.Backends.Set(), &expected{programs: c.of, generation: c.after}
		all := n.reader.readByKey(t.Context(), ir.IPv4, s, c.count, e)
		if all != c.all || all && met(e.ofFamily(ir.IPv4)[rules.Backends]) != count || len(s.Elements) > 0 {
			t.Errorf("%s: all is %t, %d other elements", c.what, all, len(s.Elements))
		}
	}
	if got := codec.ElementCount(codec.Fields{}); got != 0 {
		t.Errorf("without a number it is %d", got)
	}
}

// If answers do not fit into the buffer, the set is dumped, and no answers remain in the queue.
func TestLostAnswersAreDumped(t *testing.T) {
	n, programs, generation := withExpected(t, 400)
	if err := n.reader.conn.Set(func(nl *netlink.Conn) error { return nl.SetReadBuffer(40 << 10) }); err != nil {
		t.Fatal(err)
	}
	s := rules.Backends.Set()
	if n.reader.readByKey(t.Context(), ir.IPv4, s, n.count(t, s.Name), &expected{programs: programs, generation: generation}) {
		t.Error("no answer was lost")
	}
	have, err := n.reader.readExpected(t.Context(), programs)
	if err != nil {
		t.Fatal(err)
	}
	if !planFor(have, programs, "").Empty() {
		t.Error("the tables are not what is wanted")
	}
}
