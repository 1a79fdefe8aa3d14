package ipvs_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/ipvs/parse"
)

// Not every kernel provides ipvs to test the text. The test therefore parses it
// by the grammar of the manual, which must yield the lowered servers.
func TestIPVSRoundTrip(t *testing.T) {
	for _, scheduler := range []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "mh,mh-port", "sh,sh-port,sh-fallback", "fo", "ovf", "mine"} {
		var programs ir.Programs
		var want []ipvs.VirtualServer
		for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
			p := ipvs.Program(f)
			p.Node.IPVS.Scheduler = scheduler
			p.Services[0].Frontends[0].Match.Protocol = ir.SCTP
			*programs.At(f) = p
			want = append(want, ipvs.Lower(p).VirtualServers...)
		}
		got, err := parse.ParseServers(ipvs.Text(t, programs, "ipvsadm"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range want { // keep only what a kernel stores
			v := &want[i]
			v.Kind, v.Port, v.Match, v.Origin = 0, ir.ServicePort{}, ir.Match{}, ir.Origin{}
			for j := range v.RealServers {
				v.RealServers[j].Origin = ir.Origin{}
			}
		}
		opts := cmp.Options{cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
		if diff := cmp.Diff(want, got, opts); diff != "" || len(want) == 0 {
			t.Errorf("%s (-want +got):\n%s", scheduler, diff)
		}
	}
}
