package proof

import (
	"context"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Unproved compares the rules of Programs with their meaning until ctx is done. It returns the
// first difference of each family.
func Unproved(ctx context.Context, programs ir.Programs) (found []status.Unproved) {
	for _, p := range ir.Present(programs) {
		r, err := prove.Compare(ctx, prove.NodeOf(p), sim.NewEvaluator(p), review.Modes[p.Node.Mode].Evaluate(p))
		switch {
		case err != nil:
			found = append(found, status.Unproved{Want: status.AnyFate, Have: "not known: " + context.Cause(ctx).Error()})
		case len(r.Differences) > 0:
			d := &r.Differences[0]
			found = append(found, status.Unproved{Packet: review.PacketFlags(d.Packet), Want: d.A.String(), Have: d.B.String()})
		case len(r.Doubts) > 0:
			d := &r.Doubts[0]
			u := status.Unproved{Want: status.AnyFate, Have: "not known, because of " + d.Unknown[0]}
			if d.Packet.Dst.IsValid() {
				u.Packet = review.PacketFlags(d.Packet)
			}
			found = append(found, u)
		}
	}
	return found
}
