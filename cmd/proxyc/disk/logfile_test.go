package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The log of a service has a bound, keeps what came last, and goes on where the
// old one cannot be moved away.
func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "proxyc.log")
	log, err := OpenLogFile(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { log.Close() }()
	line := strings.Repeat("x", 39) + "\n"
	write := func(n int) {
		t.Helper()
		for range n {
			if _, err := log.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
	}
	holds := func(path string, lines int) {
		t.Helper()
		got, err := os.ReadFile(path)
		if err != nil || string(got) != strings.Repeat(line, lines) {
			t.Errorf("%s: got %d bytes (%v), want %d lines", filepath.Base(path), len(got), err, lines)
		}
	}
	write(3)
	holds(path+".old", 2)
	holds(path, 1)

	// A start goes on in the same file.
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if log, err = OpenLogFile(path, 100); err != nil {
		t.Fatal(err)
	}
	write(2)
	holds(path+".old", 2)
	holds(path, 1)

	// A directory stands where the old one would go.
	if err := errors.Join(os.Remove(path+".old"), os.MkdirAll(filepath.Join(path+".old", "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	write(4)
	holds(path, 5)
}
