package nftables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// What may drop packets, or keep them from us, is named; what cannot is not.
func TestInterference(t *testing.T) {
	n := newNode(t)
	if _, err := once(t, n, both(nftest.Program)); err != nil {
		t.Fatal(err)
	}
	n.nft(t, `table inet firewall {
	chain strict { type filter hook forward priority 0; policy drop; }
	chain jumps { type filter hook prerouting priority -300; jump there; }
	chain there { goto further; }
	chain further { ip saddr 10.0.0.0/8 reject; }
	chain ports { type filter hook input priority -5; tcp dport vmap { 22 : accept, 23-25 : drop }; }
	chain late { type filter hook forward priority 10; policy drop; }
	chain accepts { type filter hook forward priority -10; counter accept; }
	chain nobody { drop; }
}
table ip asleep { flags dormant; chain c { type filter hook input priority -5; policy drop; }; }
table ip filter {
	chain PREROUTING { type nat hook prerouting priority -100; meta l4proto tcp accept; jump KUBE-SERVICES; dnat to 10.244.1.99; }
	chain OUTPUT { type nat hook output priority -100; jump KUBE-SERVICES; accept; }
	chain KUBE-SERVICES { }
	chain KUBE-FIREWALL { drop; }
	chain INPUT { type filter hook input priority 0; jump KUBE-FIREWALL; }
}
table inet divert {
	chain early { type nat hook prerouting priority -150; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.244.1.99:1; }
	chain late { type nat hook prerouting priority -90; dnat ip to 10.244.1.99; }
	chain raw { type filter hook output priority -300; ip daddr 10.96.0.11 notrack; }
	chain source { type nat hook postrouting priority 90; masquerade; }
	chain local { type nat hook output priority -100; tcp dport vmap { 80 : jump proxy }; }
	chain proxy { tcp dport 80 redirect to :15001; }
}
table netdev first { chain c { type filter hook ingress device "lo" priority 0; ip daddr 10.96.0.0/16 drop; }; }
`, "-f", "/dev/stdin")
	var got apply.Interference
	if err := n.Do(func() (err error) {
		got, err = Interference(t.Context())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := apply.Interference{Drops: []string{
		"netdev first chain c, hook ingress, priority 0: drop in chain c",
		"inet firewall chain jumps, hook prerouting, priority -300: reject in chain further",
		"inet firewall chain late, hook forward, priority 10: policy drop",
		"inet firewall chain ports, hook input, priority -5: drop in chain ports",
		"inet firewall chain strict, hook forward, priority 0: policy drop",
	}, Diverts: []string{
		"inet divert chain early, hook prerouting, priority -150: dnat in chain early",
		"inet divert chain local, hook output, priority -100: redirect in chain proxy",
		"inet divert chain raw, hook output, priority -300: notrack in chain raw",
		"ip filter chain PREROUTING, hook prerouting, priority -100: accept in chain PREROUTING",
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if listed := strings.Join(n.list(t), "\n"); !strings.Contains(listed, "chain strict") {
		t.Error("somebody else's chain was removed")
	}
}
