package applytest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A history is a sequence of changes of a random world.
const (
	histories    = 6
	historySteps = 8
)

// change adds, changes or removes some Services.
func (r worldRandom) change(w world) {
	for range 1 + r.IntN(3) {
		i := r.IntN(10)
		switch s := w[i]; {
		case s == nil || r.chance(4):
			w[i] = r.service()
		case r.chance(3):
			delete(w, i)
		default:
			s.Endpoints = r.pods(r.IntN(len(worldPods) + 1))
		}
	}
}

// sizes matches the sizes of sets and maps in a listing.
var sizes = regexp.MustCompile(`(?m)^\s*size \d+\n`)

// slots matches the elements of a map of backends in a listing: a frontend, a slot, and the
// backend.
var slots = regexp.MustCompile(`(\S+(?: \. \S+)+) \. \d+ : (\S+ \. \d+)`)

// pooled returns a listing with the backends of each frontend sorted. Their slots are irrelevant,
// and depend on the history.
func pooled(listing string) string {
	var out strings.Builder
	for of := range strings.SplitAfterSeq(listing, "map ") { // one map, and the text before the next
		pools := map[string][]string{}
		for _, m := range slots.FindAllStringSubmatch(of, -1) {
			pools[m[1]] = append(pools[m[1]], m[2])
		}
		for _, backends := range pools {
			slices.Sort(backends)
		}
		out.WriteString(slots.ReplaceAllStringFunc(of, func(element string) string {
			m := slots.FindStringSubmatch(element)
			first := pools[m[1]][0]
			pools[m[1]] = pools[m[1]][1:]
			return strings.TrimSuffix(element, m[2]) + first
		}))
	}
	return out.String()
}

// TestHistories checks that after each change the machine has the rules of a new one.
func TestHistories(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		for seed := range uint64(Fewer(histories)) {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, nil)
				config, _ := takeoverFiles()
				w, r := world{}, newWorldRandom(seed)
				for step := range max(4, Fewer(historySteps)) {
					r.change(w)
					t.Logf("step %d: %d Services", step, len(w)) // shows progress on a slow machine
					snapshot := m.file("snapshot.json", w.snapshot(t))
					m.must(0, m.apply(p, config, snapshot))
					fresh := newMachine(t, nil)
					fresh.must(0, fresh.apply(p, config, snapshot))
					// Affinity maps grow with the backends of a port, and never shrink.
					if diff := cmp.Diff(pooled(sizes.ReplaceAllString(fresh.dump(), "")), pooled(sizes.ReplaceAllString(m.dump(), ""))); diff != "" {
						t.Fatalf("step %d (-new machine +this):\n%s", step, diff)
					}
				}
			})
		}
	})
}

// faults are failures of the n-th run of iptables-restore; $count is its number.
var faults = []struct{ name, script string }{
	{"fails", `[ $count = N ] && { echo "out of luck" >&2; exit 1; }`},
	{"fails afterwards", `[ $count = N ] && { "$real" "$@"; echo "out of luck" >&2; exit 1; }`},
	{"is killed", `[ $count = N ] && kill -9 $$`},
	{"meets a lock", `[ $count = N ] && exit 4`},
}

// counted returns a shim that counts the runs of the tool in a file.
func counted(file, script string) string {
	return fmt.Sprintf("echo >> %[1]s\ncount=$(wc -l < %[1]s)\n%[2]s\nexec \"$real\" \"$@\"", file, script)
}

// TestFaults checks that a failure in any run of the tool leaves the machine unchanged, and that
// the next apply succeeds.
func TestFaults(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	for i, p := range planes {
		if p.mode != "iptables" {
			continue // nftables has one batch, which is atomic
		}
		for j, fault := range faults {
			t.Run(p.String()+" "+fault.name, func(t *testing.T) {
				if (i+j)%2 == 0 {
					Long(t)
				}
				t.Parallel()
				config, _ := takeoverFiles()
				for n := 1; ; n = Next(n) {
					if n > 50 {
						t.Fatal("it never ends")
					}
					m := newMachine(t, nil)
					r := newWorldRandom(uint64(n))
					w := world{}
					r.change(w)
					r.change(w)
					m.must(0, m.apply(p, config, m.file("old.json", w.snapshot(t))))
					before := m.dump()
					for range 4 {
						r.change(w)
					}
					snapshot := m.file("new.json", w.snapshot(t))
					whole := m.env
					log := filepath.Join(m.dir, "runs")
					for _, tool := range []string{"iptables", "ip6tables"} {
						m.shim(tool+"-"+p.variant+"-restore", counted(log, strings.ReplaceAll(fault.script, "N", fmt.Sprint(n))))
					}
					got := m.apply(p, config, snapshot)
					m.env = whole
					if runs := strings.Count(readFile(t, log), "\n"); runs < n {
						t.Logf("%d runs, each failed once", runs)
						return
					}
					what := fmt.Sprintf("run %d: %s", n, got)
					if got.code == 2 {
						m.same(before, what)
					} else if r := m.apply(p, config, snapshot, "--check"); got.code != 0 || r.code != 0 {
						t.Errorf("neither failed nor succeeded: %s%s", what, r)
					}
					m.must(0, m.apply(p, config, snapshot))
					m.must(0, m.apply(p, config, snapshot, "--check"))
				}
			})
		}
	}
}

// TestForeignFlush removes all rules while apply runs. Whatever the result, the next apply repairs
// it.
func TestForeignFlush(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	for _, p := range planes {
		if p.mode != "iptables" {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			config, cluster := takeoverFiles()
			fresh := newMachine(t, nil)
			fresh.must(0, fresh.apply(p, config, cluster))
			wanted := fresh.dump()
			for _, when := range []string{"before", "after"} {
				m := newMachine(t, nil)
				m.must(0, m.apply(p, config, m.file("old.json", world{1: newWorldRandom(1).service()}.snapshot(t))))
				whole := m.env
				flush := fmt.Sprintf("flush() { for t in nat filter; do iptables-%[1]s -t $t -F; iptables-%[1]s -t $t -X; done; }\n", p.variant)
				if when == "before" {
					m.shim("iptables-"+p.variant+"-restore", flush+"flush; exec \"$real\" \"$@\"")
				} else {
					m.shim("iptables-"+p.variant+"-restore", flush+"\"$real\" \"$@\"; code=$?; flush; exit $code")
				}
				r := m.apply(p, config, cluster)
				m.env = whole
				if checked := m.apply(p, config, cluster, "--check"); r.code == 0 && checked.code != 0 {
					t.Errorf("flushed %s the change, and it was not reported: %s%s", when, r, checked)
				}
				m.must(0, m.apply(p, config, cluster))
				m.same(wanted, "flushed "+when+" the change")
			}
		})
	}
}

// TestOrphan has a tool that outlives its apply and is still running. The next apply waits for it.
func TestOrphan(t *testing.T) {
	t.Parallel()
	RequireRoot(t)
	for _, p := range planes {
		if p.mode != "iptables" {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			config, _ := takeoverFiles()
			m := newMachine(t, nil)
			olds, news := world{}, world{}
			r := newWorldRandom(5)
			r.change(olds)
			r.change(news)
			old, new := m.file("old.json", olds.snapshot(t)), m.file("new.json", news.snapshot(t))
			m.must(0, m.apply(p, config, old))
			before := m.dump()

			whole := m.env
			began, gate := filepath.Join(m.dir, "began"), filepath.Join(m.dir, "gate")
			m.tool("", "mkfifo", began, gate)
			m.shim("iptables-"+p.variant+"-restore", fmt.Sprintf("text=$(cat)\necho > %s\nread go < %s\nprintf '%%s\\n' \"$text\" | \"$real\" \"$@\"", began, gate))
			cmd, wait := m.start(nil, applyArgs(p, config, new)...)
			m.env = whole
			readFile(t, began) // returns when the tool has started
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			wait()
			_, waitNext := m.start(nil, applyArgs(p, config, old)...)
			ended := make(chan ran)
			go func() { ended <- waitNext() }()
			select {
			case r := <-ended:
				t.Errorf("did not wait: %s", r)
				return
			case <-time.After(500 * time.Millisecond):
			}
			if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
				t.Fatal(err)
			}
			m.must(0, <-ended)
			m.same(before, "applied after the orphan")
		})
	}
}
