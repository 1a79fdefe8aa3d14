package judge

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/apply/conntrack"
	"github.com/proxyc/proxyc/ir"
)

// A tracked flow is a conntrack entry, and whether kube-proxy's cleanup keeps it.
type tracked struct {
	Protocol         uint8
	To, From         string
	ToPort, FromPort uint16
	Kept             bool
}

// TestConntrack checks that the cleanup removes the same conntrack entries.
func TestConntrack(t *testing.T) {
	const table = "proxy-conntrack"
	diffs := loadDifferences(t, table)
	n := 0
	for _, test := range load(t, table) {
		w := newWorld(t, ir.ModeIPTables)
		w.settings.NodeIP, w.local = "192.168.0.2", []string{"192.168.0.2"}
		for _, f := range test.Facts {
			if w.take(f) {
				continue
			}
			for i, e := range decode[[]tracked](t, f.Is) {
				n++
				entry := conntrack.Entry{Protocol: protocols[e.Protocol], Client: netip.MustParseAddrPort("10.240.9.9:5000"),
					To: netip.AddrPortFrom(netip.MustParseAddr(w.local[0]), e.ToPort), ID: uint32(i)}
				if e.To != "" { // otherwise the flow was to a node port, and the test does not state the address
					entry.To = netip.AddrPortFrom(netip.MustParseAddr(e.To), e.ToPort)
				}
				entry.From = netip.AddrPortFrom(netip.MustParseAddr(e.From), e.FromPort)
				if e.From == e.To && e.FromPort == 0 { // not translated, and the test omits the port
					entry.From = entry.To
				}
				_, stale := conntrack.NewSelector(w.program(), nil).Stale(entry)
				diffs.compare(t, fmt.Sprintf("%s %s: %s", table, test.Test, entry), kept(e.Kept), kept(!stale))
			}
		}
	}
	if n < 70 {
		t.Errorf("only %d entries", n)
	}
}

var protocols = map[uint8]ir.Protocol{6: ir.TCP, 17: ir.UDP, 132: ir.SCTP}

func kept(k bool) string {
	if k {
		return "kept"
	}
	return "removed"
}
