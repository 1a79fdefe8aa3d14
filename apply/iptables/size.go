package iptables

import "github.com/proxyc/proxyc/apply"

// Bytes is how much a commit of a Plan of this Target hands to iptables-restore.
func (t *Target) Bytes(p apply.Plan) (n int) {
	for i := range p.(*Plan).families {
		f := &p.(*Plan).families[i]
		for _, s := range f.steps(t.most()) {
			n += len(s.input(f.want.Family).text())
		}
	}
	return n
}
