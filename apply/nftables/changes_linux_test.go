package nftables

import (
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// A Dataplane reads once, and then plans from changes.
func TestPlanChanges(t *testing.T) {
	n := newNode(t)
	writer := &reconcile.Writer{Dataplane: n.Dataplane}
	version := func(services int, backend string) ir.Programs {
		var all ir.Programs
		for _, f := range ir.Families() {
			p := nftest.Program(f)
			p.Services = p.Services[:services]
			p.Services[0].Pools[0].Backends[2].AddrPort = nftest.AddrPort(f, backend)
			*all.At(f) = p
		}
		return all
	}
	now := version(6, "10.244.2.10:8080")
	if _, err := writer.Replace(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for _, next := range []ir.Programs{
		version(6, "10.244.2.11:8080"), version(4, "10.244.2.11:8080"), version(5, "10.244.2.12:8081"), version(1, "10.244.2.10:8080"), version(6, "10.244.2.10:8080"),
	} {
		var changes ir.Changes
		for f, p := range now.All() {
			*changes.At(f) = ir.Diff(p, next.Of(f))
		}
		result, err := n.Commit(t.Context(), n.PlanChanges(n.Applied().From(changes)))
		if err != nil || len(result.Refused) > 0 {
			t.Fatal(err, result.Refused)
		}
		now = next
		holds(t, "after a change", n, rules.LowerAll(now))
	}
	done, err := writer.Replace(t.Context(), now)
	if err != nil || done.Drift != (apply.Count{}) || done.Operations != (apply.Count{}) {
		t.Errorf("a full sync found drift %v and did %v: %v", done.Drift, done.Operations, err)
	}
}
