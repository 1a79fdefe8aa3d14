package nftables

import (
	"slices"
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
)

// The table of the fast path is a leftover only for a writer without a fast path.
func TestFastpathIsLeftOver(t *testing.T) {
	n := newNode(t)
	n.nft(t, flowtable.Object+" { }; table inet other { }", "-f", "/dev/stdin")
	wanted := apply.Options{Fastpath: apply.Fastpath{Interfaces: []string{"eth0"}}}
	_ = n.Do(func() error {
		for _, c := range []struct {
			o    apply.Options
			want bool
		}{{apply.Options{}, true}, {wanted, false}, {apply.Options{ReadOnly: true}, false}} {
			left, err := n.another(t, c.o).Leftovers(t.Context())
			is := slices.ContainsFunc(left, func(l apply.Leftover) bool { return l.Object == flowtable.Object })
			if err != nil || is != c.want || len(left) > 1 {
				t.Errorf("%+v: %v, %v", c.o, left, err)
			}
		}
		left, err := Leftovers(t.Context(), false)
		if err != nil || len(left) != 1 || left[0].Object != flowtable.Object || left[0].KubeProxy {
			t.Fatalf("%v, %v", left, err)
		}
		if err := left[0].Remove(t.Context()); err != nil {
			t.Error(err)
		}
		return nil
	})
	if tables := n.nft(t, "", "list", "tables"); tables != "table inet other\n" {
		t.Errorf("removing it leaves %s", tables)
	}
}
