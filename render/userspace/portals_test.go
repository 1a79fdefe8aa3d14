package userspace

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// Each address of a Service has a listener. Node ports have listeners at
// nodePortAddresses (USR-20).
func TestPortals(t *testing.T) {
	listens := func(p *ir.Program) (list []string) {
		n := LowerNode(p.Family, &p.Node)
		for i := range p.Services {
			for _, l := range n.Portals(&p.Services[i]) {
				text := l.Object()
				for _, b := range l.Backends {
					text += " " + b.String()
				}
				if l.Affinity != 0 {
					text += " " + l.Affinity.String()
				}
				list = append(list, text)
			}
		}
		return list
	}
	vips := []string{
		"listener 10.96.0.10:80/tcp 10.244.1.10:8080 10.244.2.10:8080",
		"listener 198.18.0.10:80/tcp 10.244.1.10:8080 10.244.2.10:8080",
		"listener 203.0.113.10:80/tcp 10.244.1.10:8080 10.244.2.10:8080",
	}
	for _, test := range []struct {
		name      string
		nodePorts ir.NodePortAddrs
		want      []string
	}{
		{"all addresses", ir.NodePortAddrs{All: true}, []string{"0.0.0.0"}},
		{"those in a range", ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Assigned: true}}}, []string{"192.0.2.11"}},
		{"the node's own, twice", ir.NodePortAddrs{Prefixes: []ir.NodePortPrefix{
			{Prefix: netip.MustParsePrefix("192.0.2.11/32")}, {Prefix: netip.MustParsePrefix("0.0.0.0/1"), Assigned: true}, {Prefix: netip.MustParsePrefix("192.0.0.0/8"), Assigned: true}}},
			[]string{"192.0.2.11", "10.244.1.1"}},
		{"none", ir.NodePortAddrs{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := only(program(), "web")
			p.Node.NodePorts = test.nodePorts
			want := append([]string{}, vips...)
			for _, a := range test.want {
				want = append(want, "listener "+a+":30080/tcp 10.244.1.10:8080 10.244.2.10:8080")
			}
			if diff := cmp.Diff(want, listens(p)); diff != "" {
				t.Errorf("listeners (-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff([]string{"listener 10.96.0.13:80/tcp", "listener 203.0.113.13:80/tcp", "listener 0.0.0.0:30083/tcp"}, listens(only(program(), "none"))); diff != "" {
		t.Errorf("without endpoints (-want +got):\n%s", diff)
	}
	want := []string{"listener 10.96.0.15:53/udp 10.244.1.10:8080 10.244.2.10:8080 " + (3 * time.Hour).String()}
	if diff := cmp.Diff(want, listens(only(program(), "sticky"))); diff != "" {
		t.Errorf("with session affinity (-want +got):\n%s", diff)
	}
}
