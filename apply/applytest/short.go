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

// Tests that have much to repeat ask here how much of it to do. With -short, which make test
// sets, it is what each kind of test needs once. The environment variable PROXYC_SHARE=k/n,
// which make test-rest sets, chooses the k-th of n shares of everything; without it they do
// everything.
func share() (k, n uint32) {
	if _, err := fmt.Sscanf(os.Getenv("PROXYC_SHARE"), "%d/%d", &k, &n); err != nil || n == 0 {
		return 0, 1
	}
	return k % n, n
}

// Left reports whether a case that make test leaves out is played: not with -short, and
// otherwise where its name is in the run's share.
func Left(name string) bool {
	k, n := share()
	return !testing.Short() && crc32.ChecksumIEEE([]byte(name))%n == k
}

// Fewer is how many of n repetitions a test makes: one in eight with -short, its share of them
// otherwise, and so few on a slow machine that it takes no longer than its patience.
func Fewer(n int) int {
	_, parts := share()
	if testing.Short() {
		parts = 8
	}
	return max(1, int(float64(n)/float64(parts)/slowness()))
}

// Long skips a test that only adds cases to what others test, unless it is [Left].
func Long(t testing.TB) {
	t.Helper()
	if !Left(t.Name()) {
		t.Skip("make test-all runs it")
	}
}

// Next is the number of the request, run or call after the n-th, in a test that lets each of
// them fail. With -short the distance grows, as later ones resemble earlier ones. A run with a
// share skips others than another share does.
func Next(n int) int {
	if testing.Short() {
		return n + 1 + n/3
	}
	k, parts := share()
	return n + 1 + int((k+uint32(n))%parts)
}

// Choice returns which of the cases in a directory are played: with -short those that its
// choice.txt names, which together run nearly as much of proxyc as all do; otherwise the run's
// share of all. A mode that choice.txt does not have, such as ipvs, plays the cases of mode
// iptables.
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
