package proof

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// TestEquivalenceForEveryPacket is TestEquivalence with a packet of each class in place of
// random ones.
func TestEquivalenceForEveryPacket(t *testing.T) {
	start := applytest.Seed(t)
	for mode := range review.Modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			classes := 0
			for n := range uint64(*reviewtest.Packets / 1000) {
				w := reviewtest.New(start, n).World(mode)
				for f, p := range ir.Present(w.Compile(t)) {
					r, err := prove.Compare(t.Context(), prove.NodeOf(p), sim.NewEvaluator(p), review.Modes[mode].Evaluate(p))
					if err != nil {
						t.Fatal(err)
					}
					classes += r.Classes
					if len(r.Doubts) > 0 {
						t.Fatalf("world %d, %s: not provable because of %v", n, f, r.Doubts[0].Unknown)
					}
					if len(r.Differences) > 0 {
						d := r.Differences[0]
						t.Errorf("%d classes differ\n%+v\nIR:    %s\nrules: %s", len(r.Differences), d.Class, d.A, d.B)
						w.Fail(t, fmt.Sprintf("-seed=%d, world %d", start, n), d.Packet)
						return
					}
				}
			}
			t.Logf("%d classes", classes)
		})
	}
}

// Unproved returns nothing for correct rules and a packet for wrong
// ones.
func TestUnproved(t *testing.T) {
	mode := review.Modes[ir.ModeNFTables]
	defer func() { review.Modes[ir.ModeNFTables] = mode }()
	p := irtest.Program(ir.ModeNFTables)
	if found := Unproved(t.Context(), ir.NewPrograms(p)); len(found) > 0 {
		t.Errorf("found %q where all is right", found)
	}
	review.Modes[ir.ModeNFTables] = review.Mode{Evaluate: func(p *ir.Program) prove.Side {
		less := *p
		less.Services = p.Services[1:]
		return mode.Evaluate(&less)
	}}
	if found := Unproved(t.Context(), ir.NewPrograms(p)); len(found) != 1 || !strings.HasPrefix(found[0], "proxyc trace --from ") {
		t.Errorf("found %q where a Service is missing", found)
	}
	late, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it takes too long"))
	want := []string{"not known: it takes too long"}
	if found := Unproved(late, ir.NewPrograms(p)); !slices.Equal(found, want) {
		t.Errorf("found %q after the time was over, want %q", found, want)
	}
}

// The rules are indexed once for all differences: with ten times as many Services, distinguished by
// a tree of chains, a packet costs about the same.
func TestRulesAreIndexedOnce(t *testing.T) {
	const node = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n---\n"
	allocations := func(n int) float64 {
		var b strings.Builder
		b.WriteString(node)
		for i := range n {
			name := fmt.Sprintf("s%d", i)
			b.WriteString(reviewtest.ServiceYAML(name, i+1, "ports: [{port: 80}]") + reviewtest.SliceYAML(name, "{port: 8080, name: ''}"))
		}
		snap, _ := reviewtest.Decode([]byte(b.String()))
		programs, _ := reviewtest.Compile(t, reviewtest.ParseConfig(t, ir.ModeIPTables, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n")), snap, compiler.Facts{NodeName: "node1"})
		side := &Side{}
		side.program(programs.IPv4)
		toward := side.toward.IPv4
		pkt, err := sim.ParsePacket("192.0.2.200@eth0", "10.96.0.5:80")
		if err != nil {
			t.Fatal(err)
		}
		to := sim.Trace(programs.IPv4, pkt).Chances()[0]
		if len(toward(pkt, to)) == 0 {
			t.Fatal("the packet meets no rule")
		}
		return testing.AllocsPerRun(3, func() { toward(pkt, to) })
	}
	if few, many := allocations(100), allocations(1000); many > 2*few {
		t.Errorf("a packet takes %v allocations among 100 Services, and %v among 1,000", few, many)
	}
}

// A slow family does not use up the time of the other. In this test, IPv4 continues only after IPv6
// is asked.
func TestFamiliesShareTheTime(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, prove.Limit("it takes too long"))
	defer cancel()
	p4 := irtest.Program(ir.ModeNFTables)
	p6 := &ir.Program{Family: ir.IPv6, Node: p4.Node}
	p6.Node.Addrs = nil
	asked := make(chan struct{})
	var once sync.Once
	a := &Side{name: "a", programs: ir.NewPrograms(p4, p6)}
	a.set(ir.IPv4, meeting{sim.NewEvaluator(p4), func() {
		select {
		case <-asked:
		case <-ctx.Done():
		}
	}})
	a.set(ir.IPv6, meeting{sim.NewEvaluator(p6), func() { once.Do(func() { close(asked) }) }})
	b := &Side{name: "b", programs: a.programs}
	b.set(ir.IPv4, sim.NewEvaluator(p4))
	b.set(ir.IPv6, sim.NewEvaluator(p6))
	r, err := Compare(ctx, a, b, a.programs)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != Equal || !slices.Equal(r.Families, []ir.Family{ir.IPv4, ir.IPv6}) {
		t.Errorf("%s of %v, not known: %q", r.Verdict, r.Families, r.Unknown)
	}
}

type meeting struct {
	*sim.Evaluator
	meet func()
}

func (m meeting) Outcome(pkt sim.Packet, cuts *sim.Cuts) sim.Outcome {
	m.meet()
	return m.Evaluator.Outcome(pkt, cuts)
}
