package daemon

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// If the rules that protect listeners on localhost are removed while route_localnet is 1, a warning
// states how to reset it.
func TestLocalhostExposed(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		out, code := w.Run("proxyc", args...)
		if code != 0 {
			t.Fatalf("%s: exit %d\n%s", args, code, out)
		}
		return out
	}
	nodetest.Demo(t, dir)
	apply := func(mode string, more ...string) string {
		return run(slices.Concat([]string{"apply", "-c", dir + "/config.yaml", "-s", dir + "/cluster.yaml", "--hostname-override", "node1", "--mode", mode}, more)...)
	}
	const warning = "warning: net.ipv4.conf.all.route_localnet is 1, and the rules that protected localhost were removed"
	for name, leave := range map[string]func() string{"another mode": func() string { return apply("nftables") }, "cleanup": func() string { return run("cleanup") }} {
		if said := apply("iptables"); strings.Contains(said, warning) {
			t.Errorf("mode iptables: %s", said)
		}
		if said := leave(); !strings.Contains(said, warning) {
			t.Errorf("%s: %q is not reported in %q", name, warning, said)
		}
		if said := run("cleanup"); strings.Contains(said, warning) {
			t.Errorf("nothing went, and yet: %s", said)
		}
	}
	// The daemon's status names the setting as long as its mode does not need it.
	must(t, os.WriteFile(w.File("config"), []byte(fmt.Sprintf(nodetest.Config, "nftables")), 0o600))
	must(t, w.NS.Sysctl("ipv4/ip_forward=0", "ipv6/conf/all/forwarding=0"))
	w.Sync(applytest.Services("a"))
	w.Until("a check after the first sync", func(st status.Status) bool { return len(st.Settings) == 2 })
	out, code := w.Run("proxyc", "status", "--ignore-findings")
	for _, want := range []string{"\nsynced       yes, but foreign rules or settings may affect packets", "\nsetting      net.ipv4.conf.all.route_localnet is 1", "\nsetting      net.ipv4.ip_forward is 0"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("status exits with %d, want 0 and %q:\n%s", code, want, out)
		}
	}
	// Forwarding matters only to families with Services.
	const off = "\nsetting      net.ipv6.conf.all.forwarding is 0: the node forwards no IPv6 packet to or from a pod\n"
	if strings.Contains(out, "ipv6") {
		t.Errorf("status without IPv6 Services:\n%s", out)
	}
	w.Write("cluster.yaml", strings.NewReplacer("10.96.0.", "fd00:10:96::", "10.244.1.", "fd00:10:244:1::", "IPv4", "IPv6").Replace(applytest.Services("a")))
	w.Until("the IPv6 Service", func(st status.Status) bool {
		return nodetest.Synced(st) && len(st.Settings) > 0 && strings.Contains(st.Settings[0], "ipv6")
	})
	if out, _ := w.Run("proxyc", "status"); !strings.Contains(out, off) || strings.Contains(out, "net.ipv4.ip_forward") {
		t.Errorf("want%sin\n%s", off, out)
	}
	w.Stop(syscall.SIGTERM)
	// The rules of the other variant protect the listeners, and node ports on localhost need the setting.
	for _, variant := range []string{"legacy", "nft"} {
		if said := apply("iptables", "--iptables-variant", variant); strings.Contains(said, warning) {
			t.Errorf("variant %s: %s", variant, said)
		}
	}
}

// Cleanup names the chains that it keeps, and who uses them.
func TestCleanupNamesWhatItKeeps(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	dir := t.TempDir()
	nodetest.Demo(t, dir)
	for _, args := range []string{
		"proxyc apply -c " + dir + "/config.yaml -s " + dir + "/cluster.yaml --hostname-override node1 --mode iptables --iptables-variant nft",
		"iptables-nft -t mangle -N KUBE-KUBELET-CANARY",
		"iptables-nft -t nat -N CNI-HOSTPORT-SETMARK",
		"iptables-nft -t nat -A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ",
	} {
		words := strings.Fields(args)
		if out, code := w.Run(words[0], words[1:]...); code != 0 {
			t.Fatalf("%s: %s", args, out)
		}
	}
	const kept = "keep iptables-nft nat KUBE-MARK-MASQ: foreign chain CNI-HOSTPORT-SETMARK jumps to it\nkeep iptables-nft filter KUBE-FIREWALL: the kubelet uses it\n"
	for _, args := range [][]string{{"cleanup", "--dry-run"}, {"cleanup"}, {"cleanup"}} {
		if out, code := w.Run("proxyc", args...); code != 0 || !strings.Contains(out, kept) {
			t.Errorf("%v: exit code %d: %s", args, code, out)
		}
	}
	if out, code := w.Run("iptables-nft", "-t", "nat", "-S", "KUBE-MARK-MASQ"); code != 0 {
		t.Error(out)
	}
}
