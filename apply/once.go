package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Once applies Programs to a node: it reads the node, plans, commits if approve accepts the plan, and
// reads the node again to verify the result. It returns the plan, even if that is empty. Services
// that the kernel refuses have no rules afterwards, not even previous ones.
func Once(ctx context.Context, d Dataplane, want ir.Programs, approve func(Plan) bool) (Plan, Result, error) {
	var done Result
	if err := d.Read(ctx, want); err != nil {
		return nil, done, err
	}
	plan := d.Plan(want)
	if plan.Empty() || !approve(plan) {
		return plan, done, nil
	}
	commit := func(p Plan) ([]Refusal, error) {
		result, err := d.Commit(ctx, p)
		done.RefusedRemovals = result.RefusedRemovals
		return result.Refused, err
	}
	var err error
	if done.Refused, err = Converge(ctx, d, want, nil, plan, commit); err != nil {
		return plan, done, err
	}
	left, rest, err := difference(ctx, d, want, &done)
	if left == "" {
		return plan, done, err
	}
	// Another program may have written once. If a second commit leaves the same difference, it is permanent.
	if _, err := commit(rest); err != nil {
		return plan, done, err
	}
	again, _, err := difference(ctx, d, want, &done)
	switch again {
	case "":
		return plan, done, err
	case left:
		return plan, done, fmt.Errorf("the kernel accepts the rules, but returns others: %s: apply --check shows them; another program changes them after each commit, or proxyc compares them wrongly", again)
	}
	return plan, done, fmt.Errorf("another program changes the committed rules: %s: stop that program, then apply again", again)
}

// difference reads the node, and returns its difference to the wanted Programs as text and as a Plan.
// The text is empty if there is none but refused removals, for which the result contains the reasons.
func difference(ctx context.Context, d Dataplane, want ir.Programs, done *Result) (text string, rest Plan, err error) {
	want = Without(want, done.Refused)
	if err := d.Read(ctx, want); err != nil {
		return "", nil, readBack(err)
	}
	rest = d.Plan(want)
	if gone := GoneIn(rest); len(gone) > 0 {
		return gone[0].What + " is gone", rest, nil
	}
	refused, n := RefusedObjects(done.RefusedRemovals), 0
	for op := range rest.Operations {
		if refused[op.Object] {
			continue
		}
		if n++; n == 1 {
			text = op.Verb.String() + " " + op.Object
		}
	}
	if n > 1 {
		text += fmt.Sprintf(" and %d more", n-1)
	}
	return text, rest, nil
}

// Converge commits a plan for the Programs without the Services that are refused already. While the
// kernel refuses more, it reads the node and commits the difference to the rest. commit commits a Plan,
// and returns the newly refused Services. It returns all refused ones. If their cause is shared, it
// returns an error instead, and the rules in force remain.
func Converge(ctx context.Context, d Dataplane, programs ir.Programs, refused []Refusal, plan Plan, commit func(Plan) ([]Refusal, error)) ([]Refusal, error) {
	for {
		more, err := commit(plan)
		if err != nil || len(more) == 0 {
			return refused, err
		}
		refused = append(refused, more...)
		if err := SharedCause(programs, refused); err != nil {
			return nil, err
		}
		want := Without(programs, refused)
		if err := d.Read(ctx, want); err != nil {
			return nil, readBack(err)
		}
		plan = d.Plan(want)
	}
}

// MaxRefused is the number of refused Services that shows a shared cause. A Dataplane need not search for
// more.
const MaxRefused = 10

// SharedCause returns an error if so many Services are refused that their cause is the node's, such as its
// configuration or its kernel: MaxRefused, several that are more than a tenth, or all that have endpoints.
func SharedCause(programs ir.Programs, refused []Refusal) error {
	all, served, out := map[ir.Name]bool{}, map[ir.Name]bool{}, map[ir.Name]bool{}
	for _, r := range refused {
		all[r.Service], out[r.Service] = true, true
	}
	for _, p := range ir.Present(programs) {
		for i := range p.Services {
			s := &p.Services[i]
			all[s.Name] = true
			if len(s.Pools) > 0 {
				served[s.Name] = true
			}
		}
	}
	if len(served) == 0 {
		served = all
	}
	others := 0
	for name := range served {
		if !out[name] {
			others++
		}
	}
	n := len(out)
	if n == 0 || others > 0 && (n == 1 || n < MaxRefused && 10*n <= len(all)) {
		return nil
	}
	first := refused[0]
	return fmt.Errorf("the kernel refuses the rules of %d of %d Services, which counts as a failure of the node: the previous rules stay in force. The refused are of %s. Service %s: %w",
		n, len(all), whose(out), first.Service, first.Reason)
}

// whose names Services and their namespaces: "namespace a: a/b, a/c".
func whose(services map[ir.Name]bool) string {
	var names []string
	namespaces := map[string]bool{}
	for name := range services {
		names, namespaces[name.Namespace] = append(names, name.String()), true
	}
	slices.Sort(names)
	where := fmt.Sprintf("%d namespaces: ", len(namespaces))
	if len(namespaces) == 1 {
		where, _, _ = strings.Cut(names[0], "/")
		where = "namespace " + where + ": "
	}
	if more := len(names) - 2*MaxRefused; more > 0 {
		names = append(names[:2*MaxRefused], fmt.Sprintf("%d more", more))
	}
	return where + strings.Join(names, ", ")
}

func readBack(err error) error { return fmt.Errorf("reading the committed rules back: %w", err) }
