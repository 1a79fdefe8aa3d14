package iptables

import (
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// TestOwnLeftovers removes what proxyc left besides kube-proxy's rules. Those stay, and nothing that they
// still use is removed.
func TestOwnLeftovers(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		chains := func() string { return withoutComments(shell(t, "", tool(ir.IPv4, v, "save"))) }
		for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
			shell(t, recorded(t, f), tool(f, v, "restore"))
		}
		peers := chains()
		shell(t, "*nat\n:KUBE-SVCS-0a60 - [0:0]\n:KUBE-HAIRPIN - [0:0]\n-A KUBE-SVCS-0a60 -d 10.96.0.10/32 -j KUBE-MARK-MASQ\n"+
			"-A KUBE-SERVICES -d 10.96.0.0/16 -j KUBE-SVCS-0a60\nCOMMIT\n", tool(ir.IPv4, v, "restore"), "--noflush")
		before := chains()
		if _, err := OwnLeftovers(t.Context(), false); err == nil || !strings.Contains(err.Error(), "KUBE-SERVICES jumps to KUBE-SVCS-0a60") {
			t.Errorf("want an error that names who needs a chain, got %v", err)
		}
		if after := chains(); after != before {
			t.Errorf("changed what was needed:\n%s", after)
		}
		shell(t, "*nat\n-D KUBE-SERVICES -d 10.96.0.0/16 -j KUBE-SVCS-0a60\nCOMMIT\n", tool(ir.IPv4, v, "restore"), "--noflush")
		left, err := OwnLeftovers(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			if err := l.Remove(t.Context()); err != nil {
				t.Errorf("%s: %v", l.Object, err)
			}
		}
		if after := chains(); after != peers {
			t.Errorf("want kube-proxy's rules as they were:\n%s\ngot\n%s", peers, after)
		}
	})
}

// withoutComments removes the lines with timestamps.
func withoutComments(saved string) string {
	var b strings.Builder
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}
