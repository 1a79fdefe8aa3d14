package daemon

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/nodetest"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

const othersDir = "../../testdata/apply/others"

// others are the rules of other programs on a node.
type others struct{ *watched }

// tool runs a tool on a file of rules, or on none.
func (o others) tool(file string, tool ...string) string {
	o.T.Helper()
	cmd := o.NS.Command(o.T.Context(), tool[0], tool[1:]...)
	if file != "" {
		text, err := os.ReadFile(filepath.Join(othersDir, file))
		if err != nil {
			o.T.Fatal(err)
		}
		cmd.Stdin = strings.NewReader(string(text))
	}
	out, err := o.NS.Run(cmd)
	if err != nil {
		o.T.Fatalf("%s: %v\n%s", tool, err, out)
	}
	return string(out)
}

// load loads all of them, those of iptables in both variants.
func (o others) load() {
	o.T.Helper()
	for _, name := range []string{"firewalld", "docker", "calico"} {
		o.tool(name+".nft", "nft", "-f", "-")
	}
	o.write6()
	for _, variant := range []string{"nft", "legacy"} {
		for _, name := range []string{"calico", "cilium", "docker"} {
			o.tool(name+".iptables", "iptables-"+variant+"-restore", "--noflush")
		}
	}
}

// write6 makes the tables of IPv6 that hosts have without a rule.
func (o others) write6() {
	for _, variant := range []string{"nft", "legacy"} {
		o.tool("", "ip6tables-"+variant, "-t", "filter", "-P", "FORWARD", "DROP")
	}
}

var (
	itsCounters = regexp.MustCompile(`\[\d+:\d+\]`)
	ourTable    = regexp.MustCompile(`(?ms)^table ip6? proxyc \{.*?^\}\n`)
	ofChains    = regexp.MustCompile(`(?m)^# Warning: .*\n`)
)

// theirs returns all foreign rules, as the tools list them.
func (o others) theirs() string {
	o.T.Helper()
	var all strings.Builder
	all.WriteString(ofChains.ReplaceAllString(ourTable.ReplaceAllString(withoutXtables(o.tool("", "nft", "-s", "list", "ruleset")), ""), ""))
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		all.WriteString(save + "\n")
		for line := range strings.Lines(o.tool("", save)) {
			if !strings.Contains(line, "KUBE-") && line[0] != '#' {
				all.WriteString(itsCounters.ReplaceAllString(line, ""))
			}
		}
	}
	return all.String()
}

// withoutXtables leaves out the tables of iptables-nft, which its own tool lists better.
func withoutXtables(ruleset string) string {
	return regexp.MustCompile(`(?ms)^table ip6? (raw|mangle|nat|filter) \{.*?^\}\n`).ReplaceAllString(ruleset, "")
}

// unused matches tables that proxyc created and that are empty again.
var unused = regexp.MustCompile(`(?m)^\*\w+\n(:\w+ ACCEPT \n)+COMMIT\n`)

// proxyc writes, compares, repairs and removes its rules next to those of other programs without a
// change of a byte in theirs.
func TestWatchBesideOtherPrograms(t *testing.T) {
	t.Parallel()
	drift := map[string][]string{
		"nftables":        {"nft", "flush", "chain", "ip", "proxyc", "services"},
		"iptables-nft":    {"iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES"},
		"iptables-legacy": {"iptables-legacy", "-t", "nat", "-F", "KUBE-SERVICES"},
	}
	for plane, drift := range drift {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, plane)
			o := others{w}
			w.Write("cluster.yaml", applytest.Services("a", "b"))
			o.load()
			before := unused.ReplaceAllString(o.theirs(), "")
			same := func(when string) {
				t.Helper()
				if d := cmp.Diff(before, unused.ReplaceAllString(o.theirs(), "")); d != "" {
					t.Errorf("%s: rules of others (-before +after):\n%s", when, d)
				}
			}
			applied := o.tool("", append([]string{"proxyc", "apply"}, w.Args...)...)
			same("after apply")
			checked := o.tool("", append([]string{"proxyc", "apply", "--check"}, w.Args...)...)
			same("after apply --check")
			for _, want := range []string{
				"nothing to change",
				"inet firewalld chain filter_INPUT, hook input, priority 10: drop in chain filter_INPUT",
				"ip docker-bridges chain filter-FORWARD, hook forward, priority 0: drop in chain filter-forward-in__docker0",
				"ip docker-bridges chain raw-PREROUTING, hook prerouting, priority -300: drop in chain raw-PREROUTING",
				"ip calico chain filter-FORWARD, hook forward, priority 0: drop in chain filter-cali-from-wl-dispatch",
				"ip filter chain FORWARD, hook forward, priority 0: policy drop",
				"ip6 filter chain FORWARD, hook forward, priority 0: policy drop",
				"iptables-legacy table filter chain FORWARD: policy DROP",
				"foreign rules that may divert: ip docker-bridges chain nat-PREROUTING, hook prerouting, priority -100: dnat in chain nat-prerouting-and-output",
				"foreign rules that may divert: iptables-legacy table raw chain OUTPUT: NOTRACK in chain CILIUM_OUTPUT_raw",
			} {
				if !strings.Contains(checked, want) {
					t.Errorf("apply --check does not tell %q:\n%s", want, checked)
				}
				if want != "nothing to change" && !strings.Contains(applied, want) {
					t.Errorf("apply does not report %q:\n%s", want, applied)
				}
			}
			if strings.Contains(checked, "clears mark") {
				t.Errorf("apply --check takes a mark of others for ours:\n%s", checked)
			}
			w.Start("proxyc", "watch")
			st := w.Until("first sync", nodetest.Synced)
			if len(st.MayDrop) == 0 || st.LastDrift != nil {
				t.Errorf("status: may drop %q, drift %+v", st.MayDrop, st.LastDrift)
			}
			same("after the start of the daemon")
			o.tool("", drift...)
			w.Until("a repair", func(st status.Status) bool { return nodetest.Synced(st) && st.LastDrift != nil })
			same("after a repair")
			o.load() // they write theirs again
			w.Write("cluster.yaml", applytest.Services("a", "b", "c"))
			w.Holds(20*time.Second, "c", true)
			w.Until("all is in force", nodetest.Synced)
			if o.tool("", append([]string{"proxyc", "apply", "--check"}, w.Args...)...); t.Failed() {
				return
			}
			w.Stop(syscall.SIGTERM)
			o.tool("", "proxyc", "cleanup")
			if left := w.Rules(); strings.Contains(left, "proxyc") || strings.Contains(left, "KUBE-") {
				t.Errorf("after cleanup:\n%s", left)
			}
		})
	}
}

// A foreign rule that clears the mark before proxyc's masquerade rule is reported wherever foreign
// rules are reported.
func TestMarkOfOthers(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	o := others{w}
	w.Sync(applytest.Services("a"))
	o.tool("", "nft", "table inet m { chain c { type filter hook postrouting priority 0; meta mark set 0; }; }")
	const rule = "inet m chain c, hook postrouting, priority 0: clears mark 0x4000 in chain c"
	w.Until("the rule is reported", func(st status.Status) bool { return slices.Contains(st.MayDivert, rule) })
	if out := o.tool("", append([]string{"proxyc", "apply", "--check"}, w.Args...)...); !strings.Contains(out, "foreign rules that may divert: "+rule) {
		t.Errorf("apply --check:\n%s", out)
	}
	out, _ := w.NS.Run(w.NS.Command(t.Context(), "proxyc", "doctor", "-c", w.File("config"), "--hostname-override", "node1")) // it may find more
	if !strings.Contains(string(out), "may divert: "+rule) {
		t.Errorf("doctor:\n%s", out)
	}
	w.Write("config", strings.Replace(fmt.Sprintf(nodetest.Config, "nftables"), "nftables: {", "nftables: {masqueradeBit: 20, ", 1))
	w.Until("the new bit", func(st status.Status) bool {
		return slices.Contains(st.MayDivert, strings.Replace(rule, "0x4000", "0x100000", 1))
	})
}

// A foreign rule that drops the packets of the metrics server does not hide the status.
func TestStatusBehindForeignDrop(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(applytest.Services("a"))
	w.Must("nft 'table inet fw { chain in { type filter hook input priority 0; iifname lo tcp dport 10249 drop; }; }'")
	if out, code := w.Run("proxyc", "status"); code != 0 || !strings.Contains(out, "\nmode         nftables\n") {
		t.Errorf("status: exit %d\n%s", code, out)
	}
	out, code := w.Run("proxyc", "status", "--address", "127.0.0.1:10249")
	if want := "it is stopped or hangs; process "; code != nodetest.ExitBad || !strings.Contains(out, want) {
		t.Errorf("status: exit %d, want %q in\n%s", code, want, out)
	}
}

// If foreign rules cannot be read, since the tools of their iptables variant are missing, apply
// nevertheless succeeds: its rules are in force.
func TestApplyUnreadableForeign(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Write("cluster.yaml", applytest.Services("a"))
	w.Must("iptables-legacy -N foreign")
	args := append([]string{"-c", `proxyc=$(command -v proxyc); PATH=/nonexistent exec "$proxyc" "$@"`, "sh", "apply"}, w.Args...)
	out, code := w.Run("sh", args...)
	if want := "foreign rules are not known: "; code != 0 || !strings.Contains(out, want) || !w.Has("a") {
		t.Errorf("apply: exit %d, want 0 and %q:\n%s", code, want, out)
	}
	if out, code := w.Run("sh", append(args, "--check")...); code != nodetest.ExitBad {
		t.Errorf("apply --check: exit %d, want %d:\n%s", code, nodetest.ExitBad, out)
	}
}

// Rules that only nft supports, in tables of iptables, hinder neither a mode nor the removal of own
// chains beside them.
func TestApplyBesideNativeRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ before, plane string }{{"", "nftables"}, {"iptables", "nftables"}, {"", "iptables-nft"}, {"iptables", "iptables-nft"}} {
		t.Run(tt.before+" "+tt.plane, func(t *testing.T) {
			w := newWatched(t, tt.plane)
			before := tt.before
			mode, _, _ := strings.Cut(tt.plane, "-")
			w.Write("cluster.yaml", applytest.Services("a"))
			if before != "" {
				w.Write("config", fmt.Sprintf(nodetest.Config, before))
				if out, code := w.Run("proxyc", append([]string{"apply", "--iptables-variant=nft"}, w.Args...)...); code != 0 {
					t.Fatal(out)
				}
				w.Write("config", fmt.Sprintf(nodetest.Config, mode))
			}
			const natives = "table ip filter { chain INPUT { type filter hook input priority 0; ct mark set numgen inc mod 2 accept; }; }; " +
				"table ip nat { set x { type ipv4_addr; }; chain POSTROUTING { type nat hook postrouting priority 100; ip saddr @x masquerade; }; }"
			if out, code := w.Run("nft", natives); code != 0 {
				t.Fatal(out)
			}
			if out, code := w.Run("proxyc", append([]string{"apply"}, w.Args...)...); code != 0 {
				t.Errorf("apply: exit %d\n%s", code, out)
			}
			if rules := strings.ReplaceAll(w.Rules(), "KUBE-FIREWALL", ""); mode == "nftables" && strings.Contains(rules, "KUBE-") { // the kubelet's, too
				t.Errorf("chains of mode iptables remain:\n%s", rules)
			}
			if out, code := w.Run("proxyc", append([]string{"apply", "--check"}, w.Args...)...); code != 0 {
				t.Errorf("apply --check: exit %d\n%s", code, out)
			}
			w.Start("proxyc", "watch")
			w.readyz("beside the rules", http.StatusOK, "")
			w.Write("cluster.yaml", applytest.Services("a", "b"))
			applytest.Until(w.T, 20*time.Second, "the new Service is in force", func() bool {
				_, code := w.Proxyc("apply", "--check")
				return code == 0
			})
			w.Stop(syscall.SIGTERM)
			if out, code := w.Run("proxyc", "cleanup"); code != 0 {
				t.Errorf("cleanup: exit %d\n%s", code, out)
			}
			rules, _ := w.Run("nft", "list", "ruleset")
			if strings.Contains(strings.ReplaceAll(rules, "KUBE-FIREWALL", ""), "KUBE-") || strings.Contains(rules, "proxyc") {
				t.Errorf("own rules remain:\n%s", rules)
			}
			if !strings.Contains(rules, "numgen inc mod 2 accept") || !strings.Contains(rules, "ip saddr @x masquerade") {
				t.Errorf("foreign rules are missing:\n%s", rules)
			}
		})
	}
}
