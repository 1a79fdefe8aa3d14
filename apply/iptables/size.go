package iptables

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Bytes is how much a commit of a Plan of this Dataplane hands to iptables-restore:
// the cost of a change, which TestCounts of cmd/proxyc holds. It needs the steps,
// which nobody outside this package sees.
func (d *Dataplane) Bytes(p apply.Plan) (n int) {
	for _, f := range ir.Present(p.(*Plan).families) {
		for _, s := range f.steps(d.most()) {
			n += len(s.input(f.want.Family).text())
		}
	}
	return n
}
