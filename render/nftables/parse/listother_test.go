package parse

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/eval"
)

// The effect of foreign rules on a first packet is parsed, or the whole rule is
// unsupported.
func TestRulesOfOthers(t *testing.T) {
	sameText := cmp.Comparer(func(a, b eval.Foreign) bool { return a.Text == b.Text })
	for _, tt := range []struct {
		rule string
		want []nftables.Stmt
	}{
		{`iif "lo" accept`, []nftables.Stmt{nftables.MatchInterface{Name: "lo"}, nftables.Verdict{Kind: nftables.Accept}}},
		{`iif "vmap" accept`, []nftables.Stmt{nftables.MatchInterface{Name: "vmap"}, nftables.Verdict{Kind: nftables.Accept}}},
		{`iif vmap { "lo" : accept }`, []nftables.Stmt{eval.Foreign{Text: `iif vmap { "lo" : accept }`}}},
		{`iifname vmap { "lo" : accept, "eth0" : drop }`, []nftables.Stmt{eval.Foreign{Text: `iifname vmap { "lo" : accept , "eth0" : drop }`}}},
		{`ct state vmap { established : accept, new : drop }`, []nftables.Stmt{nftables.Verdict{Kind: nftables.Drop}}},
		{`ct state vmap { established : accept } drop`, []nftables.Stmt{nftables.MatchProto{}, nftables.Verdict{Kind: nftables.Drop}}},
		{`ct state != { established, related } drop`, []nftables.Stmt{nftables.MatchNew{}, nftables.Verdict{Kind: nftables.Drop}}},
		{`ct state established,related accept`, []nftables.Stmt{nftables.MatchProto{}, nftables.Verdict{Kind: nftables.Accept}}},
		{`jhash ip saddr . th sport mod 251 seed 0x6d61676c vmap @m`, []nftables.Stmt{nftables.LookupVerdict{Key: []nftables.Term{{Field: nftables.ClientHash, Mod: 251}}, Map: "ip fw, set m"}}},
		{`jhash ip saddr . th sport mod 251 seed 0x1 vmap @m`, []nftables.Stmt{nftables.Unsupported{What: `jhash ip saddr . th sport mod 251 seed 0x1 vmap @m`}}},
		{`jhash ip saddr . th sport mod 251 vmap @m`, []nftables.Stmt{nftables.Unsupported{What: `jhash ip saddr . th sport mod 251 vmap @m`}}},
		{`jhash ip saddr . th sport mod 251 seed 0x6d61676c offset 3 vmap @m`, []nftables.Stmt{nftables.Unsupported{What: `jhash ip saddr . th sport mod 251 seed 0x6d61676c offset 3 vmap @m`}}},
		{`jhash ip saddr mod 251 seed 0x6d61676c vmap @m`, []nftables.Stmt{nftables.Unsupported{What: `jhash ip saddr mod 251 seed 0x6d61676c vmap @m`}}},
		{`counter name "localhost-nodeport-rejected-udp" reject`, []nftables.Stmt{nftables.Counter{}, nftables.Verdict{Kind: nftables.Reject}}},
		{`reject with icmpx port-unreachable`, []nftables.Stmt{nftables.Verdict{Kind: nftables.Reject}}},
		{`reject with icmpx no-route`, []nftables.Stmt{nftables.Verdict{Kind: nftables.RejectWith, Chain: "icmpx no-route"}}},
		{`reject with icmp type host-prohibited`, []nftables.Stmt{nftables.Verdict{Kind: nftables.RejectWith, Chain: "icmp host-prohibited"}}},
		{`reject with tcp reset`, []nftables.Stmt{nftables.Verdict{Kind: nftables.RejectWith, Chain: "tcp reset"}}},
		{`log prefix "new: " level info drop`, []nftables.Stmt{nftables.Verdict{Kind: nftables.Drop}}},
	} {
		r, _, err := ParseWhole(ir.IPv4, "table ip fw {\n\tchain one {\n\t\ttype filter hook input priority 0; policy accept;\n\t\t"+tt.rule+"\n\t}\n}\n", "new", nil)
		if err != nil || len(r.Chains) != 1 || len(r.Chains[0].Rules) != 1 {
			t.Errorf("%s: %v, %+v", tt.rule, err, r)
			continue
		}
		if diff := cmp.Diff(tt.want, r.Chains[0].Rules[0].Stmts, sameText); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.rule, diff)
		}
	}
}
