package iptables

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// A daemon's plane reads once, and then follows the changes.
func TestPlane(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		shell(t, foreign, tool(ir.IPv4, v, "restore"))
		target := open(t, Options{Variant: v, MostRules: 200})
		plane := &loop.Plane[rules.Rulesets]{Target: target, Memory: NewMemory(target)}
		random := rand.New(rand.NewPCG(5, 6))
		all := programs(200)
		now := thinned(all, random)
		if _, err := plane.Replace(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			next := thinned(all, random)
			if done, err := plane.Change(t.Context(), changes(now, next)); err != nil || len(done.Refused) > 0 {
				t.Fatal(err, done.Refused)
			}
			now = next
			holds(t, target, now)
		}
		done, err := plane.Replace(t.Context(), now)
		if err != nil || done.Drift != (apply.Count{}) || done.Operations != (apply.Count{}) {
			t.Errorf("a full sync found drift %v and did %v: %v", done.Drift, done.Operations, err)
		}
	})
}

func holds(t *testing.T, target *Target, programs []*ir.Program) {
	t.Helper()
	have, err := target.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rest := target.Plan(have, lower(programs...)); !rest.Empty() {
		t.Errorf("not what is wanted: %v", opsOf(rest))
	}
}

// A change that fails on its way leaves what was there, that of others included.
func TestFailedChangeLeavesTheOldState(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, Options{Variant: v, MostRules: 50})
		now, next := programs(100), programs(150)
		put(t, target, lower(now...))
		m := NewMemory(target)
		m.Remember(now)
		plan := m.Plan(bare(now), changes(now, next))
		runs, failed := 0, errors.New("no more runs")
		target.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
			if strings.HasSuffix(name, "restore") {
				if runs++; runs == 2 {
					return failed
				}
			}
			return run.To(ctx, stdin, stdout, name, args...)
		}
		if err := target.Commit(t.Context(), plan); !errors.Is(err, failed) {
			t.Fatalf("got %v, want %v", err, failed)
		}
		if runs < 3 {
			t.Error("nothing was taken back")
		}
		holds(t, target, now)
	})
}

// A change that the kernel refuses in part does not touch others, either.
func TestQuarantineOfAChange(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, Options{Variant: v})
		now, next := programs(100), programs(120)
		put(t, target, lower(now...))
		m := NewMemory(target)
		m.Remember(now)
		plan := m.Plan(bare(now), changes(now, next)).(*Plan)
		refused := ir.Name{Namespace: "default", Name: "s112"}
		for i := range plan.families {
			for _, c := range plan.families[i].want.Nat.Chains {
				if s, own := c.Service(); own && s == refused {
					c.Rules[0] = rules.Rule{Raw: "-j REJECT"} // the kernel knows it in filter only
				}
			}
		}
		err := target.Commit(t.Context(), plan)
		q, ok := errors.AsType[*apply.Quarantine](err)
		if !ok || len(q.Refused) != 1 || q.Refused[0].Service != refused {
			t.Fatalf("got %v, want %s refused", err, refused)
		}
		have, err := target.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var want rules.Rulesets
		for _, r := range lower(next...) {
			want = append(want, r.Without(map[ir.Name]bool{refused: true}))
		}
		if rest := target.Plan(have, want); !rest.Empty() {
			t.Errorf("still to do: %v", opsOf(rest))
		}
	})
}
