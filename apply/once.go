package apply

import (
	"context"
	"fmt"
)

// Once brings a node to what is wanted: it reads, plans, lets approve decide
// about the plan, commits, and reads again to see that the node holds it.
// approve gives false where the plan is only to be looked at. Once gives the
// plan, also when there was nothing to do.
func Once[R any](ctx context.Context, t Target[R], want R, approve func(Plan) bool) (Plan, error) {
	have, err := t.Read(ctx)
	if err != nil {
		return nil, err
	}
	plan := t.Plan(have, want)
	if plan.Empty() || !approve(plan) {
		return plan, nil
	}
	if err := t.Commit(ctx, plan); err != nil {
		return plan, err
	}
	have, err = t.Read(ctx)
	if err != nil {
		return plan, fmt.Errorf("reading back what was committed: %w", err)
	}
	if rest := t.Plan(have, want); !rest.Empty() {
		_, total := Summary(rest)
		return plan, fmt.Errorf("the node does not hold what was committed (%s to go): somebody else changes the same rules", total)
	}
	return plan, nil
}
