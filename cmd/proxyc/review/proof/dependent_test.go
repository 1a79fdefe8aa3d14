package proof

import (
	"strings"
	"testing"
)

func TestNeighbours(t *testing.T) {
	const dump = `*nat
:KUBE-SERVICES - [0:0]
:CNI-DN-1 - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A CNI-DN-1 -s 10.244.1.0/24 -p tcp -j CNI-HOSTPORT-SETMARK
[1:60] -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-B
-A KUBE-SEP-B -p tcp -j DNAT --to-destination 10.244.1.1:80
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
-A KUBE-FORWARD -g MY-AUDIT
-A cali-FORWARD -j ACCEPT
-A cali-FORWARD -m comment --comment "never -j KUBE-MARK-DROP" -j ACCEPT
-A KUBE-FORWARD -m comment --comment "was -j OTHERS" -j ACCEPT
-A KUBE-FORWARD -m comment --comment "counts"
COMMIT
`
	found, err := DependentRules("node1.save", dump)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"table nat: chain CNI-HOSTPORT-SETMARK leads to KUBE-MARK-MASQ", "table filter: chain KUBE-FORWARD leads to MY-AUDIT"}
	if len(found) != len(want) {
		t.Fatalf("found %d: %s", len(found), strings.Join(found, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(found[i], "node1.save: "+want[i]) {
			t.Errorf("got %s, want %s", found[i], want[i])
		}
	}
}
