package iptables

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
)

// Policies and rules of the host that may drop packets that ours accept, or divert packets from
// ours, are reported. Those of the kubelet, those after ours, and unreferenced chains are not.
func TestInterference(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		if got, err := Interference(t.Context(), 0x4000); err != nil || len(got.Drops)+len(got.Diverts) > 0 {
			t.Errorf("nothing is there: %v, %v", err, got)
		}
		shell(t, `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:NOBODY - [0:0]
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -j DROP
-A NOBODY -j DROP
COMMIT
*mangle
:ONE - [0:0]
:TWO - [0:0]
-A PREROUTING -s 10.0.0.0/8 -j ONE
-A ONE -m comment --comment "not -j ACCEPT" -j TWO
-A TWO -j LOG --log-prefix "-j \"ACCEPT"
-A TWO -p tcp -j DROP
-A PREROUTING -j MARK --set-mark 0
-A INPUT -j MARK --set-xmark 0x4000/0x4000
-A OUTPUT -j MARK --set-xmark 0x4000/0x4000
-A FORWARD -j MARK --set-xmark 0x1/0xff
-A FORWARD -j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xff
-A POSTROUTING -j CONNMARK --restore-mark
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:DOCKER - [0:0]
:SIDECAR - [0:0]
-A PREROUTING -d 10.96.0.10 -j ACCEPT
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -j DOCKER
-A OUTPUT -d 10.96.0.11 -j RETURN
-A OUTPUT -j KUBE-SERVICES
-A OUTPUT -p tcp -j SIDECAR
-A DOCKER -p tcp -j DNAT --to-destination 10.244.1.99:1
-A SIDECAR -p tcp -j REDIRECT --to-ports 15001
-A POSTROUTING -p udp -j MARK --set-mark 0
-A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE
-A POSTROUTING -j KUBE-POSTROUTING
-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE
COMMIT
*raw
-A OUTPUT -d 10.96.0.11 -p udp -j CT --notrack
-A PREROUTING -p tcp -j CT --zone 5
COMMIT
`, "iptables-legacy-restore")
		shell(t, "", "ip6tables-legacy", "-A", "INPUT", "-p", "tcp", "-j", "REJECT")
		got, err := Interference(t.Context(), 0x4000)
		if err != nil {
			t.Fatal(err)
		}
		want := apply.Interference{Drops: []string{
			"iptables-legacy table filter chain FORWARD: policy DROP",
			"iptables-legacy table mangle chain PREROUTING: DROP in chain TWO",
			"ip6tables-legacy table filter chain INPUT: REJECT in chain INPUT",
		}, Diverts: []string{
			"iptables-legacy table mangle chain OUTPUT: sets mark 0x4000 in chain OUTPUT",
			"iptables-legacy table mangle chain POSTROUTING: clears mark 0x4000 in chain POSTROUTING",
			"iptables-legacy table nat chain PREROUTING: ACCEPT in chain PREROUTING",
			"iptables-legacy table nat chain OUTPUT: RETURN in chain OUTPUT",
			"iptables-legacy table nat chain POSTROUTING: clears mark 0x4000 in chain POSTROUTING",
			"iptables-legacy table raw chain PREROUTING: CT --zone in chain PREROUTING",
			"iptables-legacy table raw chain OUTPUT: NOTRACK in chain OUTPUT",
		}, Sources: []string{"iptables-legacy table nat chain POSTROUTING: MASQUERADE in chain POSTROUTING"}, Marks: []apply.Marking{
			{Where: "iptables-legacy table mangle chain PREROUTING: MARK in chain PREROUTING", RuleEffect: apply.RuleEffect{Does: "MARK", Clears: ^uint32(0)}},
			{Where: "iptables-legacy table mangle chain OUTPUT: MARK in chain OUTPUT", RuleEffect: apply.RuleEffect{Does: "MARK", Sets: 0x4000}},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
