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
	if err := d.Read(ctx); err != nil {
		return nil, done, err
	}
	first := d.Plan(want)
	if first.Empty() || !approve(first) {
		return first, done, nil
	}
	for plan := first; ; plan = d.Plan(want) {
		result, err := d.Commit(ctx, plan)
		done.Refused = append(done.Refused, result.Refused...)
		if err != nil {
			return first, done, err
		}
		if err := d.Read(ctx); err != nil {
			return first, done, fmt.Errorf("reading back what was committed: %w", err)
		}
		if len(result.Refused) == 0 {
			break
		}
		want = Without(want, result.Refused)
	}
	if rest := d.Plan(want); !rest.Empty() {
		_, total := Summary(rest)
		return first, done, fmt.Errorf("the node does not hold what was committed (%s to go): somebody else changes the same rules", total)
	}
	return first, done, nil
}
