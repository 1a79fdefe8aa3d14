package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// proxyc runs a verb in the namespace of a node, with its configuration.
func (w *watched) proxyc(verb string, args ...string) (out string, code int) {
	return w.run("proxyc", slices.Concat([]string{verb}, w.args, args)...)
}

// run runs a command in the namespace, and returns all that it said.
func (w *watched) run(name string, args ...string) (string, int) {
	cmd := w.ns.Command(w.t.Context(), name, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	w.ns.Run(cmd) // the exit code tells more than the error
	return out.String(), cmd.ProcessState.ExitCode()
}

// applied is a node that has the rules of one Service.
func applied(t *testing.T, plane string) *watched {
	t.Helper()
	w := newWatched(t, plane)
	w.write("cluster.yaml", applytest.Services("a"))
	if out, code := w.proxyc("apply"); code != 0 {
		t.Fatal(out)
	}
	return w
}

// Who asks about another mode than the one whose rules the node has is told so, in place of a
// verdict about rules that are not there.
func TestKernelOfAnotherMode(t *testing.T) {
	haveIPVS := applytest.HaveIPVS(t)
	for _, tt := range []struct{ plane, mode, want string }{
		{"nftables", "iptables", "this node has the rules of mode nftables (table ip proxyc) and none of mode iptables"},
		{"nftables", "ipvs", "this node has the rules of mode nftables (table ip proxyc) and none of mode ipvs"},
		{"iptables-nft", "nftables", "this node has the rules of mode iptables (iptables-nft nat KUBE-NODEPORTS) and none of mode nftables"},
		{"iptables-legacy", "nftables", "this node has the rules of mode iptables (iptables-legacy nat KUBE-NODEPORTS) and none of mode nftables"},
		{"iptables-nft", "ipvs", "this node has the rules of mode iptables (iptables-nft nat KUBE-NODEPORTS) and none of mode ipvs"},
		{"ipvs", "iptables", "this node has the rules of mode ipvs (iptables-nft nat KUBE-LOAD-BALANCER) and none of mode iptables"},
	} {
		t.Run(tt.plane+" "+tt.mode, func(t *testing.T) {
			t.Parallel()
			if (tt.plane == "ipvs" || tt.mode == "ipvs") && !haveIPVS {
				t.Skip("the kernel has no ip_vs")
			}
			w := applied(t, tt.plane)
			for _, args := range [][]string{{"trace", "--kernel", "--from", "10.244.1.5@cni0", "--to", "ns/a:80"}, {"prove", "ir", "kernel"}} {
				if out, code := w.proxyc(args[0], append(args[1:], "--mode", tt.mode)...); code != exitBad || !strings.Contains(out, tt.want) {
					t.Errorf("%s: exit %d, want %d and %q in:\n%s", args[0], code, exitBad, tt.want, out)
				}
				if out, code := w.proxyc(args[0], args[1:]...); code != 0 {
					t.Errorf("%s of the mode that it has: exit %d:\n%s", args[0], code, out)
				}
			}
		})
	}
}
