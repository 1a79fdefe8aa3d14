package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkPlugin installs the plugin like krew, from the manifest alone, and runs it.
func checkPlugin(t *testing.T, manifest []byte, name string, archive, program []byte) {
	t.Helper()
	if sum := fmt.Sprintf("sha256: %x\n", sha256.Sum256(archive)); strings.Count(string(manifest), "sha256: ") != 1 || !strings.Contains(string(manifest), "/"+name+"\n    "+sum) {
		t.Errorf("the manifest does not have %s with %s:\n%s", name, sum, manifest)
	}
	if left := strings.Count(string(manifest), "PROXYC_"); left != strings.Count(string(manifest), "PROXYC_URL") {
		t.Errorf("more than the address is not filled in:\n%s", manifest)
	}
	dir := t.TempDir()
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, h.Name), files[h.Name], h.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
	_, bin, ok := strings.Cut(string(manifest), "bin: ")
	bin = strings.TrimSpace(bin)
	if !ok || !bytes.Equal(files[bin], program) || len(files["LICENSE"]) == 0 {
		t.Fatalf("the archive does not have the program as %q, and a licence", bin)
	}
	help := []string{filepath.Join(dir, bin), "trace", "--help"}
	if kubectl, err := exec.LookPath("kubectl"); err == nil {
		help = []string{kubectl, "proxyc", "trace", "--help"}
	}
	cmd := exec.CommandContext(t.Context(), help[0], help[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Usage: kubectl proxyc trace") {
		t.Errorf("%v: %v\n%s", help, err, out)
	}
}

// TestKrewManifest checks that the manifest lists each platform of a release, with the release's
// data.
func TestKrewManifest(t *testing.T) {
	r := release{source: "../..", targets: targets}
	sums := map[string]string{}
	for i, target := range targets {
		sums[target.archive()] = fmt.Sprintf("sum%d", i)
	}
	text, err := r.krew("v1.2.3", sums)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		want := fmt.Sprintf("  - selector: {matchLabels: {os: %s, arch: %s}}\n    uri: PROXYC_URL/%s\n    sha256: %s\n    bin: %s\n",
			target.os, target.arch, target.archive(), sums[target.archive()], target.bin())
		if strings.Count(string(text), want) != 1 {
			t.Errorf("%s: want\n%s\nin\n%s", target, want, text)
		}
	}
	if !strings.Contains(string(text), "\n  version: v1.2.3\n") || strings.Count(string(text), "  - selector:") != len(targets) {
		t.Errorf("not for version v1.2.3 and %d platforms:\n%s", len(targets), text)
	}
	if _, err := r.krew("v1.2.3", map[string]string{"kubectl-proxyc-plan9-mips.tar.gz": "x"}); err == nil {
		t.Error("a platform that the manifest does not have is not missed")
	}
}
