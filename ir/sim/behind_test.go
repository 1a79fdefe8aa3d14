package sim_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/ir/sim"
)

// In mode iptables, a packet that is translated to an address of a Service is
// filtered there, whichever frontend translated it (PKT-20). In mode nftables no
// rule sees it again.
func TestBehind(t *testing.T) {
	tests := []struct {
		what, from, endpoints string
		iptables              string
	}{
		{"a ClusterIP", pod, "10.96.0.11:80", "10.96.0.11:80"},
		{"another port of it", node, "10.96.0.11:81", "10.96.0.11:81+snat"},
		{"an unused ClusterIP", outside, "10.96.7.7:80", "10.96.7.7:80+snat"},
		{"a ClusterIP without endpoints", pod, "10.96.0.13:80", "rejected"},
		{"the same from the node", node, "10.96.0.13:80", "rejected"},
		{"the same, masqueraded and forwarded", outside, "10.96.0.13:80", "10.96.0.13:80+snat"},
		{"another port of it", pod, "10.96.0.13:81", "10.96.0.13:81"},
		{"another protocol's", pod, "10.96.0.15:53", "10.96.0.15:53"},
		{"a VIP", pod, "203.0.113.10:80", "203.0.113.10:80"},
		{"a VIP without endpoints", pod, "203.0.113.13:80", "rejected"},
		{"the same from the node", node, "203.0.113.13:80", "203.0.113.13:80+snat"},
		{"a VIP with source ranges", pod, "203.0.113.14:80", "dropped"},
		{"the same, masqueraded and forwarded", outside, "203.0.113.14:80", "dropped"},
		{"policy Local with a way for all", outside, "203.0.113.11:80", "203.0.113.11:80+snat"},
		{"a node port", pod, "192.0.2.11:30080", "192.0.2.11:30080"},
		{"a node port without endpoints", outside, "192.0.2.11:30083", "rejected"},
		{"the same from the node", node, "192.0.2.11:30083", "rejected"},
		{"one without endpoints for some", pod, "192.0.2.11:30082", "dropped"},
		{"that of another node", pod, "192.0.2.12:30083", "192.0.2.12:30083"},
		{"one of two", pod, "10.244.1.10:8080 10.96.0.13:80", "rejected (50%) or 10.244.1.10:8080 (50%)"},
		{"two of three", pod, "10.244.1.10:8080 10.96.7.7:80 10.96.7.8:80", "10.96.7.7:80 10.96.7.8:80 10.244.1.10:8080"},
		{"two fates", pod, "10.96.0.13:80 192.0.2.11:30082", "dropped (50%) or rejected (50%)"},
	}
	for _, tt := range tests {
		for mode, want := range map[ir.Mode]string{ir.ModeIPTables: tt.iptables, ir.ModeNFTables: unfiltered(tt.from, tt.endpoints)} {
			p := leadsTo(irtest.Program(mode), strings.Fields(tt.endpoints)...)
			pkt, err := sim.ParsePacket(tt.from, "10.96.0.10:80")
			if err != nil {
				t.Fatal(err)
			}
			if got := sim.Trace(p, pkt).String(); got != want {
				t.Errorf("%s: %s from %s: got %s, want %s", mode, tt.what, tt.from, got, want)
			}
			for _, h := range sim.NewEvaluator(p).Hindrances(pkt) {
				if !strings.HasPrefix(h.Origin.Object, "EndpointSlice ") {
					t.Errorf("%s: %s: %s is named, and no endpoint", mode, tt.what, h.Origin)
				}
			}
		}
	}
}

// leadsTo replaces the endpoints of Service web.
func leadsTo(p *ir.Program, endpoints ...string) *ir.Program {
	for i := range p.Services {
		if s := &p.Services[i]; s.Name.Name == "web" {
			s.Pools[0].Backends = nil
			for _, e := range endpoints {
				s.Pools[0].Backends = append(s.Pools[0].Backends, ir.Backend{AddrPort: netip.MustParseAddrPort(e), Origin: ir.Origin{Object: "EndpointSlice default/web-1"}})
			}
		}
	}
	return p
}

// unfiltered returns the outcome if nothing filters packets to endpoints.
func unfiltered(from, endpoints string) string {
	all := strings.Fields(endpoints)
	slices.SortFunc(all, func(a, b string) int { return netip.MustParseAddrPort(a).Compare(netip.MustParseAddrPort(b)) })
	for i := range all {
		if from != pod && !strings.HasPrefix(all[i], "192.0.2.11:") || from == node {
			all[i] += "+snat"
		}
	}
	return strings.Join(all, " ")
}
