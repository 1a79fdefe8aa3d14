package applytest

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// These functions return how much of its work a repetitive test should do. With -short, which make
// test sets, it is the minimum that covers each kind. The environment variable PROXYC_SHARE=k/n,
// which make test-rest sets, selects the k-th of n shares of everything. Without either it is
// everything.
func share() (k, n uint32) {
	if _, err := fmt.Sscanf(os.Getenv("PROXYC_SHARE"), "%d/%d", &k, &n); err != nil || n == 0 {
		return 0, 1
	}
	return k % n, n
}

// Left reports whether to run a case that make test skips: not with -short, and otherwise if its
// name is in the run's share.
func Left(name string) bool {
	k, n := share()
	return !testing.Short() && crc32.ChecksumIEEE([]byte(name))%n == k
}

// Fewer returns how many of n repetitions to run: one in eight with -short, otherwise the run's
// share. A slow machine runs fewer, so that the duration stays the same.
func Fewer(n int) int {
	_, parts := share()
	if testing.Short() {
		parts = 8
	}
	return max(1, int(float64(n)/float64(parts)/slowness()))
}

// Long skips a test that only adds cases to those of other tests, unless it is [Left].
func Long(t testing.TB) {
	t.Helper()
	if !Left(t.Name()) {
		t.Skip("make test-all runs it")
	}
}

// Next returns the number of the request, run or call after the n-th, in a test that makes each of
// them fail. With -short the distance grows, since later ones resemble earlier ones. Runs with
// different shares skip different ones.
func Next(n int) int {
	if testing.Short() {
		return n + 1 + n/3
	}
	k, parts := share()
	return n + 1 + int((k+uint32(n))%parts)
}

// Choice returns a filter of the cases in a directory. With -short it selects those in choice.txt,
// which together cover nearly as much of proxyc as all cases. Otherwise it selects the run's share.
// A mode that choice.txt lacks, such as ipvs, uses the cases of mode iptables.
func Choice(t testing.TB, dir string) func(mode, family, name string) bool {
	t.Helper()
	if !testing.Short() {
		return func(mode, family, name string) bool { return Left(mode + " " + family + " " + name) }
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
