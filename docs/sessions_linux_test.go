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

var consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// playSessions runs the sessions of a page, one after the other in one
// directory on a node, and compares what they print. -update rewrites them.
func playSessions(t *testing.T, page string, node *applytest.Namespace) {
	t.Helper()
	dir := t.TempDir()
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	program := buildProgram(t, dir)
	was := readFile(t, page)
	is := consoleBlock.ReplaceAllStringFunc(was, func(block string) string {
		var out bytes.Buffer
		out.WriteString("```console\n")
		for line := range strings.Lines(block) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !ok {
				continue
			}
			cmd := node.Command(t.Context(), "sh", "-c", command)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "LC_ALL=C", "CLONE="+clone, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
			cmd.Stdout, cmd.Stderr = &out, &out
			out.WriteString(line)
			wait, err := node.Start(cmd)
			if err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			wait() // a code that is not 0 is in what the page tells
		}
		out.WriteString("```")
		return out.String()
	})
	if *update {
		if err := os.WriteFile(page, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("%s differs from what the program does; -update writes it anew (-want +got):\n%s", page, diff)
	}
}

// buildProgram builds proxyc into dir, or finds it where PROXYC_TOOLS says, as
// in a machine that can build nothing.
func buildProgram(t *testing.T, dir string) string {
	t.Helper()
	if tools := os.Getenv("PROXYC_TOOLS"); tools != "" {
		return filepath.Join(tools, "github.com/proxyc/proxyc/cmd/proxyc")
	}
	program := filepath.Join(dir, "bin", "proxyc")
	build := exec.Command("go", "run", "-exec", "install -D", "./cmd/proxyc", program)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
