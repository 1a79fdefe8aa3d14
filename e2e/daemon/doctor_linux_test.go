package daemon

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/doctor"
)

// On a healthy node, doctor finds no error and tests each mode that works there. It finds planted
// faults and prints their fixes.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	look := func(want int, flags ...string) []doctor.Finding {
		t.Helper()
		out, code := w.Run("proxyc", slices.Concat([]string{"doctor", "-o", "json"}, flags)...)
		var report struct {
			Well     bool
			Findings []doctor.Finding
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil || code != want || report.Well != (want == 0) {
			t.Fatalf("exit %d, want %d: %v\n%s", code, want, err, out)
		}
		return report.Findings
	}
	expect := func(found []doctor.Finding, check string, s doctor.Status, text string) {
		t.Helper()
		if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
			return f.Check == check && f.Status == s && strings.Contains(f.Found, text) && (s == doctor.OK || f.Fix != "")
		}) {
			t.Errorf("want %s %s: …%s… among %+v", s, check, text, found)
		}
	}
	w.Must("ip address add 192.0.2.11/32 dev lo")
	well := look(0, "--proxy-mode", "nftables", "--try", "nftables,iptables")
	expect(well, "mode nftables", doctor.OK, "were written")
	expect(well, "mode iptables", doctor.OK, "were written")
	expect(well, "foreign rules", doctor.OK, "none")
	expect(well, "kube-proxy", doctor.OK, "no rules")
	expect(well, "addresses", doctor.OK, "192.0.2.11")
	expect(well, "lock", doctor.OK, "no proxyc")

	// A foreign rule that sets proxyc's masquerade mark is a fault. One that masquerades is usual.
	w.Must("iptables-nft -t mangle -A PREROUTING -d 10.96.0.97 -j MARK --set-mark 0x4000")
	w.Must("iptables-nft -t nat -A POSTROUTING -d 10.244.1.97 -j MASQUERADE")
	marked := look(0, "--proxy-mode", "nftables", "--try", "nftables")
	expect(marked, "foreign rules", doctor.Warning, "may divert: ip mangle chain PREROUTING, hook prerouting, priority -150: sets mark 0x4000 in chain PREROUTING")
	expect(marked, "foreign rules", doctor.OK, "may change the client's address: ip nat chain POSTROUTING")
	w.Must("nft flush ruleset")
	if out, code := w.Run("nft", "list", "ruleset"); code != 0 || out != "" {
		t.Errorf("doctor left rules on the node:\n%s", out)
	}

	w.Must("sysctl -w net.ipv4.ip_forward=0")
	w.Must("nft 'table inet firewalld { chain f { type filter hook forward priority 10; policy drop; }; }'")
	w.Must("iptables-legacy -A INPUT -p tcp --dport 22 -j ACCEPT")
	w.Must("iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT")
	w.Start("proxyc", "watch")
	w.Until("first sync", nodetest.Synced)
	w.Must("nft 'table ip kube-proxy { chain services { }; }'")
	ill := look(1, "--try", "nftables")
	expect(ill, "forwarding", doctor.Error, "net.ipv4.ip_forward is 0")
	expect(ill, "foreign rules", doctor.Warning, "inet firewalld chain f, hook forward, priority 10: policy drop")
	expect(ill, "iptables", doctor.Warning, "both variants have rules")
	expect(ill, "lock", doctor.OK, "written by process ")
	expect(ill, "kube-proxy", doctor.Warning, "table ip kube-proxy")

	// A daemon that writes the rules of the node, while the rules are missing.
	if slices.ContainsFunc(ill, func(f doctor.Finding) bool { return f.Check == "rules" }) {
		t.Errorf("rules are there, and yet: %+v", ill)
	}
	w.Process.Signal(syscall.SIGSTOP)
	w.Must("nft flush ruleset")
	stopped := look(1, "--try", "nftables")
	expect(stopped, "rules", doctor.Error, "there are none for Services, although proxyc wrote some")
	expect(stopped, "daemon", doctor.Error, "it does not answer at /run/proxyc/proxyc-")
	w.Process.Signal(syscall.SIGCONT)

	w.Holds(time.Minute, "a", true)

	// The daemon was killed. Its rules may be incomplete or missing; nothing is known without objects.
	w.Stop(syscall.SIGKILL)
	if out, code := w.Run("proxyc", "trace", "--from", "10.244.1.1", "--to", "10.96.0.97:80"); code != nodetest.ExitBad || !strings.Contains(out, "no proxyc watch runs on this node, although proxyc wrote its rules") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	w.Must("sysctl -w net.ipv4.ip_forward=1")
	w.Write("cut.yaml", applytest.Services("a")[:60])
	if out, code := w.Run("proxyc", "doctor", "-s", w.File("cut.yaml"), "--hostname-override", "node1"); code != nodetest.ExitBad || !strings.Contains(out, "cut.yaml") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	ours := slices.Concat([]string{"--try="}, w.Args)
	gone := func(want int, s doctor.Status, text string, flags ...string) {
		t.Helper()
		expect(look(want, append(flags, "--try=", "-c", w.File("config"), "--hostname-override", "node1")...), "rules", s, text)
	}
	expect(look(0, ours...), "lock", doctor.Warning, "no proxyc updates this node's rules: process ")
	if found := look(0, ours...); slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == "rules" }) {
		t.Errorf("all rules are there, and yet: %+v", found)
	}
	gone(0, doctor.Warning, "no daemon repairs them, and no snapshot or boot file shows which they were")
	w.Must("nft flush map ip proxyc service-ips")
	expect(look(1, ours...), "rules", doctor.Error, "1 are missing or differ, such as ip proxyc service-ips 10.96.0.97 . tcp . 80")
	if out, code := w.Run("proxyc", append([]string{"apply"}, w.Args...)...); code != 0 {
		t.Fatal(out)
	}
	w.Must("nft flush chain ip proxyc nat-postrouting")
	expect(look(1, ours...), "rules", doctor.Error, "missing or differ, such as ip proxyc chain nat-postrouting")
	w.Must("nft flush ruleset")
	gone(1, doctor.Error, "there are none for Services, although proxyc wrote some")
	w.Must("proxyc cleanup")
	if found := look(0, ours...); slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == "rules" }) {
		t.Errorf("they were removed on purpose, and yet: %+v", found)
	}

	without := look(1, "--try", "nftables", "--kubeconfig", "none")
	expect(without, "API server", doctor.Error, "none")
	if out, code := w.Run("unshare", "--user", "proxyc", "doctor"); code != nodetest.ExitBad || !strings.Contains(out, "doctor: requires root") {
		t.Errorf("without rights: exit %d:\n%s", code, out)
	}
}
