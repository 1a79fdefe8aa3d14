package iptables

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Bytes returns the size of the input of iptables-restore for a Plan. It measures the cost of a
// change for TestCounts in cmd/proxyc, which cannot access the steps.
func (d *Dataplane) Bytes(p apply.Plan) (n int) {
	for _, f := range ir.Present(p.(*Plan).families) {
		for _, s := range f.steps(d.maxRules()) {
			n += len(s.input(f.want.Family).text())
		}
	}
	return n
}
