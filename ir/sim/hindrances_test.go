package sim_test

import (
	"slices"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/sim"
)

// All hindrances of a packet are reported, including those behind the first
// rejecting rule.
func TestHindrances(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		want     []string
	}{
		{pod, "10.96.0.10:80", nil},
		{denied, "203.0.113.14:80", []string{"the source ranges must contain 198.18.7.7; they are 198.51.100.0/24"}},
		{denied, "203.0.113.13:80", []string{"the source ranges must contain 198.18.7.7; they are 198.51.100.0/24", "default/none must have a ready endpoint"}},
		{outside, "192.0.2.11:30082", []string{"default/remote must have a ready endpoint on node node1, or the traffic policy Cluster"}},
		{pod, "10.96.0.10:81", []string{"default/web must have port 81/tcp at its ClusterIP; it has 80/tcp"}},
		{pod, "10.96.7.7:80", []string{"a Service with rules must have 10.96.7.7, an address of the service network 10.96.0.0/16"}},
		{pod, "192.0.2.12:30083", []string{"192.0.2.12 must be an address of node node1, for the NodePort of default/none", "default/none must have a ready endpoint"}},
		{"127.0.0.1", "127.0.0.1:30080", []string{"node ports must answer on 127.0.0.1, for the NodePort of default/web"}},
		{pod, "198.51.100.1:80", nil},
		{pod, "[fd00::1]:80", nil},
	} {
		e := sim.NewEvaluator(irtest.Program(ir.ModeNFTables))
		pkt, err := sim.ParsePacket(tt.from, tt.to)
		if err != nil && tt.want != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range e.Hindrances(pkt) {
			got = append(got, h.Text)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s -> %s:\n got %q\nwant %q", tt.from, tt.to, got, tt.want)
		}
	}
}

// A packet with hindrances is not accepted. A rejected or dropped packet has
// hindrances.
func TestHindrancesAreCauses(t *testing.T) {
	for _, mode := range []ir.Mode{ir.ModeIPTables, ir.ModeNFTables, ir.ModeIPVS, ir.ModeUserspace} {
		p := irtest.Program(mode)
		e := sim.NewEvaluator(p)
		for i := range p.Services {
			for _, f := range p.Services[i].Frontends {
				for _, from := range []string{pod, node, outside, denied} {
					to := f.Match
					if to.IsNodePort() {
						to.Addr = p.Node.IP
					}
					pkt, err := sim.ParsePacket(from, to.String())
					if err != nil {
						t.Fatal(err)
					}
					if fate, n := e.Outcome(pkt, nil).Fate, len(e.Hindrances(pkt)); (fate == sim.Accepted) == (n > 0) {
						t.Errorf("%s: %s -> %s is %s, with %d hindrances", mode, from, to, fate, n)
					}
				}
			}
		}
	}
}
