package proof

import (
	"context"
	"fmt"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
)

// Unproved compares the rules of Programs with their meaning until ctx is done. It describes the
// first difference of each family, or why there may be one.
func Unproved(ctx context.Context, programs ir.Programs) (found []string) {
	for _, p := range ir.Present(programs) {
		r, err := prove.Compare(ctx, prove.NodeOf(p), sim.NewEvaluator(p), review.Modes[p.Node.Mode].Evaluate(p))
		switch {
		case err != nil:
			found = append(found, "not known: "+context.Cause(ctx).Error())
		case len(r.Differences) > 0:
			d := &r.Differences[0]
			found = append(found, fmt.Sprintf("proxyc trace %s: is %s, must be %s", review.PacketFlags(d.Packet), d.B, d.A))
		case len(r.Doubts) > 0:
			d, packet := &r.Doubts[0], ""
			if d.Packet.Dst.IsValid() {
				packet = "proxyc trace " + review.PacketFlags(d.Packet) + ": "
			}
			found = append(found, packet+"not known, because of "+d.Unknown[0])
		}
	}
	return found
}
