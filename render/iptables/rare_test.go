package iptables

import (
	"testing"
	"unsafe"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// A large cluster has hundreds of thousands of rules, in memory twice.
func TestRuleSize(t *testing.T) {
	if size := unsafe.Sizeof(Rule{}); size > 256 {
		t.Errorf("a Rule has %d bytes, want at most 256", size)
	}
}

// Rules from other packages have a reason, including those in built-in chains.
func TestExplainRuleset(t *testing.T) {
	f := ir.Frontend{
		Match:  ir.Match{Protocol: ir.TCP, Port: 30080},
		Port:   ir.ServicePort{Service: ir.Name{Namespace: "default", Name: "web"}},
		Origin: ir.Origin{Object: "Service default/web"},
	}
	r := &Ruleset{Family: ir.IPv6, Filter: Table{Name: "filter",
		Chains: []Chain{{ChainNodePortNonLocal, []Rule{Rule{Protocol: ir.TCP, Ports: Port(20091), Target: Accept}.For(&f)}}},
		Jumps:  []BuiltInJump{{Chain: "INPUT", Rule: Rule{Target: Jump, Chain: ChainNodePortNonLocal}.Because(&ir.Origin{Object: "config"})}},
	}}
	var got []string
	r.Explain(func(e render.Entry) { got = append(got, e.String()+" # "+e.Origin.Object) })
	want := []string{
		"ip6tables filter KUBE-NODEPORT-NON-LOCAL 1: -p tcp -m tcp --dport 20091 -j ACCEPT # Service default/web",
		"ip6tables filter INPUT 1: -j KUBE-NODEPORT-NON-LOCAL # config",
	}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %q, want %q", got, want)
	}
}
