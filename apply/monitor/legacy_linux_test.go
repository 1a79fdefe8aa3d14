package monitor

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// theirs are tables in which the work of others is found.
const theirs = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-A
-A KUBE-SVC-A -p tcp -j DNAT --to-destination 10.244.1.10:8080
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
`

// theirs6 is a table of the other family.
const theirs6 = `*nat
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d fd00:96::1/128 -j ACCEPT
COMMIT
`

// TestLegacy: what others do to the tables is seen, also where the tables keep
// their sizes; packets that are counted are not.
func TestLegacy(t *testing.T) {
	applytest.RequireRoot(t)
	for _, tc := range []struct {
		name  string
		tool  string // of the legacy variant
		stdin string
		args  string
		sizes bool // tell of it, too
		want  bool
	}{
		{"a flush", "iptables", "", "-t nat -F", true, true},
		{"a chain that goes", "iptables", "", "-t filter -F KUBE-FORWARD", true, true},
		{"a rule replaced by one of its size", "iptables", "", "-t nat -R KUBE-SERVICES 1 -d 10.96.0.2/32 -j KUBE-SVC-A", false, true},
		{"a target replaced", "iptables", "", "-t nat -R KUBE-SVC-A 1 -p tcp -j DNAT --to-destination 10.244.1.11:8080", false, true},
		{"as many rules of other chains", "iptables-restore", strings.NewReplacer("SVC-A", "SVC-B", "KUBE-FORWARD", "KUBE-OUTWARD").Replace(theirs), "", false, true},
		{"a rule of IPv6 replaced", "ip6tables", "", "-t nat -R KUBE-SERVICES 1 -d fd00:96::2/128 -j ACCEPT", false, true},
		{"the same once more", "iptables-restore", theirs, "", false, false},
		{"counters", "iptables-restore", strings.Replace(theirs, "-A KUBE-FORWARD", "[7:700] -A KUBE-FORWARD", 1), "--counters", false, false},
		{"another table", "iptables", "", "-t mangle -A OUTPUT -j ACCEPT", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
			applytest.InNamespace(t, func() {
				legacy(t, "iptables-restore", theirs)
				legacy(t, "ip6tables-restore", theirs6)
				told := 0
				m := OpenLegacy(func(bool) { told++ })
				nothing := func() bool { return true }
				look := func(all bool, want int, when string) {
					t.Helper()
					if m.next = (time.Time{}); !all {
						m.next = time.Now().Add(time.Hour)
					}
					if m.look(false); told != want {
						t.Errorf("told %d times %s, want %d", told, when, want)
					}
				}
				look(true, 0, "before the first work of our own")
				m.Own(nothing)
				look(false, 0, "of the sizes that we made")
				m.Own(nothing)
				look(true, 0, "of what we did")
				legacy(t, tc.tool, tc.stdin, strings.Fields(tc.args)...)
				look(false, count(tc.sizes), "by the sizes")
				look(true, count(tc.want), "in all")
				look(true, count(tc.want), "though it was told before")
				m.Own(nothing)
				look(true, count(tc.want), "though it was repaired")
			})
		})
	}
}

// TestLegacyBetween: a change right before our own work is reported, though it keeps the
// sizes and reading all that is in the tables was to rest. One in the middle is our own.
func TestLegacyBetween(t *testing.T) {
	watched(t, func(m *Legacy, told *int) {
		m.next = time.Now().Add(time.Hour)
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		m.Own(func() bool {
			if *told != 1 {
				t.Errorf("told %d times, want 1", *told)
			}
			legacy(t, "iptables", "", "-t", "filter", "-F")
			return true
		})
		if m.look(true); *told != 1 {
			t.Errorf("told %d times, want 1: the second change is our own", *told)
		}
	})
}

// TestLegacyUncertain: where others may have changed the tables during our own work, that is reported.
func TestLegacyUncertain(t *testing.T) {
	watched(t, func(m *Legacy, told *int) {
		if m.Own(func() bool { return false }); *told != 1 {
			t.Errorf("told %d times, want 1", *told)
		}
	})
}

// TestLegacyAtOnce: what our own work left is known at its end.
func TestLegacyAtOnce(t *testing.T) {
	watched(t, func(m *Legacy, told *int) {
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		m.next = time.Time{}
		if m.look(false); *told != 1 {
			t.Errorf("told %d times of a rule that was replaced, want 1", *told)
		}
	})
}

// TestLegacyRightAfter: what others do right after our own work is not taken for that,
// though reading all that is in the tables was to rest.
func TestLegacyRightAfter(t *testing.T) {
	watched(t, func(m *Legacy, told *int) {
		m.next = time.Now().Add(time.Hour)
		m.Own(func() bool { return true })
		m.next = time.Now().Add(time.Hour) // Own set it by what it took, which the tool may take longer than
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		if m.look(false); *told != 0 {
			t.Errorf("told %d times while it rests", *told)
		}
		m.next = time.Time{}
		if m.look(false); *told != 1 {
			t.Errorf("told %d times of a rule that was replaced, want 1", *told)
		}
	})
}

// TestLegacyGoesOn: what others do is told also where what they did before was left
// as it is, since it is no difference: nothing of ours followed it.
func TestLegacyGoesOn(t *testing.T) {
	watched(t, func(m *Legacy, told *int) {
		for i, chain := range []string{"OTHERS", "MORE-OF-OTHERS"} {
			legacy(t, "iptables", "", "-t", "nat", "-N", chain)
			m.look(false)
			if m.look(false); *told != i+1 {
				t.Errorf("told %d times after change %d", *told, i+1)
			}
		}
	})
}

// watched runs f with a monitor whose own work left rules, which counts what it tells.
func watched(t *testing.T, f func(m *Legacy, told *int)) {
	t.Helper()
	applytest.RequireRoot(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		told := 0
		m := OpenLegacy(func(bool) { told++ })
		m.Own(func() bool {
			legacy(t, "iptables-restore", theirs)
			return true
		})
		f(m, &told)
	})
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// legacy runs a tool of the legacy variant.
func legacy(t *testing.T, tool, stdin string, args ...string) {
	t.Helper()
	family, verb, _ := strings.Cut(tool, "-")
	cmd := exec.Command(strings.TrimSuffix(family+"-legacy-"+verb, "-"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
