package nftables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// What rules of others do to a first packet is read, or they are not understood as a whole.
func TestRulesOfOthers(t *testing.T) {
	sameText := cmp.Comparer(func(a, b Foreign) bool { return a.Text == b.Text })
	for _, tt := range []struct {
		rule string
		want []Stmt
	}{
		{`iif "lo" accept`, []Stmt{MatchInterface{Name: "lo"}, Verdict{Kind: Accept}}},
		{`iif "vmap" accept`, []Stmt{MatchInterface{Name: "vmap"}, Verdict{Kind: Accept}}},
		{`iif vmap { "lo" : accept }`, []Stmt{Foreign{Text: `iif vmap { "lo" : accept }`}}},
		{`iifname vmap { "lo" : accept, "eth0" : drop }`, []Stmt{Foreign{Text: `iifname vmap { "lo" : accept , "eth0" : drop }`}}},
		{`ct state vmap { established : accept, new : drop }`, []Stmt{Verdict{Kind: Drop}}},
		{`ct state vmap { established : accept } drop`, []Stmt{MatchProto{}, Verdict{Kind: Drop}}},
		{`ct state != { established, related } drop`, []Stmt{MatchNew{}, Verdict{Kind: Drop}}},
		{`ct state established,related accept`, []Stmt{MatchProto{}, Verdict{Kind: Accept}}},
		{`jhash ip saddr . th sport mod 251 seed 0x6d61676c vmap @m`, []Stmt{LookupVerdict{[]Term{{ClientHash, 251}}, "ip fw, set m"}}},
		{`jhash ip saddr . th sport mod 251 seed 0x1 vmap @m`, []Stmt{Unsupported{`jhash ip saddr . th sport mod 251 seed 0x1 vmap @m`}}},
		{`jhash ip saddr . th sport mod 251 vmap @m`, []Stmt{Unsupported{`jhash ip saddr . th sport mod 251 vmap @m`}}},
		{`jhash ip saddr . th sport mod 251 seed 0x6d61676c offset 3 vmap @m`, []Stmt{Unsupported{`jhash ip saddr . th sport mod 251 seed 0x6d61676c offset 3 vmap @m`}}},
		{`jhash ip saddr mod 251 seed 0x6d61676c vmap @m`, []Stmt{Unsupported{`jhash ip saddr mod 251 seed 0x6d61676c vmap @m`}}},
		{`log prefix "new: " level info drop`, []Stmt{Verdict{Kind: Drop}}},
	} {
		r, _, err := ParseWhole(ir.IPv4, "table ip fw {\n\tchain one {\n\t\ttype filter hook input priority 0; policy accept;\n\t\t"+tt.rule+"\n\t}\n}\n", nil)
		if err != nil || len(r.Chains) != 1 || len(r.Chains[0].Rules) != 1 {
			t.Errorf("%s: %v, %+v", tt.rule, err, r)
			continue
		}
		if diff := cmp.Diff(tt.want, r.Chains[0].Rules[0].Stmts, sameText); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.rule, diff)
		}
	}
}
