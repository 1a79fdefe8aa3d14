package nftables

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply"
)

// The table of the fast path is left over for who wants none, and for nobody else.
func TestFastpathIsLeftOver(t *testing.T) {
	n := newNode(t)
	n.nft(t, "table inet "+fastpathTable+" { }; table inet other { }", "-f", "/dev/stdin")
	wanted := apply.Options{Fastpath: apply.Fastpath{Interfaces: []string{"eth0"}}}
	_ = n.Do(func() error {
		for _, c := range []struct {
			o    apply.Options
			want bool
		}{{apply.Options{}, true}, {wanted, false}, {apply.Options{ReadOnly: true}, false}} {
			left, err := n.another(t, c.o).Leftovers(t.Context())
			is := slices.ContainsFunc(left, func(l apply.Leftover) bool { return l.Object == fastpathObject })
			if err != nil || is != c.want || len(left) > 1 {
				t.Errorf("%+v: %v, %v", c.o, left, err)
			}
		}
		left, err := Leftovers(t.Context(), false)
		if err != nil || len(left) != 1 || left[0].Object != fastpathObject || left[0].KubeProxy {
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

// A kernel that makes no flowtable is told of once, and none is tried for interfaces that
// come; where it makes one, that is told once.
func TestFastpathTellsOnce(t *testing.T) {
	n := newNode(t)
	var told bytes.Buffer
	f := newFastpath(n.Fd(), apply.Fastpath{Interfaces: []string{"*"}, Packets: 20}, slog.New(slog.NewTextHandler(&told, nil)))
	for range 3 {
		f.make()
	}
	tables := n.nft(t, "", "list", "tables")
	if strings.Count(told.String(), "\n") != 1 || strings.Contains(tables, fastpathTable) == (f.failed != "") || strings.Contains(told.String(), "WARN") != (f.failed != "") {
		t.Errorf("tables %q, %s", tables, told.String())
	}
}
