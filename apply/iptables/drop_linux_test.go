package iptables

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
)

// Policies and rules of the host that may drop what ours would let pass are
// named; those of the kubelet, and what nothing leads to, are not.
func TestMayDrop(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		if got, err := MayDrop(t.Context()); err != nil || got != nil {
			t.Errorf("nothing is there: %v, %q", err, got)
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
COMMIT
`, "iptables-legacy-restore")
		shell(t, "", "ip6tables-legacy", "-A", "INPUT", "-p", "tcp", "-j", "REJECT")
		got, err := MayDrop(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"iptables-legacy table filter chain FORWARD: policy DROP",
			"iptables-legacy table mangle chain PREROUTING: DROP in chain TWO",
			"ip6tables-legacy table filter chain INPUT: REJECT in chain INPUT",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
