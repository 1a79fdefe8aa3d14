package nftables

import (
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// When the last Service goes, nothing is counted any longer, and all that was
// added for the first has gone.
func TestLowererLetsGo(t *testing.T) {
	p := richProgram(ir.IPv4)
	l := NewLowerer(ir.IPv4)
	var there, back []ir.Change
	for i := range p.Services {
		s := &p.Services[i]
		there, back = append(there, ir.Change{Name: s.Name, New: s}), append(back, ir.Change{Name: s.Name, Old: s})
	}
	in, out := l.Change(&p.Node, there...), l.Change(&p.Node, back...)
	if len(in.AddedChains) == 0 || len(in.AddedChains) != len(out.RemovedChains) || len(in.RemovedChains)+len(out.AddedChains) > 0 {
		t.Errorf("%d chains came and %d went", len(in.AddedChains), len(out.RemovedChains))
	}
	for _, id := range SharedSets() {
		if len(in.Added[id]) == 0 || len(in.Added[id]) != len(out.Removed[id]) {
			t.Errorf("%s: %d elements came and %d went", id, len(in.Added[id]), len(out.Removed[id]))
		}
	}
	if len(l.users)+len(l.wanters) > 0 {
		t.Errorf("without Services it remembers %v and %v", l.users, l.wanters)
	}
}
