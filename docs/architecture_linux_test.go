package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
)

const architecturePage = "architecture.md"

var consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// TestArchitecture runs the sessions of the page, one after the other in one
// directory and one network namespace, and compares what they print. -update
// rewrites them.
func TestArchitecture(t *testing.T) {
	applytest.RequireRoot(t)
	ns, err := applytest.NewNamespace("node1")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dir := t.TempDir()
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "bin", "proxyc"), "./cmd/proxyc")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	was := readFile(t, architecturePage)
	is := consoleBlock.ReplaceAllStringFunc(was, func(block string) string {
		var out bytes.Buffer
		out.WriteString("```console\n")
		for line := range strings.Lines(block) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !ok {
				continue
			}
			cmd := ns.Command(t.Context(), "sh", "-c", command)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "LC_ALL=C", "CLONE="+clone, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
			cmd.Stdout, cmd.Stderr = &out, &out
			out.WriteString(line)
			wait, err := ns.Start(cmd)
			if err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			wait() // a code that is not 0 is in what the page tells
		}
		out.WriteString("```")
		return out.String()
	})
	if *update {
		if err := os.WriteFile(architecturePage, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("%s differs from what the program does; make golden writes it anew (-want +got):\n%s", architecturePage, diff)
	}
}
