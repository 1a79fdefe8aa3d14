package daemon

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// The daemon reactivates dormant iptables tables at once, and reports them.
func TestWatchWakesTablesOfIPTables(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "iptables-nft")
	w.Sync(applytest.Services("a"))
	for _, table := range []string{"ip nat", "ip6 filter"} {
		w.Must("nft 'add table " + table + " { flags dormant; }'")
		applytest.Until(w.T, 5*time.Second, table+" is in force again, and that is reported", func() bool {
			drift := w.Until("a status", func(status.Status) bool { return true }).LastDrift
			reported := drift != nil && len(drift.First) == 1 && drift.First[0].Object == "table "+table
			out, err := w.NS.Run(w.NS.Command(t.Context(), "nft", "list table "+table))
			return reported && err == nil && !strings.Contains(string(out), "dormant")
		})
	}
}

// The daemon finds, names and reverts at once what others add to its table or make dormant. apply
// --check reports it, and a daemon that starts finds it, too.
func TestWatchUndoesWhateverIsWritten(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(applytest.Services("a"))
	nft := func(command string) { t.Helper(); w.Must("nft '" + command + "'") }
	nft("table inet firewall { chain c { type filter hook forward priority -1; ip saddr 192.0.2.1 drop; }; }")
	const firewall = "foreign rules that may drop: inet firewall chain c, hook forward, priority -1: drop in chain c"
	if out, code := w.Proxyc("apply", "--check"); code != 0 || !strings.Contains(out, firewall) {
		t.Errorf("apply --check: code %d, want 0 and %q in\n%s", code, firewall, out)
	}
	// One look at the rules of others serves for some seconds.
	applytest.Until(w.T, 10*time.Second, "the status names "+firewall, func() bool {
		out, err := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "status"))
		return err == nil && strings.Contains(string(out), firewall)
	})
	for _, attack := range []struct{ command, named, have, trace string }{
		{"insert rule ip proxyc services counter drop", "ip proxyc chain services", "counter drop", "counter packets"},
		{"add rule ip proxyc nat-prerouting ip saddr { 10.0.0.0/8, 11.0.0.0/8 } drop", "ip proxyc chain nat-prerouting", "ip saddr @__set0 drop", "11.0.0.0/8"},
		{"add rule ip proxyc nat-prerouting tcp dport vmap { 22 : drop, 23-25 : accept }", "ip proxyc chain nat-prerouting", "meta l4proto tcp th dport vmap @__map0", "23-25"},
		{"add set ip proxyc mine { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }", "ip proxyc set mine", "", "set mine"},
		{"add counter ip proxyc mine", "ip proxyc counter mine", "", "counter mine"},
		{"add table ip proxyc { flags dormant; }", "table ip proxyc", "flags dormant", "dormant"},
		{"add chain ip proxyc nat-output { policy drop; }", "ip proxyc chain nat-output", "policy drop", "policy drop"},
	} {
		w.Stop(syscall.SIGTERM)
		nft(attack.command)
		lines := attack.named
		if attack.have != "" {
			lines += "\n  have: " + attack.have
		}
		for _, output := range []string{"text", "wide"} {
			if out, code := w.Proxyc("apply", "--check", "-o", output); code != 1 || !strings.Contains(regexp.MustCompile(" #.*").ReplaceAllString(out, ""), lines+"\n") {
				t.Errorf("%s: apply --check -o %s: code %d, want 1 and %q in\n%s", attack.command, output, code, lines, out)
			}
		}
		if out, code := w.Proxyc("apply", "--check", "-o", "json"); code != 1 || !strings.Contains(out, `"have": [
          "`+attack.have+`"`) && attack.have != "" {
			t.Errorf("%s: apply --check -o json: code %d, want 1 and %q in\n%s", attack.command, code, attack.have, out)
		}
		if out, code := w.Proxyc("apply", "--dry-run", "-o", "wide"); code != 0 || !strings.Contains(out, attack.named) {
			t.Errorf("%s: apply --dry-run: code %d, want 0 and %q in\n%s", attack.command, code, attack.named, out)
		}
		w.Start("proxyc", "watch")
		w.Until("synced after "+attack.command, nodetest.Synced)
		if rules := w.Rules(); strings.Contains(rules, attack.trace) || !w.Has("a") {
			t.Errorf("%s: a start leaves\n%s", attack.command, rules)
		}
		nft(attack.command)
		applytest.Until(w.T, 10*time.Second, fmt.Sprintf("%q is undone and reported", attack.command), func() bool {
			drift := w.Until("a status", func(status.Status) bool { return true }).LastDrift
			reported := drift != nil && slices.ContainsFunc(drift.First, func(op apply.Operation) bool {
				return op.Object == attack.named && strings.Join(op.Have, "; ") == attack.have
			})
			reported = reported && (attack.have == "" || strings.Contains(w.Log.String(), attack.have))
			return reported && !strings.Contains(w.Rules(), attack.trace) && w.Has("a")
		})
	}
}
