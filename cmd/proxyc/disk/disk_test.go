package disk

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A write changes no other file, even one that looks like a temporary file of a killed program.
func TestWriteKeepsOtherFiles(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, ".proxyc-baseline")
	if err := os.WriteFile(old, []byte("accepted findings"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := Write(OS{}, filepath.Join(dir, "report"), Everybody, func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(old); string(got) != "accepted findings" {
		t.Errorf("the user's file is %q: %v", got, err)
	}
}
