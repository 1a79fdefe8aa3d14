package iptables

import (
	"github.com/proxyc/proxyc/apply"
	rules "github.com/proxyc/proxyc/render/iptables"
)

var _ apply.Tabled = (*Plan)(nil)

// Tables counts the rules of our chains, as kube-proxy's metrics do.
func (p *Plan) Tables() []apply.TableCount {
	var counts []apply.TableCount
	for _, f := range p.families {
		for i, want := range f.want.Tables() {
			counts = append(counts, apply.TableCount{
				Family: f.want.Family, Table: want.Name, Rules: rulesOf(want.Chains), Written: f.tables[i].written(),
			})
		}
	}
	return counts
}

// written is how many rules a change gives to the tool.
func (d *tableDiff) written() int {
	n := len(d.fill)
	for _, c := range d.set {
		n += len(c.Rules)
	}
	return n
}

func rulesOf(chains []rules.Chain) int {
	n := 0
	for i := range chains {
		n += len(chains[i].Rules)
	}
	return n
}
