package iptables

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// A Dataplane is read once, and then follows changes.
func TestPlanChanges(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		shell(t, foreign, tool(ir.IPv4, v, "restore"))
		target := open(t, apply.Options{IPTables: string(v)}, 200)
		writer := &reconcile.Writer{Dataplane: target}
		random := rand.New(rand.NewPCG(5, 6))
		all := programs(200)
		now := thinned(all, random)
		if _, err := writer.Replace(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			next := thinned(all, random)
			if result, err := target.Commit(t.Context(), target.PlanChanges(target.Applied().From(changes(now, next)))); err != nil || len(result.Refused) > 0 {
				t.Fatal(err, result.Refused)
			}
			now = next
			holds(t, target, lower(now))
		}
		done, err := writer.Replace(t.Context(), now)
		if err != nil || done.Drift != (apply.Count{}) || done.Operations != (apply.Count{}) {
			t.Errorf("a full sync found drift %v and did %v: %v", done.Drift, done.Operations, err)
		}
	})
}

func holds(t *testing.T, target *Dataplane, want rules.Rulesets) {
	t.Helper()
	have, err := target.Rulesets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rest := target.Difference(have, want); !rest.Empty() {
		t.Errorf("not what is wanted: %v", opsOf(rest))
	}
}

// A change that fails leaves the previous state, including foreign rules.
func TestFailedChangeLeavesTheOldState(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 50)
		now, next := programs(100), programs(150)
		put(t, target, lower(now))
		target.applied.Replace(now)
		plan := target.PlanChanges(target.Applied().From(changes(now, next)))
		runs, failed := 0, errors.New("no more runs")
		target.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
			if strings.HasSuffix(name, "restore") {
				if runs++; runs == 2 {
					return failed
				}
			}
			return run.To(ctx, stdin, stdout, name, args...)
		}
		if _, err := target.Commit(t.Context(), plan); !errors.Is(err, failed) {
			t.Fatalf("got %v, want %v", err, failed)
		}
		if runs < 3 {
			t.Error("nothing was taken back")
		}
		holds(t, target, lower(now))
	})
}

// refusedInChange is the Service that the kernel rejects in spoiledChange.
var refusedInChange = ir.Name{Namespace: "default", Name: "s112"}

// spoiledChange plans a change in which the kernel rejects one Service.
func spoiledChange(t *testing.T, target *Dataplane, now, next ir.Programs) *Plan {
	t.Helper()
	put(t, target, lower(now))
	target.applied.Replace(now)
	plan := target.PlanChanges(target.Applied().From(changes(now, next))).(*Plan)
	spoil(plan.want, refusedInChange)
	return plan
}

// A change that is partially rejected does not affect foreign rules.
func TestQuarantineOfAChange(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 0)
		now := programs(100)
		plan := spoiledChange(t, target, now, programs(120))
		if diff := cmp.Diff([]string{refusedInChange.String()}, refusals(t, target, plan)); diff != "" {
			t.Errorf("refused (-want +got):\n%s", diff)
		}
		holds(t, target, lower(now))
	})
}
