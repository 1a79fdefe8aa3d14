package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// TestBootFileFaults lets every step of keeping the boot file fail in turn: the
// old one stays whole until the new one is, no other file stays, and the next
// write makes up for it, although nothing has changed since.
func TestBootFileFaults(t *testing.T) {
	inForce := func() ir.Programs { return ir.NewPrograms(&ir.Program{Family: ir.IPv4}, &ir.Program{Family: ir.IPv6}) }
	write := func(files *faultyFiles, path string) string {
		b := &bootFile{env: &env{files: files}, path: path, log: slog.New(slog.DiscardHandler)}
		b.offer()
		for range 2 {
			if !b.write(inForce) {
				break
			}
			data, err := os.ReadFile(path)
			if got := string(data); err == nil && got != "old" {
				return got
			}
			files.step = 0 // only once
		}
		t.Fatalf("step %d: nothing was written", files.done)
		return ""
	}
	files := &faultyFiles{}
	want := write(files, filepath.Join(t.TempDir(), "boot"))
	for step := range files.done {
		dir := t.TempDir()
		path := filepath.Join(dir, "boot")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := write(&faultyFiles{step: step + 1}, path); got != want {
			t.Errorf("step %d fails: the file has %q, want %q", step+1, got, want)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("step %d fails: left are %v, %v", step+1, entries, err)
		}
	}
}
