package snapshot

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
)

// A skipped object is recorded with its reason and copied with the Snapshot. It
// is no longer listed if an object of its name exists, in whatever order they are
// decoded.
func TestLeftOut(t *testing.T) {
	const (
		two  = "apiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: b}\nspec: {clusterIP: 10.0.0.2, externalIPs: [192.0.2.2, x], ports: [{port: x, nodePort: 30080}]}\n"
		good = "apiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: b}\nspec: {clusterIP: 10.0.0.2, ports: [{port: 80}]}\n"
		ends = "apiVersion: v1\nkind: Endpoints\nmetadata: {namespace: ns, name: b}\nsubsets: {}\n"
	)
	decoded := func(texts ...string) *Snapshot {
		s := New()
		for _, text := range texts {
			Decode(s, "f", []byte(text))
		}
		return s
	}
	wantB := []*LeftOut{{
		Object: "Service ns/b", Service: ir.Name{Namespace: "ns", Name: "b"}, NodePorts: []int32{30080},
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("192.0.2.2")},
	}}
	wantEnds := []*LeftOut{{Object: "Endpoints ns/b", Service: ir.Name{Namespace: "ns", Name: "b"}}}
	copied := New()
	copied.Update(decoded(two))
	for name, tt := range map[string]struct {
		s    *Snapshot
		want []*LeftOut
	}{
		"one":          {decoded(two), wantB},
		"good after":   {decoded(two, good), nil},
		"good before":  {decoded(good, two), nil},
		"another kind": {decoded(good, ends), wantEnds},
		"updated":      {copied, wantB},
		"a document":   {decoded(two).Document().Snapshot(), wantB},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.s.LeftOut(), cmpopts.IgnoreFields(LeftOut{}, "Why"), cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Error("-want +got", diff)
			}
		})
	}
	const why = "f:4:67: spec.ports[0].port: must be a whole number, got string"
	if got := decoded(two).ServiceLeftOut(ir.Name{Namespace: "ns", Name: "b"}).Why; got != why {
		t.Errorf("why: %s\nwant %s", got, why)
	}
	copied.Update(decoded(good))
	if left := copied.LeftOut(); len(left) > 0 {
		t.Errorf("after it was mended: %+v", left[0])
	}
}
