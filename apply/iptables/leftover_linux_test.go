package iptables

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// recorded returns rules that kube-proxy left, without features that some kernels lack.
func recorded(t *testing.T, f ir.Family) string {
	t.Helper()
	saved, err := os.ReadFile(filepath.Join("..", "..", "testdata", "apply", "takeover", "kube-proxy."+rules.Tool(f)))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(saved)) {
		if !strings.Contains(line, "nfacct") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// kubelet is the rules of the kubelet, and a rule of the portmap plugin that uses one of our
// chains.
const kubelet = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:CNI-HOSTPORT-SETMARK - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
`

func TestLeftovers(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
			shell(t, recorded(t, f), tool(f, v, "restore"))
			shell(t, kubelet, tool(f, v, "restore"), "--noflush")
		}
		shell(t, foreign, tool(ir.IPv4, v, "restore"), "--noflush")
		other := NFT
		if v == NFT {
			other = Legacy
		}
		left, err := Leftovers(t.Context(), open(t, apply.Options{IPTables: string(v)}, 0), false)
		if err != nil || len(left) != 2 || !left[0].KubeProxy || !left[1].KubeProxy {
			t.Errorf("of the variant in use all but the canaries is listed: %v, %v", left, err)
		}
		left, err = Leftovers(t.Context(), &Dataplane{tables: &tables{tools: &tools{Variant: other}}}, false)
		if err != nil {
			t.Fatal(err)
		}
		var objects []string
		for range 2 { // removing twice is no error
			objects = nil
			for _, l := range left {
				objects = append(objects, l.Object)
				if err := l.Remove(t.Context()); err != nil {
					t.Errorf("%s: %v", l.Object, err)
				}
			}
		}
		if len(objects) != 4 || !strings.HasPrefix(objects[0], "iptables-"+string(v)+" filter KUBE-") || !strings.HasSuffix(objects[0], "more chains") {
			t.Errorf("listed: %q", objects)
		}
		if want := "iptables-" + string(v) + " mangle KUBE-PROXY-CANARY and 2 more chains"; objects[1] != want || !left[1].KubeProxy || left[0].KubeProxy {
			t.Errorf("listed: %q, want %q of kube-proxy's second", objects, want)
		}
		left, err = Leftovers(t.Context(), nil, false)
		if err != nil || len(left) != 0 {
			t.Errorf("still there: %v, %v", left, err)
		}
		var kept []string
		for line := range strings.Lines(shell(t, "", tool(ir.IPv4, v, "save"))) {
			if strings.Contains(line, "KUBE-") {
				kept = append(kept, strings.TrimSpace(line))
			}
		}
		want := []string{
			":KUBE-IPTABLES-HINT - [0:0]", ":KUBE-KUBELET-CANARY - [0:0]",
			":KUBE-FIREWALL - [0:0]", "-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL",
			`-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`,
			":KUBE-MARK-MASQ - [0:0]", "-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ", "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
		}
		if diff := cmp.Diff(sorted(want), sorted(kept)); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}

// TestLeftoversWithoutKubelet removes KUBE-FIREWALL, since no kubelet uses it.
func TestLeftoversWithoutKubelet(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
			shell(t, recorded(t, f), tool(f, v, "restore"))
		}
		left, err := Leftovers(t.Context(), nil, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			if err := l.Remove(t.Context()); err != nil {
				t.Errorf("%s: %v", l.Object, err)
			}
		}
		if saved := shell(t, "", tool(ir.IPv4, v, "save")); strings.Contains(saved, "KUBE-") {
			t.Errorf("still there:\n%s", saved)
		}
	})
}

// A rule that the tools cannot read keeps the leftovers of its family alone. Reading removes none.
func TestLeftoversBesideUnreadable(t *testing.T) {
	inNamespace(t, func(t *testing.T, v Variant) {
		if v == Legacy {
			return // its tools read all rules of legacy tables
		}
		put(t, open(t, apply.Options{IPTables: string(v)}, 0), lower(programs(2)))
		shell(t, "", "nft", "insert rule ip6 filter FORWARD meta cpu 1 accept")
		left, err := Leftovers(t.Context(), nil, false)
		if err == nil || len(left) != 1 || !strings.HasPrefix(left[0].Object, "iptables-nft ") {
			t.Errorf("error %v, leftovers %v, want those of IPv4", err, left)
		}
		shell(t, "", "nft", "insert rule ip nat KUBE-SERVICES meta cpu 1 drop")
		if left, err := Leftovers(t.Context(), nil, true); err == nil || len(left) > 0 {
			t.Errorf("without changes: error %v, leftovers %v", err, left)
		}
		if listed := shell(t, "", "nft", "list chain ip nat KUBE-SERVICES"); !strings.Contains(listed, "meta cpu") {
			t.Errorf("a rule was removed:\n%s", listed)
		}
	})
}

// A chain is found wherever the tool's output is split.
func TestFinder(t *testing.T) {
	const text = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC - [0:0]\n"
	for chain, want := range map[string]bool{"KUBE-SERVICES": true, "KUBE-SVC": true, "KUBE-S": false, "UBE-SVC": false} {
		for size := 1; size <= len(text); size++ {
			f := finder{text: "\n:" + chain + " "}
			for piece := range slices.Chunk([]byte(text), size) {
				f.Write(piece)
			}
			if f.found != want {
				t.Errorf("%s in pieces of %d bytes: %v, want %v", chain, size, f.found, want)
			}
		}
	}
}
