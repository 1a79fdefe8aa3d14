package proof_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// After apply, the kernel treats every packet as the cluster requires. A planted fault is found,
// with the affected clients.
func TestProveKernel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ plane, mode, fault, finds string }{
		{"nftables", "nftables", "nft delete element ip proxyc service-ips { 10.96.0.97 . tcp . 80 }", "kernel  rejected"},
		{"nftables", "nftables", "nft insert rule ip proxyc services ip daddr 10.96.0.97 drop", "kernel  dropped"},
		{"nftables", "nftables", "nft insert rule ip proxyc services ip saddr . ip daddr { 192.0.2.77 . 10.96.0.97 } drop", "unsupported: table ip proxyc, chain services, rule 1: "},
		{"nftables", "nftables", "nft add set ip proxyc evil { type ipv4_addr ; elements = { 192.0.2.77 } ; } ; insert rule ip proxyc services ip saddr @evil drop", "unsupported: table ip proxyc, chain services, rule 1: "},
		{"iptables-nft", "iptables", "iptables-nft -t nat -I KUBE-SERVICES -d 10.96.0.97 -j ACCEPT", "kernel  not proxied"},
		{"iptables-legacy", "iptables", "iptables-legacy -t filter -I KUBE-FORWARD -s 198.51.100.7 -j DROP", "from 198.51.100.7/32"},
		{"ipvs", "ipvs", "ipvsadm -d -t 10.96.0.97:80 -r 10.244.1.97:8080", "kernel  rejected"},
		{"ipvs", "ipvs", "ipset del KUBE-CLUSTER-IP 10.96.0.97,tcp:80", "kernel  rejected"},
		{"ipvs", "ipvs", "ip addr del 10.96.0.97/32 dev kube-ipvs0", "kernel  not proxied"},
	} {
		t.Run(tt.plane+" "+tt.fault, func(t *testing.T) {
			t.Parallel()
			w := nodetest.New(t, tt.plane)
			w.Sync(applytest.Services("a"))
			w.Stop(syscall.SIGTERM)
			if out, code := w.Proxyc("prove", "ir", "kernel"); code != 0 || !strings.Contains(out, "equal: ir and kernel, IPv4 and IPv6") {
				t.Fatalf("exit %d:\n%s", code, out)
			}
			words := strings.Fields(tt.fault)
			if out, code := w.Run(words[0], words[1:]...); code != 0 {
				t.Fatalf("%s: exit %d\n%s", tt.fault, code, out)
			}
			if out, code := w.Proxyc("prove", "ir", "kernel"); code != 1 || !strings.Contains(out, tt.finds) {
				t.Errorf("exit %d, want 1 and %q in:\n%s", code, tt.finds, out)
			}
		})
	}
}

// Foreign rules and settings are named with the result, which is about proxyc's rules. It is negative if
// they can drop or divert packets of Services; masquerading is usual.
func TestProveKernelNamesOthers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ plane, rule, named string }{
		{"nftables", "sysctl -w net.ipv4.ip_forward=0",
			"not compared: net.ipv4.ip_forward is 0: the node forwards no IPv4 packet to or from a pod"},
		{"nftables", "nft 'table ip fw { chain pre { type nat hook prerouting priority -150; ip daddr 10.96.0.97 dnat to 192.0.2.1; }; }'",
			"not compared: foreign rules that may divert: ip fw chain pre, hook prerouting, priority -150: dnat in chain pre"},
		{"nftables", "nft 'table ip fw { chain late { type filter hook forward priority 50; tcp dport 8080 drop; }; }'",
			"not compared: foreign rules that may drop: ip fw chain late, hook forward, priority 50: drop in chain late"},
		{"nftables", "nft 'table ip fw { chain post { type nat hook postrouting priority 90; masquerade; }; }'",
			"not compared: foreign rules that may change the client's address: ip fw chain post, hook postrouting, priority 90: masquerade in chain post"},
		{"nftables", "for t in nft legacy; do iptables-$t -t nat -N KUBE-SERVICES; iptables-$t -t nat -A PREROUTING -j KUBE-SERVICES; iptables-$t -t nat -A KUBE-SERVICES -d 10.96.0.97 -j DNAT --to 192.0.2.1; done",
			"not compared: rules of kube-proxy or another mode, which packets may match: iptables-legacy nat KUBE-SERVICES"},
		{"iptables-nft", "iptables-nft -t mangle -A PREROUTING -j MARK --set-xmark 0x4000/0x4000",
			"not compared: foreign rules that may divert: ip mangle chain PREROUTING, hook prerouting, priority -150: sets mark 0x4000 in chain PREROUTING"},
		{"iptables-nft", "iptables-nft -t nat -I PREROUTING 1 -d 10.96.0.97 -j ACCEPT",
			"not compared: foreign rules that may divert: ip nat chain PREROUTING, hook prerouting, priority -100: accept in chain PREROUTING"},
		{"iptables-legacy", "iptables-legacy -t nat -I PREROUTING 1 -d 10.96.0.97 -j DNAT --to 192.0.2.1",
			"not compared: foreign rules that may divert: iptables-legacy table nat chain PREROUTING: DNAT in chain PREROUTING"},
	} {
		t.Run(tt.plane, func(t *testing.T) {
			t.Parallel()
			w := nodetest.New(t, tt.plane)
			w.Write("cluster.yaml", applytest.Services("a"))
			w.Must("proxyc apply "+strings.Join(w.Args, " "), tt.rule)
			last, code := "\nno difference in the compared rules, but results may differ: ir and kernel, ", nodetest.ExitFindings
			if strings.Contains(tt.named, "client's address") {
				last, code = "\nno difference in the compared rules: ir and kernel, ", nodetest.ExitDone
			}
			if out, exit := w.Proxyc("prove", "ir", "kernel"); exit != code || !strings.Contains(out, tt.named) || !strings.Contains(out, last) {
				t.Errorf("prove: exit %d, want %d, %q and%s in\n%s", exit, code, tt.named, last, out)
			}
			if _, rule, foreign := strings.Cut(tt.named, "not compared: foreign"); foreign {
				if out, _ := w.Proxyc("apply", "--check"); !strings.Contains(out, rule) {
					t.Errorf("apply --check does not report %q:\n%s", rule, out)
				}
			}
		})
	}
}

// prove reads all of proxyc's own rules in the output of nft list, with any of its options and with
// added counters. It reports other rules in a chain together with the chain.
func TestProveListing(t *testing.T) {
	t.Parallel()
	w := nodetest.New(t, "nftables")
	dir := t.TempDir()
	in := []string{"-c", dir + "/config.yaml", "-s", dir + "/cluster.yaml", "--hostname-override", "node1"}
	nodetest.Demo(t, dir)
	w.Forward()
	if out, code := w.Run("proxyc", slices.Concat([]string{"apply"}, in)...); code != 0 {
		t.Fatalf("apply: exit %d:\n%s", code, out)
	}
	prove := func(side string) (string, int) {
		return w.Run("proxyc", slices.Concat([]string{"prove"}, in, []string{"ir", side})...)
	}
	listings := func(want string, exit int) {
		t.Helper()
		for _, option := range []string{"-y", "-s", "-n", "-a", "-nn"} {
			listing, code := w.Run("nft", option, "list", "ruleset")
			file := filepath.Join(dir, "listed"+option)
			if err := os.WriteFile(file, []byte(listing), 0o600); err != nil || code != 0 {
				t.Fatal(err, code, listing)
			}
			if out, code := prove("dump:" + file); code != exit || !strings.Contains(out, want) {
				t.Errorf("nft %s list ruleset: exit %d, want %d and %q in:\n%.2000s", option, code, exit, want, out)
			}
		}
		if out, code := prove("kernel"); code != exit || !strings.Contains(out, want) {
			t.Errorf("kernel: exit %d, want %d and %q in:\n%.2000s", code, exit, want, out)
		}
	}
	listings("equal: ir and ", 0)
	for _, rule := range []string{"services counter", "lb-1 ip saddr 10.0.0.0/8 counter comment x"} {
		w.Must("nft insert rule ip proxyc " + rule)
	}
	listings("equal: ir and ", 0)
	w.Must("nft insert rule ip proxyc services limit rate 1/second")
	listings("unsupported: table ip proxyc, chain services, rule 1: limit", 1)
}

// The daemon serves the rules in force at its socket.
func TestProveLive(t *testing.T) {
	t.Parallel()
	w := nodetest.New(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Start("proxyc", "watch", "--status-socket", w.File("socket"))
	w.Until("first sync", nodetest.Synced)
	prove := func() (string, int) { return w.Proxyc("prove", "ir", "live:"+w.File("socket")) }
	if out, code := prove(); code != 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	w.Write("cluster.yaml", applytest.Services("a", "b"))
	w.Until("the second Service", func(st status.Status) bool { return nodetest.Synced(st) && st.Objects.Services == 2 })
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"trace", "--live", "--from", "10.244.1.5@cni0", "--to", "ns/b:80", "--expect", "served"}, "=> 10.244.1.98:8080"},
		{[]string{"explain", "10.96.0.98:80"}, "Service ns/b: spec.clusterIP"},
	} {
		out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", append(tt.args, "--status-socket", w.File("socket"))...))
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%q: %v, want %q in:\n%s", tt.args, err, tt.want, out)
		}
	}
	w.Stop(syscall.SIGTERM)
	if out, code := prove(); code != 2 || !strings.Contains(out, "no daemon answers") {
		t.Errorf("without a daemon: exit %d:\n%s", code, out)
	}
}

// Without the required privileges, the error names them, as with the other verbs.
func TestProveKernelNeedsRoot(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("unshare", "--user", "true").CombinedOutput(); err != nil {
		t.Skipf("no user namespaces: %v\n%s", err, out)
	}
	dir := t.TempDir()
	nodetest.Demo(t, dir)
	cmd := exec.Command("unshare", "--user", "proxyc", "prove", "-c", dir+"/config.yaml", "-s", dir+"/cluster.yaml", "--hostname-override", "node1", "ir", "kernel")
	out, _ := cmd.CombinedOutput() // the exit code is more informative than the error
	if code := cmd.ProcessState.ExitCode(); code != nodetest.ExitBad || !strings.Contains(string(out), "proxyc: prove: requires root") {
		t.Errorf("code %d\n%s", code, out)
	}
}
