package monitor

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

// theirs is the content of tables in which foreign changes are detected.
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

// Foreign changes of the tables are detected, even if sizes are unchanged. Changes of packet
// counters are not.
func TestLegacy(t *testing.T) {
	applytest.RequireRoot(t)
	for _, tc := range []struct {
		name  string
		tool  string // legacy variant
		stdin string
		args  string
		sizes bool // the sizes change, too
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
				reported := 0
				m := OpenLegacy(func(error) { reported++ })
				nothing := func() bool { return true }
				look := func(all bool, want int, when string) {
					t.Helper()
					if m.next = (time.Time{}); !all {
						m.next = time.Now().Add(time.Hour)
					}
					if m.poll(false); reported != want {
						t.Errorf("reported %d times %s, want %d", reported, when, want)
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
				look(true, count(tc.want), "though it was reported before")
				m.Own(nothing)
				look(true, count(tc.want), "though it was repaired")
			})
		})
	}
}

// A foreign change immediately before our own is reported, even if it keeps the sizes and the next
// complete read is not due. A change during our own counts as ours.
func TestLegacyBetween(t *testing.T) {
	watched(t, func(m *Legacy, reported *int) {
		m.next = time.Now().Add(time.Hour)
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		m.Own(func() bool {
			if *reported != 1 {
				t.Errorf("reported %d times, want 1", *reported)
			}
			legacy(t, "iptables", "", "-t", "filter", "-F")
			return true
		})
		if m.poll(true); *reported != 1 {
			t.Errorf("reported %d times, want 1: the second change is our own", *reported)
		}
	})
}

// Tables whose sockets could not be opened at first are watched as soon as they can be. Their first
// reading counts as a change, since nobody knows what happened before.
func TestLegacyWithoutSocket(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	applytest.InNamespace(t, func() {
		legacy(t, "iptables-restore", theirs)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		reported := 0
		m := OpenLegacy(func(error) { reported++ })
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if m.poll(true); reported != 1 {
			t.Errorf("reported %d times at the first reading, want 1", reported)
		}
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		if m.poll(true); reported != 2 {
			t.Errorf("reported %d times after a foreign change, want 2", reported)
		}
	})
}

// If other programs may have changed the tables during our own change, this is reported.
func TestLegacyUncertain(t *testing.T) {
	watched(t, func(m *Legacy, reported *int) {
		if m.Own(func() bool { return false }); *reported != 1 {
			t.Errorf("reported %d times, want 1", *reported)
		}
	})
}

// The state after our own change is known when it ends.
func TestLegacyAtOnce(t *testing.T) {
	watched(t, func(m *Legacy, reported *int) {
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		m.next = time.Time{}
		if m.poll(false); *reported != 1 {
			t.Errorf("reported %d times of a rule that was replaced, want 1", *reported)
		}
	})
}

// A foreign change immediately after our own is not attributed to us, even if the next complete
// read is not due.
func TestLegacyRightAfter(t *testing.T) {
	watched(t, func(m *Legacy, reported *int) {
		m.next = time.Now().Add(time.Hour)
		m.Own(func() bool { return true })
		m.next = time.Now().Add(time.Hour) // Own sets it by the duration of the read, which may be shorter than that of the tool
		legacy(t, "iptables", "", "-t", "nat", "-R", "KUBE-SERVICES", "1", "-d", "10.96.0.2/32", "-j", "KUBE-SVC-A")
		if m.poll(false); *reported != 0 {
			t.Errorf("reported %d times while it rests", *reported)
		}
		m.next = time.Time{}
		if m.poll(false); *reported != 1 {
			t.Errorf("reported %d times of a rule that was replaced, want 1", *reported)
		}
	})
}

// A foreign change is also reported if the previous one was not repaired, in which case we made no
// change in between.
func TestLegacyGoesOn(t *testing.T) {
	watched(t, func(m *Legacy, reported *int) {
		for i, chain := range []string{"OTHERS", "MORE-OF-OTHERS"} {
			legacy(t, "iptables", "", "-t", "nat", "-N", chain)
			m.poll(false)
			if m.poll(false); *reported != i+1 {
				t.Errorf("reported %d times after change %d", *reported, i+1)
			}
		}
	})
}

// watched runs f with a monitor after an own change, and counts its reports.
func watched(t *testing.T, f func(m *Legacy, reported *int)) {
	t.Helper()
	applytest.RequireRoot(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	applytest.InNamespace(t, func() {
		reported := 0
		m := OpenLegacy(func(error) { reported++ })
		m.Own(func() bool {
			legacy(t, "iptables-restore", theirs)
			return true
		})
		f(m, &reported)
	})
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// legacy runs a tool of iptables-legacy.
func legacy(t *testing.T, tool, stdin string, args ...string) {
	t.Helper()
	family, verb, _ := strings.Cut(tool, "-")
	cmd := exec.Command(strings.TrimSuffix(family+"-legacy-"+verb, "-"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
