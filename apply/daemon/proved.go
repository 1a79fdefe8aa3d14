package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// proofTime is how long the proofs of a change may take, which the next change waits
// for: a Service may have more packets than that.
const proofTime = time.Second

var errProofTime = fmt.Errorf("to prove the change takes longer than %s", proofTime)

// prove holds the rules of the Services that changed against what they mean, one
// after the other, so that it costs what changed. What a whole cluster means is
// not asked: that takes seconds.
func (d *daemon) prove(s *reconcile.Sync) {
	if d.Prove == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), proofTime, errProofTime)
	defer cancel()
	names, found := provedChanges(ctx, d.Prove, s.Work)
	for _, u := range found {
		d.metrics.ProofDifferences.Inc()
		d.log.Error("the rules of a Service do not do what is wanted", "service", u.Service, "packet", u.Packet, "want", u.Want, "have", u.Have)
	}
	d.state.setUnproved(names, s.Work.All, found)
}

// provedChanges returns which Services changed, and what differs of each.
func provedChanges(ctx context.Context, prove func(context.Context, ir.Programs) []Unproved, w reconcile.Work) (names map[ir.Name]bool, found []Unproved) {
	names = map[ir.Name]bool{}
	for f, changes := range w.Changes.All() {
		for _, c := range changes {
			names[c.Name] = true
			of := w.Programs.Of(f)
			if c.New == nil || of == nil {
				continue
			}
			p := *of
			p.Services = []ir.Service{*c.New}
			for _, u := range prove(ctx, ir.NewPrograms(&p)) {
				u.Service = c.Name.String()
				found = append(found, u)
			}
		}
	}
	return names, found
}
