package iptables

import (
	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

// Bytes is how much a commit of a Plan of this Target hands to iptables-restore.
func (d *Dataplane) Bytes(p apply.Plan) (n int) {
	for _, f := range ir.Present(p.(*Plan).families) {
		for _, s := range f.steps(d.most()) {
			n += len(s.input(f.want.Family).text())
		}
	}
	return n
}
