package iptables

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// A dormant table is a difference, and is woken after its rules are correct.
func TestDormantTables(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
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
		// The rules may differ as well.
		shell(t, "", "nft", "add table ip nat { flags dormant; }; flush chain ip nat KUBE-SERVICES")
		if ops := opsOf(put(t, target, want)); len(ops) < 2 || ops[len(ops)-1].Object != "table ip nat" {
			t.Errorf("operations: %v", ops)
		}
		if plan := put(t, target, want); !plan.Empty() {
			t.Errorf("still to do: %v", opsOf(plan))
		}
	})
}

// Rules created by nft in our chains, which prevent the tools from listing a table, are removed.
// One in a foreign chain is kept and reported.
func TestNativeRules(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		target := open(t, apply.Options{IPTables: string(NFT)}, 0)
		want := lower(programs(3))
		put(t, target, want)
		for _, f := range ir.Families() {
			for table, chain := range map[string]string{"nat": rules.ChainServices, "filter": "KUBE-FORWARD"} {
				if all, err := natives(f, table); err != nil || len(all) > 0 {
					t.Errorf("%s %s: rules of iptables are taken for others: %v %v", f, table, all, err)
				}
				at := f.NFT() + " " + table + " "
				for _, rule := range []string{"meta cpu 1 drop", "ct state new counter drop", "tcp dport vmap { 22 : accept, 23 : drop }",
					"meta l4proto tcp th dport { 80, 81-90 } counter accept", "numgen random mod 2 == 0 counter drop"} {
					shell(t, "", "nft", "insert rule "+at+chain+" "+rule)
				}
				look := open(t, apply.Options{IPTables: string(NFT), ReadOnly: true}, 0)
				if _, err := look.Rulesets(t.Context()); err == nil || !strings.Contains(err.Error(), "table "+at+"chain "+chain+" handle ") {
					t.Errorf("only looking: %v", err)
				}
				put(t, target, want)
				if plan := put(t, target, want); !plan.Empty() {
					t.Errorf("%s: still to do: %v", at, opsOf(plan))
				}
				if listed := shell(t, "", "nft", "list table "+at); strings.Contains(listed, "meta cpu") || strings.Contains(listed, "vmap") {
					t.Errorf("%s: still there:\n%s", at, listed)
				}
			}
		}
		shell(t, "", "nft", "insert rule ip filter FORWARD meta cpu 1 drop")
		shell(t, "", "nft", "insert rule ip filter KUBE-FORWARD meta cpu 1 drop")
		_, err := target.Rulesets(t.Context())
		if err == nil || !strings.Contains(err.Error(), "table ip filter chain FORWARD handle ") {
			t.Errorf("a rule in a chain of others: %v", err)
		}
		if listed := shell(t, "", "nft", "list chain ip filter FORWARD"); !strings.Contains(listed, "meta cpu") {
			t.Error("it was removed")
		}
	})
}
