package applytest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Fewer is how many of n repetitions a test makes: one in eight with -short, and so few
// on a slow machine that it takes no longer than its patience.
func Fewer(n int) int {
	if testing.Short() {
		n /= 8
	}
	return max(1, int(float64(n)/slowness()))
}

// Long skips a test with -short, which make test sets: one that only adds cases to what others test.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
}

// Next is the number of the request, run or call after the n-th, in a test that lets each of
// them fail. With -short the distance grows, as later ones resemble earlier ones.
func Next(n int) int {
	if testing.Short() {
		return n + 1 + n/3
	}
	return n + 1
}

// Choice returns which of the cases in a directory are played: with -short those that its
// choice.txt names, which together run nearly as much of proxyc as all do; otherwise all. A
// mode that choice.txt does not have, such as ipvs, plays the cases of mode iptables.
func Choice(t testing.TB, dir string) func(mode, family, name string) bool {
	t.Helper()
	if !testing.Short() {
		return func(string, string, string) bool { return true }
	}
	text, err := os.ReadFile(filepath.Join(dir, "choice.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	return func(mode, family, name string) bool {
		if !strings.Contains(string(text), mode+" ") {
			mode = "iptables"
		}
		return slices.Contains(lines, mode+" "+family+" "+name)
	}
}
