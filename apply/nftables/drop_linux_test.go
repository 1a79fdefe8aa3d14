package nftables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// What may drop packets before we see them is named; what cannot is not.
func TestMayDrop(t *testing.T) {
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
	chain KUBE-FIREWALL { drop; }
	chain INPUT { type filter hook input priority 0; jump KUBE-FIREWALL; }
}
table netdev first { chain c { type filter hook ingress device "lo" priority 0; ip daddr 10.96.0.0/16 drop; }; }
`, "-f", "/dev/stdin")
	var got []string
	if err := n.Do(func() (err error) {
		got, err = MayDrop(t.Context())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"netdev first chain c, hook ingress, priority 0: drop in chain c",
		"inet firewall chain jumps, hook prerouting, priority -300: reject in chain further",
		"inet firewall chain ports, hook input, priority -5: drop in chain ports",
		"inet firewall chain strict, hook forward, priority 0: policy drop",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if listed := strings.Join(n.list(t), "\n"); !strings.Contains(listed, "chain strict") {
		t.Error("somebody else's chain was removed")
	}
}
