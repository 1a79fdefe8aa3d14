package flows

import (
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/ir"
)

// Flows of a family without rules, and of other protocols, are other flows, not those of other zones.
func TestOtherFlows(t *testing.T) {
	r := &Review{}
	for _, e := range []conntrack.Entry{{}, {Protocol: ir.TCP, To: netip.MustParseAddrPort("[fd00::1]:80")}, {Zone: 5}} {
		if err := r.add(e); err != nil {
			t.Fatal(err)
		}
	}
	if r.others != 2 || r.zones != 1 {
		t.Errorf("%d other flows and %d in other zones, want 2 and 1", r.others, r.zones)
	}
}
