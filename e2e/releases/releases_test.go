package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler/config"
)

// TestTable checks that the table equals the source of all releases.
func TestTable(t *testing.T) {
	want, err := write()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../" + table)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("run: cd e2e && go run ./releases (-source +%s):\n%s", table, diff)
	}
}

// TestJudge compares proxyc's answers to 200 configurations with those of the real code of each
// release.
func TestJudge(t *testing.T) {
	texts := configurations(config.GateNames())
	input, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range releases {
		t.Run(version, func(t *testing.T) {
			if why := unbuildable[version]; why != "" {
				t.Skip(why)
			}
			if version != releases[len(releases)-2] {
				applytest.Long(t) // each builds another Kubernetes
			}
			program, err := buildJudge(t.Context(), version, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Stdin = bytes.NewReader(input)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var answers []string
			if err := json.Unmarshal(out, &answers); err != nil {
				t.Fatal(err)
			}
			var release config.Release
			if err := release.UnmarshalText([]byte(minor(version))); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for i, text := range texts {
				file := "c.yaml"
				f := config.Flags{Config: &file}
				_, found := f.ResolveFor(release, func(string) ([]byte, error) { return []byte(text), nil }, false)
				if found.HasErrors() != (answers[i] != "") {
					t.Errorf("%s\nkube-proxy %s: %q\nproxyc: %v", text, version, answers[i], found)
				}
				if answers[i] != "" {
					refused++
				}
			}
			t.Logf("%d configurations, %d refused", len(texts), refused)
		})
	}
}

// TestChanges checks that the page of changes names each file in which kube-proxy 1.38 differs from the
// compared release.
func TestChanges(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash("../../docs/reference/kube-proxy-1.38.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		listed = append(listed, strings.Fields(strings.Split(line, "\t")[1])...)
	}
	before, after := sourceOf(t, releases[len(releases)-2]), sourceOf(t, releases[len(releases)-1])
	differ := map[string]bool{}
	for name := range before {
		differ[name] = !bytes.Equal(before[name], after[name])
	}
	for name := range after {
		differ[name] = !bytes.Equal(before[name], after[name])
	}
	seen := 0
	for name, is := range differ {
		if !is {
			continue
		}
		seen++
		if !slices.ContainsFunc(listed, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			t.Errorf("%s: differs, and is not on the page", name)
		}
	}
	if seen < 40 {
		t.Errorf("only %d files differ", seen)
	}
}

// sourceOf returns the files of kube-proxy's packages in a version.
func sourceOf(t *testing.T, version string) map[string][]byte {
	t.Helper()
	archive, err := download("k8s.io/kubernetes", "v"+version)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	files := map[string][]byte{}
	err = each(archive, "k8s.io/kubernetes@v"+version, func(name string, text []byte) error {
		files[name] = text
		return nil
	}, "pkg/proxy", "cmd/kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	return files
}
