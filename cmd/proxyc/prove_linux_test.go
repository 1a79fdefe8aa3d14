package main

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// What the kernel holds after apply is what the cluster wants, for every packet;
// a fault that is planted in it is found, with the clients whom it concerns.
func TestProveKernel(t *testing.T) {
	for _, tt := range []struct{ plane, mode, fault, finds string }{
		{"nftables", "nftables", "nft delete element ip proxyc service-ips { 10.96.0.97 . tcp . 80 }", "kernel  rejected"},
		{"nftables", "nftables", "nft insert rule ip proxyc services ip daddr 10.96.0.97 drop", "kernel  dropped"},
		{"iptables-nft", "iptables", "iptables-nft -t nat -I KUBE-SERVICES -d 10.96.0.97 -j ACCEPT", "kernel  not ours"},
		{"iptables-legacy", "iptables", "iptables-legacy -t filter -I KUBE-FORWARD -s 198.51.100.7 -j DROP", "from 198.51.100.7/32"},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, tt.plane)
			w.write("cluster.yaml", applytest.Services("a"))
			w.start("proxyc", "watch")
			w.until("first sync", synced)
			w.stop(syscall.SIGTERM)
			prove := func() (string, int) {
				cmd := w.ns.Command(t.Context(), "proxyc", slices.Concat([]string{"prove"}, w.args, []string{"ir", "kernel"})...)
				var out strings.Builder
				cmd.Stdout, cmd.Stderr = &out, &out
				w.ns.Run(cmd) // the exit code tells more than the error
				return out.String(), cmd.ProcessState.ExitCode()
			}
			if out, code := prove(); code != 0 || !strings.Contains(out, "equal: ir and kernel, IPv4 and IPv6") {
				t.Fatalf("exit %d:\n%s", code, out)
			}
			words := strings.Fields(tt.fault)
			if out, err := w.ns.Run(w.ns.Command(t.Context(), words[0], words[1:]...)); err != nil {
				t.Fatalf("%s: %v\n%s", tt.fault, err, out)
			}
			if out, code := prove(); code != 1 || !strings.Contains(out, tt.finds) {
				t.Errorf("exit %d, want 1 and %q in:\n%s", code, tt.finds, out)
			}
		})
	}
}
