package disk

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The next write removes files that a killed program left.
func TestWriteFileRemovesAbandoned(t *testing.T) {
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{
		".proxyc-1": 2 * abandoned, ".proxyc-2": abandoned / 2, "proxyc-3": 2 * abandoned, ".other": 2 * abandoned,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(OS{}, filepath.Join(dir, "boot"), Everybody, func(w io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{".other", ".proxyc-2", "boot", "proxyc-3"}, left); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
