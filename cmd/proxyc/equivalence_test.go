package main

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

var packets = flag.Int("packets", 20000, "random packets for each mode")

// TestEquivalence holds the rules of every mode against the meaning of the IR:
// the same packets through random clusters meet the same fate.
func TestEquivalence(t *testing.T) {
	start := applytest.Seed(t)
	const perWorld = 50
	for _, mode := range ir.Modes() {
		if ruleSides[mode] == nil {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			met := map[sim.Fate]int{}
			for n := range uint64(applytest.Fewer(*packets / perWorld)) {
				r := newRandom(start, n)
				w := r.world(mode)
				programs := w.compile(t)
				for range perWorld {
					p := programs.Of(ir.Families()[r.IntN(2)])
					pkt := r.packet(p)
					got, want := w.fates(p, pkt)
					met[want.Fate]++
					if !got.Equal(want) {
						w.fail(t, fmt.Sprintf("-seed=%d, world %d", start, n), pkt)
						return
					}
				}
			}
			t.Logf("%v", met)
			for _, fate := range []sim.Fate{sim.NotOurs, sim.Accepted} {
				if met[fate] == 0 {
					t.Errorf("no packet was %s: the test shows nothing", fate)
				}
			}
		})
	}
}

func (w *world) compile(t testing.TB) ir.Programs {
	programs, _ := compile(t, w.completeConfig(), w.snapshot(nil), w.facts)
	return programs
}

func (w *world) completeConfig() *config.Config {
	cfg := config.Default()
	w.config(cfg)
	config.SetDefaults(cfg)
	config.Complete(cfg)
	return cfg
}

// fates returns what the rules and what the IR do with a packet.
func (w *world) fates(p *ir.Program, pkt sim.Packet) (rules, ir sim.Outcome) {
	return ruleSides[w.mode](p).Outcome(pkt, nil), sim.Trace(p, pkt)
}

// fail reports the smallest world that still shows the difference.
func (w *world) fail(t *testing.T, where string, pkt sim.Packet) {
	t.Helper()
	small := w.shrink(func(w *world) bool {
		programs, _ := compiler.Compile(w.completeConfig(), w.snapshot(nil), w.facts)
		got, want := w.fates(programFor(programs, pkt.Dst), pkt)
		return !got.Equal(want)
	})
	programs := small.compile(t)
	p := programFor(programs, pkt.Dst)
	got, want := small.fates(p, pkt)
	var text, rules bytes.Buffer
	ir.WriteText(&text, ir.NewPrograms(p))
	writeFormat(&rules, programs, "")
	outcome, steps := sim.Explain(p, pkt)
	t.Errorf("%s\nthe rules: %s\nthe IR:    %s\n%s\n%s\n%s", where, got, want, traced{pkt: pkt, outcome: outcome, steps: steps}, &text, &rules)
}

// shrink leaves out Services, slices, ports and endpoints as long as the
// world fails.
func (w *world) shrink(fails func(*world) bool) *world {
	for {
		smaller := slices.IndexFunc(w.smaller(), fails)
		if smaller < 0 {
			return w
		}
		w = w.smaller()[smaller]
	}
}

// smaller returns the worlds that lack one piece of this one.
func (w *world) smaller() (out []*world) {
	add := func(change func(*world)) {
		c := *w
		c.services, c.slices = slices.Clone(w.services), slices.Clone(w.slices)
		change(&c)
		out = append(out, &c)
	}
	for i, s := range w.services {
		add(func(c *world) { c.services = slices.Delete(c.services, i, i+1) })
		for j := range s.Ports {
			if len(s.Ports) > 1 {
				small := *s
				small.Ports = slices.Delete(slices.Clone(s.Ports), j, j+1)
				add(func(c *world) { c.services[i] = &small })
			}
		}
		for j := range s.SourceRanges {
			small := *s
			small.SourceRanges = slices.Delete(slices.Clone(s.SourceRanges), j, j+1)
			add(func(c *world) { c.services[i] = &small })
		}
	}
	for i, s := range w.slices {
		add(func(c *world) { c.slices = slices.Delete(c.slices, i, i+1) })
		for j := range s.Endpoints {
			small := *s
			small.Endpoints = slices.Delete(slices.Clone(s.Endpoints), j, j+1)
			add(func(c *world) { c.slices[i] = &small })
		}
	}
	return out
}

// allText returns every text of a compilation, diagnostics included.
func (w *world) allText(t testing.TB, order func(n int, swap func(i, j int))) string {
	t.Helper()
	programs, diags := compiler.Compile(w.completeConfig(), w.snapshot(order), w.facts)
	var b strings.Builder
	_, all, rendered := outputs(programs)
	for _, o := range all {
		if err := o.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeExplain(&b, rendered); err != nil {
		t.Fatal(err)
	}
	b.WriteString(diagnosticsText(diags))
	return b.String()
}

// FuzzOrder checks that the order of objects changes no byte, in any mode.
func FuzzOrder(f *testing.F) {
	for i := range uint64(10) {
		f.Add(i, i, uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed, shuffle uint64, mode uint8) {
		r := newRandom(seed, 0)
		w := r.world(ir.Modes()[int(mode)%len(ir.Modes())])
		want := w.allText(t, nil)
		if got := w.allText(t, newRandom(shuffle, 1).Shuffle); got != want {
			t.Errorf("another order of objects gives other text")
		}
	})
}
