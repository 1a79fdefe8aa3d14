package apply

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/ir"
)

// Once brings a node to what is wanted: it reads, plans, lets approve decide
// about the plan, commits, and reads again to see that the node holds it.
// approve returns false where the plan is only to be looked at. Once returns the
// plan, also when there was nothing to do. Services that the kernel refuses are
// not in force, whatever was there of them before.
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
		done.Refused = append(done.Refused, result.Refused...)
		return result.Refused, err
	}); err != nil {
		return plan, done, err
	}
	want = Without(want, done.Refused)
	if err := d.Read(ctx, want); err != nil {
		return plan, done, readBack(err)
	}
	if rest := d.Plan(want); !rest.Empty() {
		_, total := Summary(rest)
		return plan, done, fmt.Errorf("the node does not match the committed rules (%s missing): another program changes them", total)
	}
	return plan, done, nil
}

// Converge commits plan, which leads to want, and then, as long as the kernel
// refuses Services, reads the node and commits what leads to the rest. commit
// carries a Plan out, and returns the Services that were refused.
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

func readBack(err error) error { return fmt.Errorf("reading the committed rules back: %w", err) }
