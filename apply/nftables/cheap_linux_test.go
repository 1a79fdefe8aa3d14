package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// If a new element or rule jumps to a chain, the kernel validates the whole table. Frequent changes
// contain no such verdicts, so their cost does not depend on the number of Services.
func TestCommonChangesSendNoVerdicts(t *testing.T) {
	for _, f := range ir.Families() {
		node := nftest.Node(f)
		l := rules.NewLowerer(f)
		for i, n := range []int{1, 2, 3, 5, 63} { // which others have, too
			others := commonService(f, 100+i, n)
			l.Change(&node, ir.Change{Name: others.Name, New: &others})
		}
		version := func(n int) *ir.Service {
			s := commonService(f, 10, n)
			return &s
		}
		for _, c := range []struct {
			what     string
			old, now *ir.Service
		}{
			{"a Service comes without endpoints", nil, version(0)},
			{"it gets five", version(0), version(5)},
			{"it has two", version(5), version(2)},
			{"it grows to three", version(2), version(3)},
			{"it grows to many", version(3), version(63)},
			{"it goes", version(63), nil},
			{"it comes with three", nil, version(3)},
			{"it has none any longer", version(3), version(0)},
		} {
			b := newBatch(planOf(update(l, &node, ir.Change{Name: version(0).Name, Old: c.old, New: c.now})), nil)
			elements := 0
			for i, m := range b.purposes {
				elements += m.count
				typ := b.messages[i].Type
				if typ != unix.NFT_MSG_NEWSETELEM && typ != unix.NFT_MSG_DELSETELEM {
					t.Errorf("%s: %s: a message of type %d about %s", f, c.what, typ, m.object)
				}
				if i := slices.IndexFunc(m.elements, func(e rules.Element) bool { return e.Verdict.Chain != "" }); i >= 0 && typ == unix.NFT_MSG_NEWSETELEM {
					t.Errorf("%s: %s: %s %s", f, c.what, m.set.Name, m.set.ElementText(&m.elements[i]))
				}
			}
			if elements == 0 {
				t.Errorf("%s: %s: no element", f, c.what)
			}
		}
	}
}

// commonService returns a Service with a ClusterIP, an external address, a node port and n
// endpoints, and without rare features.
func commonService(f ir.Family, i, n int) ir.Service {
	s := nftest.Service(f, ir.TCP, i, false)
	s.Pools = s.Pools[:1]
	template := s.Pools[0].Backends[0]
	s.Pools[0].Backends = nil
	for k := range n {
		a := template.AddrPort.Addr().AsSlice()
		a[len(a)-1] = byte(k + 1)
		b := template
		at, _ := netip.AddrFromSlice(a)
		b.AddrPort = netip.AddrPortFrom(at, template.AddrPort.Port())
		s.Pools[0].Backends = append(s.Pools[0].Backends, b)
	}
	port := s.Pools[0].Port
	s.Frontends = nil
	add := func(kind ir.Kind, m ir.Match, otherwise ir.Verdict, routes ...ir.Route) {
		if n == 0 {
			routes = nil
		}
		m.Protocol = ir.TCP
		s.Frontends = append(s.Frontends, ir.Frontend{Kind: kind, Match: m, Port: port, Routes: routes, Fallback: otherwise, Origin: s.Origin, FallbackOrigin: s.Origin})
	}
	all := ir.Route{From: ir.Any, SNAT: true}
	add(ir.ClusterIP, ir.Match{Addr: nftest.Addr(f, "10.96.0.10"), Port: uint16(i)}, ir.Reject, ir.Route{From: ir.Pods}, all)
	add(ir.ExternalIP, ir.Match{Addr: nftest.Addr(f, "203.0.113.10"), Port: uint16(1000 + i)}, ir.Drop, all)
	add(ir.NodePort, ir.Match{Port: uint16(30000 + i)}, ir.Reject, all)
	return s
}
