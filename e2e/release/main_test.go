package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
)

// clone returns a clone of the repository's last commit.
func clone(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", "../..", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// built builds a release for this platform.
func built(t *testing.T, source string, env ...string) *release {
	t.Helper()
	r := &release{source: source, out: t.TempDir(), env: env}
	if err := r.choose("linux/" + runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	if err := r.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// files returns the files of a release by name.
func (r *release) files(t *testing.T) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(r.out)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(r.out, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// ownCache is whether the second build has a cache of its own: with -tags all.
var ownCache bool

// TestRelease builds the last commit twice, in two directories and without a shared build cache,
// and checks the results. Without -tags all both builds use the same cache.
func TestRelease(t *testing.T) {
	r := built(t, clone(t, "a"))
	a := r.files(t)
	var env []string
	if ownCache {
		env = []string{"GOCACHE=" + t.TempDir()}
	}
	b := built(t, clone(t, "elsewhere"), env...).files(t)
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			t.Errorf("%s differs", name)
		}
	}
	if len(a) != 5 || len(b) != 5 {
		t.Errorf("got %d and %d files, want 5", len(a), len(b))
	}
	program := "proxyc-linux-" + runtime.GOARCH
	checkStatic(t, a[program])
	checkVersion(t, a[program])
	checkContents(t, a[program+".cdx.json"])
	var sums strings.Builder
	archive := r.targets[0].archive()
	checkPlugin(t, a[krewFile], archive, a[archive], a[program])
	for _, name := range []string{program, program + ".cdx.json", archive} {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(a[name]), name)
	}
	if diff := cmp.Diff(sums.String(), string(a["SHA256SUMS"])); diff != "" {
		t.Errorf("checksums: (-want +got)\n%s", diff)
	}
	checkImages(t, r)
}

// checkStatic checks that a program needs no interpreter, so that it runs in an image without
// other files.
func checkStatic(t *testing.T, program []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %s: it is not static", p.Type)
		}
	}
}

func checkVersion(t *testing.T, program []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "proxyc")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "version", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Version, Commit, Date string
		Modified              bool
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatal(err)
	}
	head, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	if v.Commit != strings.TrimSpace(string(head)) || v.Date == "" || v.Modified || !strings.HasPrefix(v.Version, "v") {
		t.Errorf("the program reports %+v, of %s", v, head)
	}
}

// allowed are the licences that a part may have. None requires more from a distributor than to
// name its authors (Apache-2.0, section 4).
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

func checkContents(t *testing.T, document []byte) {
	t.Helper()
	bom := new(cdx.BOM)
	if err := cdx.NewBOMDecoder(bytes.NewReader(document), cdx.BOMFileFormatJSON).Decode(bom); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range *bom.Components {
		names[c.Name] = true
		for _, l := range *c.Licenses {
			if !slices.Contains(allowed, l.License.ID) {
				t.Errorf("%s has licence %s", c.Name, l.License.ID)
			}
		}
		if c.Name != "std" && (c.Hashes == nil || c.Version == "") {
			t.Errorf("%s has no checksum or version", c.Name)
		}
	}
	for line := range lines(t, "../../go.mod", "require (") {
		if name, _, _ := strings.Cut(line, " "); !names[name] && !testOnly[name] {
			t.Errorf("%s, of go.mod, is not in the document", name)
		}
	}
}

// testOnly are the modules that only tests need.
var testOnly = map[string]bool{"github.com/google/go-cmp": true, "github.com/rogpeppe/go-internal": true, "github.com/moby/ipvs": true, "github.com/coreos/go-iptables": true,
	"github.com/Microsoft/hnslib": true /* Windows */}

// lines yields the lines of the first block in a file that starts with a given line.
func lines(t *testing.T, path, opens string) func(func(string) bool) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(string) bool) {
		inside := false
		for s := bufio.NewScanner(bytes.NewReader(file)); s.Scan(); {
			switch line := strings.TrimSpace(s.Text()); {
			case line == opens:
				inside = true
			case line == ")" && inside:
				return
			case inside && !yield(line):
				return
			}
		}
	}
}

func TestChoose(t *testing.T) {
	var r release
	if err := r.choose("linux/mips"); err == nil || !strings.Contains(err.Error(), "linux/amd64") {
		t.Errorf("linux/mips: got %v", err)
	}
	if err := r.choose(""); err != nil || len(r.targets) != len(targets) {
		t.Errorf("nothing: got %v, %v", r.targets, err)
	}
}
