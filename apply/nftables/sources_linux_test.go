package nftables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// guarded returns a load balancer with ports and source ranges, of which from is the first.
// Services with the same ranges share their list.
func guarded(i, ports, ranges, from int) *ir.Service {
	s := &ir.Service{Name: ir.Name{Namespace: "ns", Name: fmt.Sprintf("guarded%d", i)}}
	s.Origin = ir.Origin{Object: "Service " + s.Name.String()}
	var list []ir.SourceRange
	for n := from; n < from+ranges; n++ {
		list = append(list, ir.SourceRange{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(n>>15), byte(n >> 7), byte(n << 1), 0}), 24), Origin: s.Origin})
	}
	for p := range ports {
		s.Frontends = append(s.Frontends, ir.Frontend{Kind: ir.LoadBalancer, Port: ir.ServicePort{Service: s.Name, Port: fmt.Sprint("p", p), Protocol: ir.TCP},
			Match:        ir.Match{Addr: netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), Protocol: ir.TCP, Port: uint16(1 + p)},
			SourceRanges: list, Fallback: ir.Drop, FallbackOrigin: s.Origin, Origin: s.Origin})
	}
	return s
}

// The number of elements of a Service is the sum of its ports and ranges, not their product, and
// does not depend on other Services. So does the time.
func TestSourceRangesCostTheirSum(t *testing.T) {
	const ports, ranges = 100, 1000
	n := newNode(t)
	node := nftest.Node(ir.IPv4)
	if _, err := once(t, n, lower(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)})); err != nil {
		t.Fatal(err)
	}
	l := rules.NewLowerer(ir.IPv4)
	// commit returns how long Services take to come, at best of some times, and how many elements.
	commit := func(services ...*ir.Service) (best time.Duration, elements int) {
		t.Helper()
		best = time.Hour
		for range 5 {
			var in, out []ir.Change
			for _, s := range services {
				in, out = append(in, ir.Change{Name: s.Name, New: s}), append(out, ir.Change{Name: s.Name, Old: s})
			}
			plan := planOf(update(l, &node, in...))
			elements = 0
			b := newBatch(plan, nil)
			for i, m := range b.messages {
				if m.Type == unix.NFT_MSG_NEWSETELEM {
					elements += len(b.purposes[i].elements)
				}
			}
			start := time.Now()
			if r, err := n.Commit(t.Context(), plan); err != nil || len(r.Refused) > 0 {
				t.Fatal(err, r.Error())
			}
			best = min(best, time.Since(start))
			if _, err := n.Commit(t.Context(), planOf(update(l, &node, out...))); err != nil {
				t.Fatal(err)
			}
		}
		return best, elements
	}
	sum, parts := commit(guarded(1, ports, 1, 0), guarded(2, 1, ranges, 0))
	whole, elements := commit(guarded(1, ports, ranges, 0))
	if elements != 3*ports+ranges { // a list of each frontend, its counter, and that it has no endpoints
		t.Errorf("%d elements for %d ports and %d ranges; %d for a Service of the ports and one of the ranges", elements, ports, ranges, parts)
	}
	if whole > 3*sum {
		t.Errorf("%v for a Service of %d ports and %d ranges; %v for one of the ports and one of the ranges", whole, ports, ranges, sum)
	}
	// Others with the same list come for their frontends alone, and a change is that of one list.
	first := guarded(1, ports, ranges, 0)
	if _, err := n.Commit(t.Context(), planOf(update(l, &node, ir.Change{Name: first.Name, New: first}))); err != nil {
		t.Fatal(err)
	}
	if _, elements := commit(guarded(2, ports, ranges, 0)); elements != 3*ports {
		t.Errorf("%d elements for %d ports and ranges that are there", elements, ports)
	}
	if _, elements := commit(guarded(2, 1, 20, ranges)); elements != 3+20 {
		t.Errorf("%d elements for a port and 20 ranges beside a Service of many", elements)
	}
	t.Logf("%v, and %v for the parts", whole, sum)
}

// Intervals are written and read correctly: adjacent ones, up to the last address, in any order of
// the kernel. nft lists the same.
func TestIntervals(t *testing.T) {
	n := newNode(t)
	for _, f := range ir.Families() {
		var s *rules.Set
		want := map[ir.Family]*ir.Program{}
		for _, g := range ir.Families() {
			want[g] = &ir.Program{Family: g, Node: nftest.Node(g)}
		}
		ranges := []string{"0.0.0.0/8", "10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24", "127.255.255.255/32", "128.0.0.0/2", "192.168.0.7/32", "192.168.0.8/32", "224.0.0.0/4", "240.0.0.0/4"}
		if f == ir.IPv6 {
			ranges = []string{"::/8", "2001:db8::/33", "2001:db8:8000::/33", "2001:db9::/32", "7fff::/16", "8000::/2", "fd00::7/128", "fd00::8/128", "fe00::/8", "ff00::/8"}
		}
		svc := nftest.Service(f, ir.TCP, 10, false)
		for i := range svc.Frontends {
			if fe := &svc.Frontends[i]; fe.SourceRanges != nil {
				fe.SourceRanges = nil
				for _, r := range ranges {
					fe.SourceRanges = append(fe.SourceRanges, ir.SourceRange{Prefix: netip.MustParsePrefix(r), Origin: fe.Origin})
				}
			}
		}
		want[f].Services = []ir.Service{svc}
		tables := lower(want[ir.IPv4], want[ir.IPv6])
		of := tables.Of(f)
		if s = &of.Sets[len(of.Sets)-1]; !rules.IsSources(s.Name) || len(s.Elements) != len(ranges) {
			t.Fatalf("%s has %d elements", s.Name, len(s.Elements))
		}
		if _, err := once(t, n, tables); err != nil {
			t.Fatal(err)
		}
		holds(t, "through netlink", n, tables)
		ours := n.list(t)
		n.nft(t, "", "flush", "ruleset")
		n.load(t, tables)
		holds(t, "through nft", n, tables)
		if theirs := n.list(t); !onlyOrder(ours, theirs) {
			t.Errorf("nft lists otherwise what it has written:\n%q\n%q", ours, theirs)
		}
	}
}

// A table of a release that refused packets in chains of type filter, and compared hairpin connections
// with ports, is kept, including affinity. One transaction replaces them.
func TestEarlierRelease(t *testing.T) {
	n := newNode(t)
	want := both(nftest.Program)
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	if err := n.write(t, `add map ip proxyc firewall-lists { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 203.0.113.10 . tcp . 80 : drop }; }; add chain ip proxyc cluster-ips-check; `+
		`add rule ip proxyc cluster-ips-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services reject; `+
		`add chain ip proxyc filter-forward { type filter hook forward priority 0; }; add rule ip proxyc filter-forward ct state new jump cluster-ips-check; `+
		`add set ip proxyc hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service; elements = { 10.244.1.1 . 10.244.1.1 . tcp . 80 }; }; `+
		`add rule ip proxyc nat-postrouting ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random`); err != nil {
		t.Fatal(err)
	}
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan := newPlan(have, want)
	for op := range plan.Operations {
		if op.Verb != apply.Remove && op.Object != "ip proxyc chain nat-postrouting" || strings.HasPrefix(op.Object, "table ") {
			t.Errorf("unexpected: %s %s", op.Verb, op.Object)
		}
	}
	if plan.Empty() || len(plan.RemovedFrontends()) > 0 {
		t.Errorf("%v go", plan.RemovedFrontends())
	}
	if r, err := n.Commit(t.Context(), plan); err != nil || len(r.Refused)+*r.Pending.At(ir.IPv4) > 0 {
		t.Fatal(err, r)
	}
	holds(t, "after an earlier release", n, want)
}
