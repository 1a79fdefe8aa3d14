package nftables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// Foreign rules that may drop or divert packets are reported; others are not.
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
	chain OUTPUT { type nat hook output priority -100; ip daddr 10.96.0.11 return; jump KUBE-SERVICES; accept; }
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
table netdev last { chain c { type filter hook egress device "lo" priority 0; meta mark set 0; ip saddr 10.96.0.0/16 drop; }; }
table bridge guard { chain c { type filter hook forward priority -200; policy drop; meta mark set 0; }; }
table inet route { chain c { type route hook output priority -150; ip daddr 10.96.0.12 drop; }; }
`, "-f", "/dev/stdin")
	var got apply.Interference
	if err := n.Do(func() (err error) {
		got, err = Interference(t.Context(), 0x4000)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := apply.Interference{Drops: []string{
		"netdev first chain c, hook ingress, priority 0: drop in chain c",
		"netdev last chain c, hook egress, priority 0: drop in chain c",
		"bridge guard chain c, hook forward, priority -200: policy drop",
		"inet firewall chain jumps, hook prerouting, priority -300: reject in chain further",
		"inet firewall chain late, hook forward, priority 10: policy drop",
		"inet firewall chain ports, hook input, priority -5: drop in chain ports",
		"inet firewall chain strict, hook forward, priority 0: policy drop",
		"inet route chain c, hook output, priority -150: drop in chain c",
	}, Diverts: []string{
		"inet divert chain early, hook prerouting, priority -150: dnat in chain early",
		"inet divert chain local, hook output, priority -100: redirect in chain proxy",
		"inet divert chain raw, hook output, priority -300: notrack in chain raw",
		"ip filter chain OUTPUT, hook output, priority -100: return in chain OUTPUT",
		"ip filter chain PREROUTING, hook prerouting, priority -100: accept in chain PREROUTING",
	}, Sources: []string{"inet divert chain source, hook postrouting, priority 90: masquerade in chain source"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if listed := strings.Join(n.list(t), "\n"); !strings.Contains(listed, "chain strict") {
		t.Error("somebody else's chain was removed")
	}
}

// Rules that clear the masquerade mark between ours that set it and ours that match it are
// reported, and those that set it before. Rules elsewhere, or for other bits, are not.
func TestInterferenceWithMark(t *testing.T) {
	for _, c := range []struct {
		chain, rule string
		names       bool
	}{
		{"type filter hook postrouting priority 0", "meta mark set 0", true},
		{"type filter hook postrouting priority 100", "ip daddr 10.0.0.0/8 meta mark set 0x1", true},
		{"type filter hook postrouting priority 101", "meta mark set 0", false},
		{"type filter hook forward priority 300", "meta mark set 0", true},
		{"type filter hook prerouting priority -150", "meta mark set 0", false},
		{"type filter hook prerouting priority -99", "meta mark set 0", true},
		{"type filter hook output priority -150", "meta mark set 0", false},
		{"type route hook output priority 0", "meta mark set 0", true},
		{"type filter hook input priority 0", "meta mark set 0", false},
		{"type filter hook forward priority 0", "meta mark set 0x4001", true},
		{"type filter hook prerouting priority -150", "meta mark set mark or 0x4000", true},
		{"type filter hook prerouting priority -150", "meta mark set mark or 0x8000", false},
		{"type filter hook postrouting priority 101", "meta mark set 0x4000", false},
		{"type filter hook forward priority 0", "meta mark set mark and 0xffffbfff", true},
		{"type filter hook forward priority 0", "meta mark set mark and 0xfffffffe", false},
		{"type filter hook forward priority 0", "meta mark set mark or 0x1", false},
		{"type filter hook forward priority 0", "meta mark set mark xor 0x4000", true},
		{"type filter hook forward priority 0", "meta mark set ct mark", true},
		{"type filter hook forward priority 0", "ct mark set 0", false},
		{"type filter hook forward priority 0", "jump there; }; chain there { meta mark set tcp dport map { 80 : 0x1 }", true},
		{"type filter hook forward priority 0", "meta mark 0 accept", false},
	} {
		n := newNode(t)
		n.nft(t, "table inet m { chain c { "+c.chain+"; "+c.rule+"; }; }", "-f", "/dev/stdin")
		var got apply.Interference
		if err := n.Do(func() (err error) {
			got, err = Interference(t.Context(), 0x4000)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		named := len(got.Diverts) == 1 && strings.Contains(got.Diverts[0], "s mark 0x4000 in chain ")
		if named != c.names || len(got.Drops)+len(got.Diverts) > 1 {
			t.Errorf("%s; %s: named %t, want %t: %v", c.chain, c.rule, named, c.names, got)
		}
	}
}

// Rules of iptables-nft that clear the mark are reported like those of nft.
func TestInterferenceOfTargetsWithMark(t *testing.T) {
	for rule, names := range map[string]bool{
		"-t mangle -A FORWARD -j MARK --set-mark 0":                                           true,
		"-t mangle -A FORWARD -j MARK --set-xmark 0x10000/0xf0000":                            false,
		"-t mangle -A POSTROUTING -j MARK --and-mark 0xffffbfff":                              true,
		"-t mangle -A PREROUTING -j MARK --set-mark 0":                                        false,
		"-t mangle -A FORWARD -j CONNMARK --restore-mark":                                     true,
		"-t mangle -A FORWARD -j CONNMARK --restore-mark --nfmask 0xff0000 --ctmask 0xff0000": false,
		"-t mangle -A FORWARD -j CONNMARK --save-mark":                                        false,
	} {
		n := newNode(t)
		if out, err := n.Run(n.Command(t.Context(), "iptables-nft", strings.Fields(rule)...)); err != nil {
			t.Fatalf("%s: %v\n%s", rule, err, out)
		}
		var got apply.Interference
		if err := n.Do(func() (err error) {
			got, err = Interference(t.Context(), 0x4000)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if named := len(got.Diverts) == 1; named != names {
			t.Errorf("%s: named %t, want %t: %v", rule, named, names, got)
		}
	}
}
