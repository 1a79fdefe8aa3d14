package reviewtest

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Packets is the number of random packets that tests send through each mode.
var Packets = flag.Int("packets", applytest.Of(2500, 20000), "random packets for each mode")

// Compile compiles the world for its node, and checks that the Programs are valid.
func (w *World) Compile(t testing.TB) ir.Programs {
	programs, _ := Compile(t, w.CompleteConfig(), w.Snapshot(nil), w.Facts)
	return programs
}

// CompleteConfig returns the configuration with all defaults.
func (w *World) CompleteConfig() *config.Config {
	cfg := config.Default()
	w.Config(cfg)
	config.SetDefaults(cfg)
	config.Complete(cfg)
	return cfg
}

// Fates returns the outcomes of a packet by the rules and by the IR.
func (w *World) Fates(p *ir.Program, pkt sim.Packet) (rules, ir sim.Outcome) {
	return review.Modes[w.mode].Evaluate(p).Outcome(pkt, nil), sim.Trace(p, pkt)
}

// Fail reports the smallest world that still shows the difference.
func (w *World) Fail(t *testing.T, where string, pkt sim.Packet) {
	t.Helper()
	small := w.shrink(func(w *World) bool {
		programs, _ := compiler.Compile(w.CompleteConfig(), w.Snapshot(nil), w.Facts)
		got, want := w.Fates(programs.Of(ir.FamilyOf(pkt.Dst)), pkt)
		return !got.Equal(want)
	})
	programs := small.Compile(t)
	p := programs.Of(ir.FamilyOf(pkt.Dst))
	got, want := small.Fates(p, pkt)
	var text, rules bytes.Buffer
	ir.WriteText(&text, ir.NewPrograms(p))
	review.WriteFormat(&rules, programs, "")
	outcome, steps := sim.Explain(p, pkt)
	var way strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&way, "  %s # %s\n", s.Text, s.Origin)
	}
	t.Errorf("%s\nthe rules: %s\nthe IR:    %s\n%+v\n%s  => %s\n%s\n%s", where, got, want, pkt, &way, outcome, &text, &rules)
}

// shrink removes Services, slices, ports and endpoints while the world still fails.
func (w *World) shrink(fails func(*World) bool) *World {
	for {
		smaller := slices.IndexFunc(w.smaller(), fails)
		if smaller < 0 {
			return w
		}
		w = w.smaller()[smaller]
	}
}

// smaller returns the worlds with one part less.
func (w *World) smaller() (out []*World) {
	add := func(change func(*World)) {
		c := *w
		c.Services, c.Slices = slices.Clone(w.Services), slices.Clone(w.Slices)
		change(&c)
		out = append(out, &c)
	}
	for i, s := range w.Services {
		add(func(c *World) { c.Services = slices.Delete(c.Services, i, i+1) })
		for j := range s.Ports {
			if len(s.Ports) > 1 {
				small := *s
				small.Ports = slices.Delete(slices.Clone(s.Ports), j, j+1)
				add(func(c *World) { c.Services[i] = &small })
			}
		}
		for j := range s.SourceRanges {
			small := *s
			small.SourceRanges = slices.Delete(slices.Clone(s.SourceRanges), j, j+1)
			add(func(c *World) { c.Services[i] = &small })
		}
	}
	for i, s := range w.Slices {
		add(func(c *World) { c.Slices = slices.Delete(c.Slices, i, i+1) })
		for j := range s.Endpoints {
			small := *s
			small.Endpoints = slices.Delete(slices.Clone(s.Endpoints), j, j+1)
			add(func(c *World) { c.Slices[i] = &small })
		}
	}
	return out
}
