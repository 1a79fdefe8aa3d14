package iptables

import (
	"testing"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
)

func TestInvalidDropped(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 0)
		if n, err := target.invalidDropped(t.Context()); err == nil {
			t.Errorf("without the rule: %d, want an error", n)
		}
		dropping := programs(1)
		for _, p := range ir.Present(dropping) {
			p.Node.DropInvalid = true
		}
		put(t, target, lower(dropping))
		want := func(n uint64) {
			t.Helper()
			if got, err := target.invalidDropped(t.Context()); err != nil || got != n {
				t.Errorf("got %d, %v, want %d", got, err, n)
			}
		}
		want(0)
		count := func(f ir.Family, packets string) {
			shell(t, "*filter\n:KUBE-FORWARD - [0:0]\n["+packets+":999] -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n",
				tool(f, v, "restore"), "--counters", "--noflush")
		}
		count(ir.IPv4, "7")
		want(7)
		if v == Legacy { // ip6tables-nft 1.8.9 does not accept counters
			count(ir.IPv6, "30")
			want(37)
		}
	})
}

func TestLocalhostNodePorts(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		target := open(t, apply.Options{IPTables: string(v)}, 0)
		if n, err := target.localhostNodePorts(t.Context()); err == nil {
			t.Errorf("without the rule: %d, want an error", n)
		}
		put(t, target, lower(programs(1)))
		if n, err := target.localhostNodePorts(t.Context()); err != nil || n != 0 {
			t.Errorf("got %d, %v, want 0", n, err)
		}
	})
}
