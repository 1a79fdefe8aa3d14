package iptables

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
)

// A table that somebody put out of force is a difference, and is put in force
// again when its rules are right.
func TestDormantTables(t *testing.T) {
	applytest.RequireRoot(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	ns, err := applytest.NewNamespace("iptables")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		target := open(t, apply.Options{IPTables: string(NFT)}, 0)
		want := lower(programs(3))
		put(t, target, want)
		for _, table := range []string{"ip nat", "ip filter", "ip6 nat", "ip6 filter"} {
			shell(t, "", "nft", "add table "+table+" { flags dormant; }")
			plan := put(t, target, want)
			wantOps := []apply.Operation{{Verb: apply.Change, Object: "table " + table, Have: []string{"flags dormant"}}}
			if diff := cmp.Diff(wantOps, slices.Collect(plan.Differences)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", table, diff)
			}
			if listed := shell(t, "", "nft", "list table "+table); strings.Contains(listed, "dormant") {
				t.Errorf("still dormant:\n%s", listed)
			}
		}
		// With rules that differ, too.
		shell(t, "", "nft", "add table ip nat { flags dormant; }; flush chain ip nat KUBE-SERVICES")
		if ops := opsOf(put(t, target, want)); len(ops) < 2 || ops[len(ops)-1].Object != "table ip nat" {
			t.Errorf("operations: %v", ops)
		}
		if plan := put(t, target, want); !plan.Empty() {
			t.Errorf("still to do: %v", opsOf(plan))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
