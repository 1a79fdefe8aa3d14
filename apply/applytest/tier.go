package applytest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Long skips a test whose behaviour other tests have, without -tags all.
func Long(t testing.TB) {
	t.Helper()
	if !All {
		t.Skip("tier 3: add -tags all")
	}
}

// Of returns all with -tags all, unless the machine is slow, and otherwise some.
func Of(some, all int) int {
	if All && slowness() == 1 {
		return all
	}
	return some
}

// Next returns the number of the request, run or call after the n-th, in a test that makes each of
// them fail: each with -tags all, otherwise 1, 2, 3, 5, 7, 10, 14 and so on, since later ones
// resemble earlier ones.
func Next(n int) int {
	if All {
		return n + 1
	}
	return n + 1 + n/3
}

// Cases returns a filter of the cases in a directory: all with -tags all, otherwise those that
// tier1.txt names. Mode ipvs, which it lacks, uses the cases of mode iptables.
func Cases(t testing.TB, dir string) func(mode, family, name string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "tier1.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		if _, err := os.Stat(filepath.Join(dir, "cases", line[strings.LastIndex(line, " ")+1:]+".yaml")); err != nil {
			t.Errorf("tier1.txt: %q: remove the line, or name an existing case: %v", line, err)
		}
	}
	return func(mode, family, name string) bool {
		if mode == "ipvs" {
			mode = "iptables"
		}
		return All || slices.Contains(lines, mode+" "+family+" "+name)
	}
}
