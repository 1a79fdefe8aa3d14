package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// fault makes the n-th request fail, before or after it takes effect.
type fault struct {
	n     int
	after bool
	// meanwhile is what others do before batches that change rules: before the first
	// three, as a commit plans again for as long as others change the tables.
	meanwhile func()
	batches   int
	made      int
	fired     bool
}

var errFault = errors.New("injected")

func (f *fault) request(b []conn.Message, do func() error) error {
	f.made++
	if b != nil && f.meanwhile != nil && f.batches < 3 && slices.ContainsFunc(b, func(m conn.Message) bool { return !purges(&m) }) {
		f.batches++
		f.meanwhile()
	}
	if f.made != f.n {
		return do()
	}
	f.fired = true
	if f.after {
		if err := do(); err != nil {
			return err
		}
	}
	return errFault
}

// nameIn returns a name in a message.
func nameIn(t testing.TB, m *conn.Message, typ uint16) string {
	t.Helper()
	a, err := codec.Parse(m.Data()[codec.NfgenHead:])
	if err != nil {
		t.Fatal(err)
	}
	return a.Text(typ)
}

// purges reports whether a message removes entries of an affinity map.
func purges(m *conn.Message) bool {
	name, err := codec.First(m.Data()[codec.NfgenHead:], unix.NFTA_SET_ELEM_LIST_SET)
	_, fixed := fixedSet(codec.CString(name))
	return err == nil && m.Type == unix.NFT_MSG_DELSETELEM && !fixed && !rules.HasElements(codec.CString(name))
}

// removedBy returns the fixed set from which a message removes elements, with these.
func removedBy(t testing.TB, m *conn.Message) (f ir.Family, s rules.Set) {
	t.Helper()
	if m.Type != unix.NFT_MSG_DELSETELEM {
		return f, s
	}
	id, fixed := fixedSet(nameIn(t, m, unix.NFTA_SET_ELEM_LIST_SET))
	if !fixed {
		return f, s
	}
	if f = ir.IPv4; m.Data()[0] == unix.NFPROTO_IPV6 {
		f = ir.IPv6
	}
	s = *id.Set()
	if err := codec.DecodeElements(m.Data()[codec.NfgenHead:], &s, f, &codec.Comments{}); err != nil {
		t.Fatal(err)
	}
	return f, s
}

// faultySteps returns the changes in which every request fails once. A Service with affinity loses
// a backend that receives connections all the time. If refused is set, the kernel rejects another
// Service.
func faultySteps(refused bool) (before, after ir.Programs, bad ir.Name) {
	b, a := nftest.Program(ir.IPv4), nftest.Program(ir.IPv4)
	bad = a.Services[5].Name
	b.Services = b.Services[:5]
	if refused {
		// What is another's already has other data, which the kernel does not take.
		a.Services[5].Frontends[0].Match = a.Services[0].Frontends[0].Match
	}
	for i := range a.Services {
		for j := range a.Services[i].Pools {
			if p := &a.Services[i].Pools[j]; p.Affinity != nil {
				p.Backends = slices.DeleteFunc(p.Backends, func(b ir.Backend) bool { return b.AddrPort.Addr() == leaver })
			}
		}
	}
	return ir.NewPrograms(b), ir.NewPrograms(a), bad
}

// leaver is the backend that is removed.
var leaver = netip.MustParseAddr("10.244.2.10")

// A Result describes the kernel's state. After an error, the next Read, Plan and Commit repair
// everything. A Plan never changes. This holds whichever request fails, before or after it takes
// effect.
func TestFaultsAtEachRequest(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("refused %t, after %t", refused, after), func(t *testing.T) {
				if refused && !after {
					applytest.Long(t)
				}
				t.Parallel()
				n := newNode(t)
				fired := true
				// The later a request, the more others like it: those of a node that is read again.
				for i := 1; fired; i = max(applytest.Next(i), i+1+i/20) {
					fired = oneFault(t, n, refused, &fault{n: i, after: after})
					if t.Failed() {
						t.Fatalf("at request %d", i)
					}
					if i > 300 {
						t.Fatal("no end")
					}
				}
			})
		}
	}
}

func oneFault(t *testing.T, n node, refused bool, f *fault) (fired bool) {
	t.Helper()
	before, after, bad := faultySteps(refused)
	n.nft(t, "", "flush", "ruleset")
	full := func(want ir.Programs) (apply.Result, error) {
		if err := n.Read(t.Context(), ir.Programs{}); err != nil {
			t.Fatal(err)
		}
		return n.Commit(t.Context(), n.Plan(want))
	}
	// What an earlier fault left to be done is done, too.
	if _, err := full(before); err != nil {
		t.Fatal(err)
	}
	var maps []string // those in which the backend can be
	for name, backends := range remembered(rules.LowerAll(before).IPv4) {
		if _, ok := backends[leaver]; ok {
			maps = append(maps, name)
		}
	}
	remember := func(client int) {
		script := ""
		for _, name := range maps {
			script += fmt.Sprintf("add element ip proxyc %s { 10.244.0.%d : %s }\n", name, client, leaver)
		}
		n.nft(t, script, "-f", "/dev/stdin")
	}
	remember(1)
	if err := n.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	plan := n.Plan(after)
	planned := slices.Collect(plan.Operations)
	client := 1
	f.meanwhile = func() {
		client++
		remember(client)
	}
	n.Dataplane.writer.conn.Request = f.request
	result, err := n.Commit(t.Context(), plan)
	n.Dataplane.writer.conn.Request = conn.Direct
	if diff := cmp.Diff(planned, slices.Collect(plan.Operations)); diff != "" {
		t.Errorf("Commit changed the Plan:\n%s", diff)
	}
	if f.fired != (err != nil) {
		t.Errorf("a request failed: %t; the error is %v", f.fired, err)
	}
	switch {
	case err == nil:
		checkRefused(t, "the Commit in which a request failed", result, refused, bad)
	case len(result.Refused) > 0 && !refused:
		t.Errorf("nothing is refused, but %v", result.Refused)
	}
	if err != nil {
		// Whatever the fault was: what the interface says comes next is enough.
		if result, err = full(after); err != nil {
			t.Fatalf("after the fault: %v", err)
		}
		checkRefused(t, "after the fault", result, refused, bad)
	}
	commitRest(t, n, after, result)
	if !inForce(t, n, after, bad) {
		t.Error("not in force")
	}
	if err := n.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if !refused && !n.Plan(after).Empty() {
		t.Error("there is always more to do")
	}
	if listed := n.nft(t, "", "list", "ruleset"); strings.Contains(listed, ": "+leaver.String()+" ") || strings.Contains(listed, ": "+leaver.String()+"\n") {
		for l := range strings.Lines(listed) {
			if strings.Contains(l, "expires") {
				t.Errorf("a backend that is gone is remembered: %s", l)
			}
		}
	}
	return f.fired
}

// commitRest commits the Programs without the Services that a Commit refused.
func commitRest(t *testing.T, n node, want ir.Programs, r apply.Result) {
	t.Helper()
	if len(r.Refused) == 0 {
		return
	}
	if err := n.Read(t.Context(), ir.Programs{}); err != nil {
		t.Fatal(err)
	}
	if r, err := n.Commit(t.Context(), n.Plan(apply.Without(want, r.Refused))); err != nil || len(r.Refused) > 0 {
		t.Fatal(err, r.Refused)
	}
}

func checkRefused(t *testing.T, when string, r apply.Result, refused bool, bad ir.Name) {
	t.Helper()
	var names, want []ir.Name
	for _, one := range r.Refused {
		names = append(names, one.Service)
	}
	if refused {
		want = []ir.Name{bad}
	}
	if !slices.Equal(names, want) {
		t.Errorf("%s: refused %v, want %v", when, names, want)
	}
}

// Foreign changes between reading and commit are not attributed to a Service. This holds even if
// they are repeated before each attempt, and for a Service that the kernel rejects at the same
// time.
func TestForeignChangesBeforeEachTry(t *testing.T) {
	for _, refused := range []bool{false, true} {
		for tries := 1; tries <= 3; tries++ {
			t.Run(fmt.Sprintf("refused %t, %d tries", refused, tries), func(t *testing.T) {
				n := newNode(t)
				before, after, bad := faultySteps(refused)
				if _, err := once(t, n, rules.LowerAll(before)); err != nil {
					t.Fatal(err)
				}
				if err := n.Read(t.Context(), ir.Programs{}); err != nil {
					t.Fatal(err)
				}
				plan := n.Plan(after)
				foreign, left := n.other(t), tries
				n.Dataplane.writer.conn.Request = func(b []conn.Message, do func() error) error {
					if b == nil || left == 0 {
						return do()
					}
					// Somebody removes one of the elements that the batch removes.
					for i := range b {
						if f, s := removedBy(t, &b[i]); len(s.Elements) > 0 {
							var gone batch
							gone.elements(&change{family: f}, unix.NFT_MSG_DELSETELEM, &s, s.Elements[:1], false)
							if refusals, err := foreign.writer.conn.Send(t.Context(), gone.messages); err != nil || len(refusals) > 0 {
								t.Errorf("%v %v", err, refusals)
							}
							left--
							break
						}
					}
					return do()
				}
				result, err := n.Commit(t.Context(), plan)
				n.Dataplane.writer.conn.Request = conn.Direct
				if err != nil || left > 0 {
					t.Fatalf("%v; %d changes by others are missing", err, left)
				}
				checkRefused(t, "after changes by others", result, refused, bad)
				commitRest(t, n, after, result)
				if !inForce(t, n, after, bad) {
					t.Error("not in force")
				}
			})
		}
	}
}

// After any failed send or receive, the next Read, Plan and Commit succeed, and so does a comparison. The
// connection is dialed again, so that queued answers are not taken for those to other requests.
func TestFailedCalls(t *testing.T) {
	n := newNode(t)
	full := func(want ir.Programs) error {
		if err := n.Read(t.Context(), ir.Programs{}); err != nil {
			return err
		}
		result, err := n.Commit(t.Context(), n.Plan(want))
		return errors.Join(err, result.Error())
	}
	whole := nftest.Program(ir.IPv4)
	one, two := *whole, *whole
	one.Services, two.Services = one.Services[:1], two.Services[:2]
	a, b := ir.NewPrograms(&one), ir.NewPrograms(&two)
	for i := 1; ; i = applytest.Next(i) {
		if err := full(a); err != nil {
			t.Fatal(err)
		}
		made := 0
		fail := func(string) error {
			if made++; made == i {
				return unix.ENOBUFS
			}
			return nil
		}
		n.writer.conn.Fault = fail
		failure := full(b)
		if failure == nil { // or later, in the comparison
			_, failure = applytest.Compare(t.Context(), n.Dataplane)
		}
		n.writer.conn.Fault = nil
		if made < i {
			break
		}
		if err := full(b); err != nil {
			t.Fatalf("after call %d failed with %v: %v", i, failure, err)
		}
		if plan, err := applytest.Compare(t.Context(), n.Dataplane); err != nil || !plan.Empty() {
			t.Errorf("after call %d failed with %v: %v, or the plan is not empty", i, failure, err)
		}
	}
}

// A lack of memory refuses no Service: its rules would be removed.
func TestNoMemory(t *testing.T) {
	b := newBatch(newPlan(rules.Tables{}, rules.LowerAll(ir.NewPrograms(nftest.Program(ir.IPv4)))), nil)
	for i := range b.messages {
		var q outcome
		refused := b.refused([]conn.Refusal{{Index: i, Err: unix.ENOMEM}})
		if _, err := q.without(nil, refused, false); !errors.Is(err, unix.ENOMEM) || len(q.refused) > 0 {
			t.Errorf("%s: error %v, refused %v", refused[0].object, err, q.refused)
		}
	}
}

// inForce reports whether the node matches, except for one Service that may be rejected, and for
// what it shares with others.
func inForce(t *testing.T, n node, want ir.Programs, bad ir.Name) bool {
	t.Helper()
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for op := range newPlan(have, rules.LowerAll(want)).Operations {
		if op.Service != bad && op.Service != (ir.Name{}) {
			return false
		}
	}
	return true
}
