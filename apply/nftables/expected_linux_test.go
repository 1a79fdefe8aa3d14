package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Reading with an expectation leads to the same Plan, however the node differs from what is expected.
func TestReadExpected(t *testing.T) {
	n := newNode(t)
	o := n.other(t)
	program, want := large(40)
	if _, err := n.Commit(t.Context(), newPlan(rules.Tables{}, want)); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 120 {
		s := mapsOf(want.IPv4)[random.IntN(len(mapsOf(want.IPv4)))]
		what, messages := differ(random, s)
		if len(messages) > 0 {
			if err := o.commit(t.Context(), messages...); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		n.compareReadings(t, withIPv6(program))
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
}

// A Plan is correct even if other Programs were expected when the node was read.
func TestReadForOtherPrograms(t *testing.T) {
	n := newNode(t)
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

// compareReadings reads everything with and without an expectation, and compares the Plans.
func (n node) compareReadings(t *testing.T, programs ir.Programs) {
	t.Helper()
	whole, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	fewer := programs // for which the node was not read
	fewer.IPv4 = &ir.Program{Family: ir.IPv4, Node: fewer.IPv4.Node, Services: fewer.IPv4.Services[len(fewer.IPv4.Services)/2:]}
	got, err := n.reader.readExpected(t.Context(), programs)
	if err != nil {
		t.Fatal(err)
	}
	for what, wanted := range map[string]ir.Programs{"as expected": programs, "fewer": fewer} {
		if d := cmp.Diff(unowned(newPlan(whole, rules.LowerAll(wanted))), unowned(planFor(got, wanted, declaration{}))); d != "" {
			t.Errorf("%s: all read (-), what is not expected read (+):\n%s", what, d)
		}
	}
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

// mapsOf returns the sets with several elements.
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
					b.Uint32(unix.NFTA_SET_ELEM_FLAGS, 2) // NFT_SET_ELEM_CATCHALL
					codec.AppendData(b, s, ir.IPv4, &changed)
				})
			})
		}), purpose{})
	default:
		what = "nothing"
	}
	return s.Name + ": " + what, b.messages
}

// Results of an earlier reading do not affect the next one, as when the tables change meanwhile.
func TestReadAgain(t *testing.T) {
	n := newNode(t)
	p, want := large(40)
	if _, err := n.Commit(t.Context(), newPlan(rules.Tables{}, want)); err != nil {
		t.Fatal(err)
	}
	programs := withIPv6(p)
	e := &expected{programs: programs}
	if _, err := n.reader.read(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if err := n.write(t, "flush map ip proxyc backends; flush chain ip proxyc nat-postrouting; delete set ip proxyc hairpin-addresses"); err != nil {
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
	if d := cmp.Diff(unowned(newPlan(whole, rules.LowerAll(programs))), unowned(planFor(state{again, e}, programs, declaration{}))); d != "" {
		t.Errorf("all read (-), read again (+):\n%s", d)
	}
}
