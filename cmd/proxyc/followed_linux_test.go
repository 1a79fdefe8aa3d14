package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// inTopology is a node of a topology, with the configuration of a mode and no rules yet.
func inTopology(t *testing.T, plane string) (*watched, *applytest.Topology) {
	t.Helper()
	applytest.RequireRoot(t)
	topo, err := applytest.NewTopology()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { topo.Close() })
	w := newWatched(t, plane)
	w.ns = topo.Namespace("node1")
	w.write("cluster.yaml", nodePortYAML)
	return w, topo
}

// must runs commands in the namespace of the node.
func (w *watched) shell(commands ...string) {
	w.t.Helper()
	for _, command := range commands {
		if out, code := w.run("sh", "-ec", command); code != 0 {
			w.t.Fatalf("%s: exit %d:\n%s", command, code, out)
		}
	}
}

// Where others translate at the priority of ours, the kernel calls whoever came last first, and
// tells nobody who that is: both ends are named, one of which real packets come to, and neither
// is the answer. Where they do nothing else to a packet, it does not matter.
func TestTraceKernelWithEqualPriorities(t *testing.T) {
	const apply = "proxyc apply $ARGS"
	const iptables = "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p tcp --dport 80 -j DNAT --to 10.244.1.11:8080"
	const native = "nft 'table ip aaa { chain p { type nat hook prerouting priority -100; ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.1.11:8080; }; }'"
	const inet = "nft 'table inet zzz { chain p { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.244.1.11:8080; }; }'"
	const filter = "nft 'table ip aaa { chain p { type filter hook prerouting priority -100; ip daddr 10.96.0.10 drop; }; }'"
	const pass = "iptables-nft -t nat -A PREROUTING -d 10.96.0.11 -j DNAT --to 10.244.1.11; iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE; iptables-nft -A FORWARD -s 172.17.0.0/16 -j DROP"
	const doubt = "so that nobody knows who is first"
	for _, tt := range []struct {
		name     string
		commands []string
		code     int
		want     []string
	}{
		{"iptables first", []string{iptables, apply}, exitFindings, []string{"table ip nat, chain PREROUTING: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"iptables last", []string{apply, iptables}, exitFindings, []string{"table ip nat, chain PREROUTING: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"nft first", []string{native, apply}, exitFindings, []string{"table ip aaa, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"nft last", []string{apply, native}, exitFindings, []string{"table ip aaa, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"inet first", []string{inet, apply}, exitFindings, []string{"table inet zzz, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"inet last", []string{apply, inet}, exitFindings, []string{"table inet zzz, chain p: ", doubt, "10.244.1.11:8080", "10.244.1.10:8080+snat"}},
		{"filter first", []string{filter, apply}, exitFindings, []string{doubt, "dropped", "10.244.1.10:8080+snat"}},
		{"filter last", []string{apply, filter}, exitFindings, []string{doubt, "dropped", "10.244.1.10:8080+snat"}},
		{"all pass", []string{pass, apply, pass}, exitDone, []string{"=> 10.244.1.10:8080+snat\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, topo := inTopology(t, "nftables")
			for _, command := range tt.commands {
				w.shell(strings.ReplaceAll(command, "$ARGS", strings.Join(w.args, " ")))
			}
			out, code := w.proxyc("trace", "--kernel", "--from", "192.0.2.200", "--to", "10.96.0.10:80")
			for _, want := range tt.want {
				if code != tt.code || !strings.Contains(out, want) {
					t.Errorf("exit %d, want %d and %q in:\n%s", code, tt.code, want, out)
				}
			}
			if strings.Contains(out, "because") {
				t.Errorf("a cause of what nobody knows:\n%s", out)
			}
			really := "dropped"
			if a, err := topo.Try("ext", "tcp", 0, netip.MustParseAddrPort("10.96.0.10:80"), applytest.Patience(time.Second)); err == nil {
				really = a.Server.String()
			}
			if !strings.Contains(out, really) {
				t.Errorf("really %s, which is not in:\n%s", really, out)
			}
		})
	}
}
