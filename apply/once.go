package apply

import (
	"context"
	"fmt"

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
	if err := Converge(ctx, d, want, plan, func(p Plan) ([]Refusal, error) {
		result, err := d.Commit(ctx, p)
		done.Refused, done.Stuck = append(done.Refused, result.Refused...), result.Stuck
		return result.Refused, err
	}); err != nil {
		return plan, done, err
	}
	want = Without(want, done.Refused)
	if err := d.Read(ctx, want); err != nil {
		return plan, done, readBack(err)
	}
	rest := d.Plan(want)
	if len(done.Stuck) > 0 { // their removal is still planned; the result contains the reasons
		var ok bool
		if rest, ok = rest.Without(StuckObjects(done.Stuck)); !ok {
			return plan, done, nil
		}
	}
	if !rest.Empty() {
		return plan, done, fmt.Errorf("another program changes the committed rules: %s: stop that program, then apply again", firstOf(rest))
	}
	return plan, done, nil
}

// Converge commits a plan for want. While the kernel refuses Services, it reads the node and commits
// the difference to the rest. commit commits a Plan, and returns the refused Services.
func Converge(ctx context.Context, d Dataplane, want ir.Programs, plan Plan, commit func(Plan) ([]Refusal, error)) error {
	for {
		refused, err := commit(plan)
		if err != nil || len(refused) == 0 {
			return err
		}
		want = Without(want, refused)
		if err := d.Read(ctx, want); err != nil {
			return readBack(err)
		}
		plan = d.Plan(want)
	}
}

// firstOf names the first difference of a Plan, and counts the others.
func firstOf(p Plan) string {
	if gone := GoneIn(p); len(gone) > 0 {
		return gone[0].What + " is gone"
	}
	first, total := First(p, 1)
	text := first[0].Verb.String() + " " + first[0].Object
	if more := total.Total() - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func readBack(err error) error { return fmt.Errorf("reading the committed rules back: %w", err) }
