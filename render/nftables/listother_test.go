package nftables

import (
	"strings"
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

// What JSON says more than the words that are written for it stays not understood, and
// objects of others are passed over whatever they hold.
func TestListOfJSON(t *testing.T) {
	const head = `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "ip", "name": "t", "handle": 1}},
		{"ct timeout": {"family": "ip", "name": "slow", "table": "t", "handle": 2, "protocol": "tcp", "l3proto": "ip", "policy": {"established": 100}}},
		{"set": {"family": "ip", "name": "seen", "table": "t", "type": "ipv4_addr", "handle": 3, "size": 9}},
		{"chain": {"family": "ip", "table": "t", "name": "c", "handle": 4}}, {"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 5, "expr": [`
	for expr, want := range map[string]string{
		`{"drop": null}`:                                            "drop",
		`{"masquerade": null}`:                                      "masquerade",
		`{"masquerade": {"flags": "fully-random"}}`:                 "masquerade fully-random",
		`{"masquerade": {"port": 80}}`:                              "json:",
		`{"reject": {"type": "tcp reset"}}`:                         "reject with tcp reset",
		`{"reject": {"type": "icmpx", "expr": "port-unreachable"}}`: "reject with icmpx type port-unreachable",
		`{"set": {"op": "update", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "set": "@seen"}}`: "update @seen { ip saddr }",
		`"update @seen { ip saddr : ip daddr }"`: "update @seen { ip saddr : ip daddr }",
		`{"vmap": {"key": {"numgen": {"mode": "random", "mod": 2, "offset": 0}}, "data": {"set": [[0, {"drop": null}]]}}}`:                                                                                         "numgen random mod 2 vmap { 0 : drop }",
		`{"vmap": {"key": {"numgen": {"mode": "random", "mod": 2, "offset": 7}}, "data": {"set": [[7, {"drop": null}]]}}}`:                                                                                         "json:",
		`{"vmap": {"key": {"jhash": {"mod": 251, "seed": 1835100012, "expr": {"concat": [{"payload": {"protocol": "ip", "field": "saddr"}}, {"payload": {"protocol": "th", "field": "sport"}}]}}}, "data": "@m"}}`: "jhash ip saddr . th sport mod 251 seed 1835100012 vmap @m",
		`{"vmap": {"key": {"jhash": {"mod": 251, "seed": 1835100012, "offset": 7, "expr": {"payload": {"protocol": "ip", "field": "saddr"}}}}, "data": "@m"}}`:                                                     "json:",
		`{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"meta": {"key": "mark"}}, 16384]}}}`:                                                                                                       "meta mark set meta mark | 16384",
		`{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"&": [{"meta": {"key": "mark"}}, {"|": [1, 2]}]}}}`:                                                                                               "meta mark set json:",
	} {
		got, err := ListOfJSON(head + expr + "]}}]}")
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		_, rule, _ := strings.Cut(got, "chain c {\n\t\t")
		if rule, _, _ = strings.Cut(rule, "\n"); rule != want && !(strings.HasSuffix(want, "json:") && strings.HasPrefix(rule, want)) {
			t.Errorf("%s is %q, want %q", expr, rule, want)
		}
		if dynamic := strings.Contains(got, "flags dynamic"); dynamic != strings.HasPrefix(want, "update") {
			t.Errorf("%s: the set is dynamic: %t\n%s", expr, dynamic, got)
		}
	}
	_, err := ListOfJSON(`{"nftables": [{"set": {"family": "ip", "name": "seen", "table": "t", "timeout": []}}]}`)
	if err == nil || !strings.Contains(err.Error(), "set ip t seen: ") {
		t.Errorf("got error %v", err)
	}
}
