package userspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// faultyTools wrap the iptables-nft tools, and make one run of them fail, before or after it takes
// effect.
type faultyTools struct {
	*testing.T
	dir string
}

// faultyTool counts runs in a file, and fails at the run number in another file.
const faultyTool = `#!/bin/sh
runs=$(($(cat %[1]s/runs) + 1))
echo $runs >%[1]s/runs
if [ $runs = "$(cat %[1]s/fails)" ]; then
	[ %[3]t = false ] || %[2]s "$@" || exit
	echo "injected" >&2
	exit 1
fi
exec %[2]s "$@"
`

func newFaultyTools(t *testing.T, after bool) faultyTools {
	t.Helper()
	f := faultyTools{t, t.TempDir()}
	for _, tool := range []string{"iptables-nft", "iptables-nft-restore", "iptables-nft-save"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		f.write(tool, fmt.Sprintf(faultyTool, f.dir, path, after))
	}
	f.failAt(0)
	t.Setenv("PATH", f.dir+":"+os.Getenv("PATH"))
	return f
}

func (f faultyTools) write(name, text string) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o755); err != nil {
		f.Fatal(err)
	}
}

// failAt makes the n-th run from now on fail; 0 for none.
func (f faultyTools) failAt(n int) {
	f.write("runs", "0")
	f.write("fails", strconv.Itoa(n))
}

// failed reports whether the failing run has happened.
func (f faultyTools) failed(n int) bool {
	f.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, "runs"))
	if err != nil {
		f.Fatal(err)
	}
	runs, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		f.Fatal(err)
	}
	return runs >= n
}

// For any failed run of a tool, before or after it takes effect: the Plan is unchanged, an error
// requires another Read, Plan and Commit, and these apply all missing rules and listeners.
func TestFaultsAtEachRun(t *testing.T) {
	old := programs(ir.Userspace{}, service("gone", "10.96.0.9", 30079, "10.244.1.9:8080"),
		service("web", "10.96.0.10", 30080, "10.244.1.10:8080"))
	want := programs(ir.Userspace{}, service("web", "10.96.0.10", 30081, "10.244.1.10:8080"),
		service("new", "10.96.0.11", 30079, "10.244.1.11:8080"))
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after %t", after), func(t *testing.T) {
			tools := newFaultyTools(t, after)
			n := 1
			for failed := true; failed; n++ {
				inNamespace(t, func(w *world) {
					w.apply(old)
					if err := w.d.Read(w.Context(), ir.Programs{}); err != nil {
						w.Fatal(err)
					}
					plan := w.d.Plan(want)
					planned := slices.Collect(plan.Differences)
					tools.failAt(n)
					_, err := w.d.Commit(w.Context(), plan)
					failed = tools.failed(n)
					tools.failAt(0)
					if err == nil && failed && !after {
						w.Errorf("run %d failed, and nothing is said", n)
					}
					if err != nil && !failed {
						w.Fatal(err)
					}
					if diff := cmp.Diff(planned, slices.Collect(plan.Differences)); diff != "" {
						w.Errorf("run %d: Commit changed the Plan (-before +after):\n%s", n, diff)
					}
					if err != nil {
						w.apply(want)
					}
					if done, _ := w.apply(want); len(done) > 0 {
						w.Errorf("run %d: still to do: %q", n, done)
					}
					rules := []string{w.leads("new", 30079), w.leads("new", 80), w.leads("web", 30081), w.leads("web", 80)}
					if diff := cmp.Diff(rules, w.nat()); diff != "" {
						w.Errorf("run %d: rules (-want +got):\n%s", n, diff)
					}
					for _, name := range []string{"new", "web"} {
						if !connects(fmt.Sprintf("127.0.0.1:%d", w.at(name))) {
							w.Errorf("run %d: nobody listens for %s", n, name)
						}
					}
				})
			}
			if n < 3 {
				t.Errorf("%d runs failed, want several", n-1)
			}
		})
	}
}
