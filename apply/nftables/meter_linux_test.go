package nftables

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// A daemon that counts recreates tables without counters once, and one that does not removes them. Others,
// such as apply, keep what there is: counters are no difference. nft lists, flushes and reloads the tables.
func TestCountersAreDeclared(t *testing.T) {
	n := newNode(t)
	want := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	sync := func(metrics apply.ServiceMetrics, empty bool) {
		t.Helper()
		d, err := OpenIn(n.Namespace.Fd(), apply.Options{ServiceMetrics: metrics})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := d.Read(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		p := d.Plan(want)
		if p.Empty() != empty {
			t.Errorf("%q: the plan is empty: %t, want %t", metrics, p.Empty(), empty)
		}
		if _, err := d.Commit(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	counters := func(want bool) string {
		t.Helper()
		listed := n.nft(t, "", "list", "ruleset")
		if strings.Contains(listed, "\t\tcounter\n") != want {
			t.Fatalf("counters in sets: %t, want %t\n%s", !want, want, listed)
		}
		return listed
	}
	sync("", false)
	sync(apply.MetricsOff, true)
	counters(false)
	sync(apply.MetricsServices, false)
	sync("", true)
	sync(apply.MetricsServices, true)
	listed := counters(true)
	n.nft(t, "flush ruleset\n"+listed, "-f", "-")
	sync(apply.MetricsServices, true)
	counters(true)
	sync(apply.MetricsOff, false)
	counters(false)
}

// A commit adds what the elements that it replaces or removes have counted, even without a reader. It
// reports once that those which another program removed are counted from 0.
func TestReplacedElementsStayCounted(t *testing.T) {
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	defer topo.Close()
	var log bytes.Buffer
	d, err := OpenIn(topo.Namespace("node1").Fd(), apply.Options{ServiceMetrics: apply.MetricsServices, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	programs := ir.NewPrograms(nftest.Sticky(ir.IPv4, ir.UDP), nftest.Sticky(ir.IPv6, ir.UDP))
	replace(t, d, programs)
	sport := uint16(20000)
	send := func() {
		t.Helper()
		for range 5 {
			sport++
			if _, err := topo.Try("pod1b", "udp", sport, nftest.AddrPort(ir.IPv4, "10.96.0.10:80"), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	send()
	svc := programs.IPv4.Services[0]
	svc.Pools = slices.Clone(svc.Pools)
	for i := range svc.Pools {
		svc.Pools[i].Affinity = nil
	}
	var changes ir.Changes
	*changes.At(ir.IPv4) = []ir.Change{{Name: svc.Name, New: &svc}}
	if _, err := d.Commit(t.Context(), d.PlanChanges(d.Applied().From(changes))); err != nil {
		t.Fatal(err)
	}
	send()
	counted := func(want uint64, reports int) {
		t.Helper()
		sums, err := d.Counters().Traffic(t.Context())
		if got := sums[svc.Frontends[0].Port]; err != nil || got.Connections != want {
			t.Errorf("%d connections are counted, want %d; %v", got.Connections, want, err)
		}
		if n := strings.Count(log.String(), "counters of Services were removed unread"); n != reports {
			t.Errorf("%d reports, want %d:\n%s", n, reports, &log)
		}
	}
	counted(10, 0)
	programs.IPv4.Services = []ir.Service{svc}
	for i, flush := range []string{"flush map ip proxyc service-ips", "delete table ip proxyc"} {
		ns := topo.Namespace("node1")
		if out, err := ns.Run(ns.Command(t.Context(), "nft", flush)); err != nil {
			t.Fatal(err, string(out))
		}
		replace(t, d, programs)
		send() // as many as were counted before, or more
		send()
		counted(uint64(20+10*i), i+1)
	}
}

// A read of 1,000 Services takes less than 5 ms.
func BenchmarkTraffic(b *testing.B) {
	ns, err := applytest.NewNamespace("traffic")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	d, err := OpenIn(ns.Fd(), apply.Options{ServiceMetrics: apply.MetricsServices})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	p := &ir.Program{Family: ir.IPv4, Node: nftest.Node(ir.IPv4)}
	for i := range 1000 {
		s := nftest.LargeService(i)
		p.Services = append(p.Services, s)
	}
	want := ir.NewPrograms(p)
	if err := d.Read(b.Context(), want); err != nil {
		b.Fatal(err)
	}
	if _, err := d.Commit(b.Context(), d.Plan(want)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if sums, err := d.Counters().Traffic(b.Context()); err != nil || len(sums) > 5000 {
			b.Fatal(len(sums), err)
		}
	}
}
