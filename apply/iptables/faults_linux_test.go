package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
)

var errFault = errors.New("injected")

// For any failed run of a tool, before or after it takes effect: a Result describes the kernel's
// state, an error requires another Read, Plan and Commit, these apply all missing changes, and a
// Plan is never modified.
func TestFaultsAtEachRun(t *testing.T) {
	for _, refused := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("refused %t, after %t", refused, after), func(t *testing.T) {
				inNamespace(t, func(t *testing.T, v Variant) {
					target := open(t, apply.Options{IPTables: string(v)}, 8) // split into several runs
					target.families = target.families[:1]
					for n := 1; oneFault(t, target, refused, after, n); n = applytest.Next(n) {
						if t.Failed() || n > 200 {
							t.Fatalf("at run %d", n)
						}
					}
				})
			})
		}
	}
}

// oneFault makes the n-th run fail, and reports whether there was one.
func oneFault(t *testing.T, target *Dataplane, refused, after bool, n int) (fired bool) {
	t.Helper()
	before, all := programs(3), programs(5)
	for _, p := range ir.Present(before) {
		p.Services = p.Services[1:]
	}
	bad := all.IPv4.Services[4].Name
	want, old := lower(all), lower(before)
	want.IPv6, old.IPv6 = nil, nil
	rest := want
	if refused {
		rest = lower(apply.Without(programs(5), []apply.Refusal{{Service: bad}}))
		rest.IPv6 = nil
		spoil(want, bad)
	}
	target.run = run.To
	put(t, target, old)
	have, err := target.Rulesets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plan := target.Difference(have, want)
	planned := opsOf(plan)
	runs := 0
	target.run = func(ctx context.Context, stdin io.Reader, stdout io.Writer, name string, args ...string) error {
		if runs++; runs != n {
			return run.To(ctx, stdin, stdout, name, args...)
		}
		fired = true
		if after {
			if err := run.To(ctx, stdin, stdout, name, args...); err != nil {
				return err
			}
		}
		return errFault
	}
	result, err := target.Commit(t.Context(), plan)
	target.run = run.To
	if diff := cmp.Diff(planned, opsOf(plan)); diff != "" {
		t.Errorf("Commit changed the Plan:\n%s", diff)
	}
	if err == nil {
		checkRefused(t, "the Commit", result, refused, bad)
		if refused {
			rest = old
		}
		holds(t, target, rest)
		return fired
	}
	if !fired {
		t.Fatal(err)
	}
	for _, one := range result.Refused {
		if !refused || one.Service != bad {
			t.Errorf("%s is said to be refused", one.Service)
		}
	}
	if len(result.Tables) > 0 {
		t.Error("after an error it tells of rules that were planned")
	}
	// The steps that the interface documents suffice.
	if have, err = target.Rulesets(t.Context()); err != nil {
		t.Fatal(err)
	}
	if result, err = target.Commit(t.Context(), target.Difference(have, want)); err != nil {
		t.Fatalf("after the fault: %v", err)
	}
	checkRefused(t, "after the fault", result, refused, bad)
	if refused {
		put(t, target, rest)
	}
	holds(t, target, rest)
	return fired
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
