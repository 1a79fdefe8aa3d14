package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// node is a network namespace with a Dataplane.
type node struct {
	*applytest.Namespace
	*Dataplane
}

func newNode(t testing.TB) node {
	t.Helper()
	ns := applytest.RequireNamespace(t)
	target, err := OpenIn(ns.Fd(), apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Close() })
	return node{ns, target}
}

// listening opens another Dataplane, which monitors foreign changes.
func (n node) listening(t *testing.T) (plane *Dataplane, drift <-chan struct{}) {
	t.Helper()
	if err := n.Do(func() (err error) {
		if plane, err = Open(t.Context(), apply.Options{}); err == nil {
			drift, err = plane.Drift(t.Context())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { plane.Close() })
	return plane, drift
}

func (n node) nft(t testing.TB, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := n.Namespace.Command(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(script)
	out, err := n.Namespace.Run(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (n node) load(t testing.TB, tables rules.Tables) {
	t.Helper()
	n.nft(t, text(t, tables), "-f", "/dev/stdin")
}

func (n node) list(t testing.TB) []string {
	t.Helper()
	lines := strings.Split(n.nft(t, "", "list", "ruleset"), "\n")
	return normal(lines)
}

// normal sorts the elements of each set, which the kernel lists by hash.
func normal(lines []string) []string {
	var out, elements []string
	in := false
	for _, l := range lines {
		trimmed := strings.TrimSpace(l)
		if strings.HasPrefix(trimmed, "elements = {") {
			in = true
		}
		if !in {
			out = append(out, l)
			continue
		}
		trimmed = strings.TrimPrefix(trimmed, "elements = { ")
		last := strings.HasSuffix(trimmed, " }")
		elements = append(elements, strings.TrimRight(trimmed, ", }"))
		if last {
			slices.Sort(elements)
			out = append(out, elements...)
			elements, in = nil, false
		}
	}
	return out
}

func text(t testing.TB, tables rules.Tables) string {
	t.Helper()
	var b bytes.Buffer
	if err := rules.Write(&b, tables); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func lower(programs ...*ir.Program) rules.Tables {
	return rules.LowerAll(ir.NewPrograms(programs...))
}

func both(make func(ir.Family) *ir.Program) rules.Tables {
	return lower(make(ir.IPv4), make(ir.IPv6))
}

// Both writers of a Ruleset create the same table. What is read equals what was written, by either.
func TestTextAndNetlinkAgree(t *testing.T) {
	for name := range nftest.Variants(ir.IPv4) {
		t.Run(name, func(t *testing.T) {
			want := both(func(f ir.Family) *ir.Program {
				p := nftest.Program(f)
				nftest.Variants(f)[name](&p.Node)
				return p
			})
			byText, byNetlink := newNode(t), newNode(t)
			byText.load(t, want)
			if _, err := once(t, byNetlink, want); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(byText.list(t), byNetlink.list(t)); d != "" {
				t.Errorf("(-nft +netlink):\n%s", d)
			}
			for way, n := range map[string]node{"nft": byText, "netlink": byNetlink} {
				holds(t, way, n, want)
			}
			// The listing can be loaded again.
			listed := byNetlink.nft(t, "", "list", "ruleset")
			byNetlink.nft(t, "", "flush", "ruleset")
			byNetlink.nft(t, listed, "-f", "/dev/stdin")
			holds(t, "its own listing", byNetlink, want)
		})
	}
}

// once reads, plans and commits, and checks that the node then matches.
func once(t testing.TB, n node, want rules.Tables) (*Plan, error) {
	t.Helper()
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		return nil, err
	}
	plan := newPlan(have, want)
	result, err := n.Commit(t.Context(), plan)
	if err := errors.Join(err, result.Error()); err != nil {
		return plan, err
	}
	if have, err = n.reader.read(t.Context(), nil); err != nil {
		return plan, err
	}
	if rest := newPlan(have, want); !rest.Empty() {
		t.Errorf("the node does not hold what was committed: %v", slices.Collect(rest.Operations))
	}
	return plan, nil
}

// holds checks that the node contains exactly what is wanted.
func holds(t *testing.T, way string, n node, want rules.Tables) {
	t.Helper()
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(lines(t, want), lines(t, have)); d != "" {
		t.Errorf("%s: what is read (-want +got):\n%s", way, d)
	}
	if p := newPlan(have, want); !p.Empty() {
		for op := range p.Operations {
			t.Errorf("%s: still to do: %s %s", way, op.Verb, op.Object)
		}
	}
}

// lines returns the sorted lines of a script. Related lines are adjacent because of their names.
func lines(t *testing.T, tables rules.Tables) []string {
	t.Helper()
	var out []string
	for _, r := range ir.Present(tables.PerFamily) {
		family := r.Family.String() + " "
		for i := range r.Sets {
			s := &r.Sets[i]
			out = append(out, fmt.Sprint(family, s.Name, s.Key, s.Data, s.Interval, s.Timeout))
			for j := range s.Elements {
				e := &s.Elements[j]
				out = append(out, fmt.Sprint(family, s.Name, " ", s.KeyText(e.Key), e.Verdict, e.To, s.Comment(e)))
			}
		}
		for i := range r.Chains {
			c := &r.Chains[i]
			out = append(out, fmt.Sprint(family, c.Name, c.Base != nil && c.Base.NAT))
			for j := range c.Rules {
				out = append(out, fmt.Sprint(family, c.Name, j, c.Rules[j].Text(r.Family)))
			}
		}
	}
	slices.Sort(out)
	return out
}

// After each of many random changes the node equals a freshly written one.
func TestKernelHoldsHistories(t *testing.T) {
	random := rand.New(rand.NewPCG(applytest.Seed(t), 1))
	n := newNode(t)
	for step := range 30 {
		want := both(func(f ir.Family) *ir.Program { return vary(nftest.Program(f), random) })
		if _, err := once(t, n, want); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if step%6 == 0 {
			fresh := newNode(t)
			fresh.load(t, want)
			made, changed := sizeless(fresh.list(t)), sizeless(n.list(t))
			if d := cmp.Diff(made, changed); d != "" && !onlyOrder(made, changed) {
				t.Fatalf("step %d (-fresh +changed):\n%s", step, d)
			}
		}
	}
}

// sizeless removes the sizes of affinity maps. These grow with the backends of a port and never
// shrink, so a map may be larger than a fresh one.
func sizeless(lines []string) []string {
	return slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "size ") })
}

// onlyOrder reports whether two listings differ in order only. Chains and sets are listed in the
// order of their creation.
func onlyOrder(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// vary omits Services, frontends and backends, and changes settings.
func vary(p *ir.Program, random *rand.Rand) *ir.Program {
	p.Services = slices.DeleteFunc(p.Services, func(ir.Service) bool { return random.IntN(4) == 0 })
	for i := range p.Services {
		s := &p.Services[i]
		s.Frontends = slices.DeleteFunc(s.Frontends, func(ir.Frontend) bool { return random.IntN(4) == 0 })
		for j := range s.Pools {
			if b := &s.Pools[j].Backends; random.IntN(2) == 0 {
				*b = slices.Delete(*b, 0, 1)
			}
			if a := s.Pools[j].Affinity; a != nil && random.IntN(4) == 0 {
				s.Pools[j].Affinity = &ir.Affinity{Timeout: 90 * time.Second}
			}
		}
	}
	if random.IntN(6) == 0 {
		p.Node.MasqueradeBit = uint8(random.IntN(32))
	}
	if random.IntN(6) == 0 {
		p.Node.Detector = ir.Detector{Mode: ir.DetectInterface, Interface: "cni0"}
	}
	return p
}

// A Plan contains only differences.
func TestPlanFollowsTheChange(t *testing.T) {
	n := newNode(t)
	want := both(nftest.Program)
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	changed := both(func(f ir.Family) *ir.Program {
		p := nftest.Program(f)
		b := &p.Services[0].Pools[0].Backends
		(*b)[2].AddrPort = nftest.AddrPort(f, "10.244.2.11:8080")
		return p
	})
	plan, err := once(t, n, changed)
	if err != nil {
		t.Fatal(err)
	}
	_, total := apply.Summary(plan)
	// Seven frontends have the third backend, in two families.
	var got []string
	for op := range plan.Operations {
		if op.Verb != apply.Change || op.Service.Name != "svc10" {
			t.Errorf("unexpected: %s %s of %s", op.Verb, op.Object, op.Service)
		}
		got = append(got, op.Object)
	}
	if total.Changed != 2*7 {
		t.Errorf("%s, want 14 changed: %s", total, got)
	}
}

// Damaged tables are repaired.
func TestRepair(t *testing.T) {
	damages := map[string]string{
		"an element is gone":       "delete element ip proxyc service-ips { 10.96.0.10 . tcp . 80 }",
		"an element is changed":    "delete element ip proxyc backends { 10.96.0.10 . tcp . 80 . 0 }; add element ip proxyc backends { 10.96.0.10 . tcp . 80 . 0 : 1.2.3.4 . 5 }",
		"an element is too many":   "add element ip6 proxyc cluster-ips { fd00::1 }",
		"a rule is too many":       "add rule ip proxyc services counter drop",
		"a rule matches otherwise": "flush chain ip proxyc nat-output; add rule ip proxyc nat-output ct state established jump services",
		"a rule is gone":           "flush chain ip proxyc nat-postrouting",
		"a rule looks like ours":   "flush chain ip proxyc node-ports; add rule ip proxyc node-ports meta l4proto . th dport vmap @no-endpoint-nodeports reject with icmp type host-unreachable",
		"masquerade is not random": "flush chain ip proxyc nat-postrouting; add rule ip proxyc nat-postrouting masquerade",
		"a chain is too many":      "add chain ip proxyc mine; add rule ip proxyc mine jump node-ports",
		"a set is too many":        "add set ip proxyc mine { type ether_addr; }",
		"a map is of another type": "delete table ip proxyc; table ip proxyc { map service-ips { type ipv4_addr : verdict; }; }",
		"the table is flushed":     "flush table ip6 proxyc",
		"the table is gone":        "delete table ip proxyc",
		"the table is empty":       "delete table ip proxyc; add table ip proxyc",
		"everything is gone":       "flush ruleset",
	}
	want := both(nftest.Program)
	n := newNode(t)
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			if _, err := once(t, n, want); err != nil {
				t.Fatal(err)
			}
			before := n.list(t)
			n.nft(t, strings.ReplaceAll(damage, "; ", "\n"), "-f", "/dev/stdin")
			plan, err := once(t, n, want)
			if err != nil {
				t.Fatal(err)
			}
			if plan.Empty() {
				t.Error("the damage was not noticed")
			}
			if !onlyOrder(before, n.list(t)) {
				t.Errorf("(-before +repaired):\n%s", cmp.Diff(before, n.list(t)))
			}
		})
	}
}

// kube-proxy's tables are removed in the same batch. Other foreign tables are kept.
func TestTakeover(t *testing.T) {
	n := newNode(t)
	n.nft(t, `table ip kube-proxy { chain services { }; chain nat-prerouting { type nat hook prerouting priority -100; jump services; }; }
table ip6 kube-proxy { set cluster-ips { type ipv6_addr; }; }
table inet other { chain c { accept; }; }
`, "-f", "/dev/stdin")
	plan, err := once(t, n, both(nftest.Program))
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	for op := range plan.Operations {
		if op.Verb == apply.Remove {
			removed++
		}
	}
	listed := strings.Join(n.list(t), "\n")
	if removed != 2 || strings.Contains(listed, "kube-proxy") || !strings.Contains(listed, "table inet other") {
		t.Errorf("%d removed, and now there is\n%s", removed, listed)
	}
}

// An obsolete chain to which a foreign rule jumps is emptied, but kept. The rest of the commit is
// done, and the next one finds the chain.
func TestBusy(t *testing.T) {
	n := newNode(t)
	if _, err := once(t, n, both(nftest.Program)); err != nil {
		t.Fatal(err)
	}
	less := both(func(f ir.Family) *ir.Program {
		p := nftest.Program(f)
		p.Services = nil
		return p
	})
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan := newPlan(have, less)
	gone := plan.families.IPv4.chains.removed
	stale := gone[slices.IndexFunc(gone, func(c *rules.Chain) bool { return strings.HasPrefix(c.Name, "lb-") })].Name
	n.nft(t, "add chain ip proxyc mine\nadd rule ip proxyc mine jump "+stale+"\n", "-f", "/dev/stdin")
	result, err := n.Commit(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ir.PerFamily[int]{IPv4: 1}, result.Pending); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	if have, err = n.reader.read(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	rest := newPlan(have, less)
	if gone := rest.families.IPv4.chains.removed; len(gone) != 2 {
		t.Errorf("to go: %d chains, want the stale one and that which jumps to it", len(gone))
	}
	if result, err = n.Commit(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	if k := result.Pending.IPv4; k != 0 || strings.Contains(strings.Join(n.list(t), "\n"), stale) {
		t.Errorf("%d kept, and %s is there", k, stale)
	}
}

// If the kernel rejects an element of one Service, nothing is committed, and the Service is reported
// with the element and the kernel's reason.
func TestQuarantine(t *testing.T) {
	own := netip.MustParsePrefix("198.51.100.64/32") // what nobody but svc10 admits
	spoil := map[string]func(r *rules.Ruleset){
		"a verdict to a chain that is not there": func(r *rules.Ruleset) {
			r.Sets[rules.ServiceIPs].Elements[0].Verdict = rules.Verdict{Kind: rules.Goto, Chain: "nowhere"}
		},
		"ranges overlap": func(r *rules.Ruleset) {
			s := &r.Sets[slices.IndexFunc(r.Sets, func(s rules.Set) bool {
				return rules.IsSources(s.Name) && slices.ContainsFunc(s.Elements, func(e rules.Element) bool { return e.Key.Addr2 == own.Addr() })
			})]
			e := s.Elements[0]
			e.Key.Bits--
			s.Elements = append(s.Elements, e)
		},
	}
	for name, spoil := range spoil {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			want := both(func(f ir.Family) *ir.Program {
				p := nftest.Program(f)
				for i := range p.Services[0].Frontends {
					if r := &p.Services[0].Frontends[i].SourceRanges; len(*r) > 8 && f == ir.IPv4 {
						*r = append(*r, ir.SourceRange{Prefix: own, Origin: (*r)[0].Origin})
					}
				}
				return p
			})
			spoil(want.IPv4)
			q, err := n.Commit(t.Context(), newPlan(rules.Tables{}, want))
			if err != nil {
				t.Fatal(err)
			}
			if len(q.Refused) != 1 || q.Refused[0].Service.Name != "svc10" {
				t.Fatalf("refused: %v", q.Refused)
			}
			err = q.Error()
			if !strings.Contains(err.Error(), "10.96.0.10 . tcp . 80:") && !strings.Contains(err.Error(), "10.244.0.0/15:") {
				t.Errorf("the error does not name the element: %v", err)
			}
			if listed := n.nft(t, "", "list", "ruleset"); listed != "" {
				t.Errorf("a part is committed: %s", listed)
			}
		})
	}
}

// A Plan from an outdated reading is made again.
func TestStalePlan(t *testing.T) {
	n := newNode(t)
	want := both(nftest.Program)
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan := newPlan(have, want)
	changed := both(func(f ir.Family) *ir.Program {
		p := nftest.Program(f)
		p.Services = p.Services[:3]
		return p
	})
	for _, meanwhile := range []rules.Tables{want, changed} {
		n.nft(t, "", "flush", "ruleset")
		n.load(t, meanwhile)
		if _, err := n.Commit(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		holds(t, "after a stale plan", n, want)
	}
	// And where what is to go is gone.
	have, err = n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan = newPlan(have, changed)
	n.nft(t, "", "flush", "ruleset")
	if _, err := n.Commit(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	holds(t, "after a flush", n, changed)
}

// Large lists are split into many messages.
func TestLarge(t *testing.T) {
	n := newNode(t)
	want := rules.NewTables(rules.Lower(nftest.Large(3000)), rules.Lower(&ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)}))
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	empty := both(func(f ir.Family) *ir.Program { return &ir.Program{Family: f, Node: nftest.Node(f)} })
	plan, err := once(t, n, empty)
	if err != nil {
		t.Fatal(err)
	}
	if gone := plan.RemovedFrontends(); len(gone) != 3000+300+150 {
		t.Errorf("%d frontends are gone, want 3450", len(gone))
	}
	for range 3 {
		if _, err := once(t, n, want); err != nil {
			t.Fatal(err)
		}
		if _, err := once(t, n, empty); err != nil {
			t.Fatal(err)
		}
	}
}

// A table that a running process owns is not changed, and reported.
func TestForeignOwner(t *testing.T) {
	n := newNode(t)
	other, err := OpenIn(n.Fd(), apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var table codec.Builder
	table.Text(unix.NFTA_TABLE_NAME, rules.Table)
	table.Uint32(unix.NFTA_TABLE_FLAGS, codec.NFTTableOwner)
	b := &batch{}
	b.create(&change{family: ir.IPv6}, unix.NFT_MSG_NEWTABLE, table, purpose{})
	if r, err := other.writer.conn.Send(t.Context(), b.messages); err != nil || len(r) > 0 {
		t.Fatal(err, r)
	}
	_, err = once(t, n, both(nftest.Program))
	if foreign, ok := err.(*apply.Foreign); !ok || foreign.Object != "table ip6 proxyc" {
		t.Errorf("want a foreign table, got %v", err)
	}
	if l := n.list(t); slices.Contains(l, "table ip proxyc {") {
		t.Error("the other family was written")
	}
}

func TestCancelled(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.reader.read(ctx, nil); err == nil {
		t.Error("Read went on")
	}
	if _, err := n.Commit(ctx, newPlan(rules.Tables{}, both(nftest.Program))); err == nil {
		t.Error("Commit went on")
	}
	if l := n.list(t); len(l) > 1 {
		t.Errorf("the kernel has %v", l)
	}
}

// A table with our name but foreign chains is not changed, not even by cleanup.
func TestForeignContent(t *testing.T) {
	n := newNode(t)
	n.nft(t, "table ip proxyc { chain mine { counter; }; }", "-f", "-")
	before := n.list(t)
	want := lower(nftest.Program(ir.IPv4))
	_, err := once(t, n, want)
	if _, ok := errors.AsType[*apply.Foreign](err); !ok {
		t.Errorf("apply: got %v", err)
	}
	err = n.Do(func() error {
		left, err := Leftovers(t.Context(), false)
		if len(left) > 0 {
			t.Errorf("cleanup would remove %s", left[0].Object)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(before, n.list(t)); d != "" {
		t.Errorf("the table is not as it was (-before +now):\n%s", d)
	}
}

// A table with our name and foreign chains in one family does not keep ours in the other.
func TestForeignInOneFamily(t *testing.T) {
	n := newNode(t)
	if _, err := once(t, n, lower(nftest.Program(ir.IPv4))); err != nil {
		t.Fatal(err)
	}
	n.nft(t, "table ip6 proxyc { chain mine { counter; }; }", "-f", "-")
	err := n.Do(func() error {
		left, err := Leftovers(t.Context(), false)
		if len(left) != 1 || left[0].Object != "table ip proxyc" {
			t.Errorf("cleanup would remove %v", left)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A dump that repeats an element omits another one.
func TestTwice(t *testing.T) {
	a, b := rules.Element{Key: rules.Key{Port: 80}}, rules.Element{Key: rules.Key{Port: 443}}
	if hasDuplicates([]rules.Element{a, b}) {
		t.Error("two elements count as one twice")
	}
	if !hasDuplicates([]rules.Element{a, b, a}) {
		t.Error("an element that is there twice is not noticed")
	}
}
