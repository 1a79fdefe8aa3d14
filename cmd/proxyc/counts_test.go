package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const countsFile = "../../testdata/bench/counts.json"

// counts are of one thing that is done, by what is counted.
type counts map[string]int

// allocated is the one count that is not the same each time: maps grow by the
// seed of their hash, and reading from the kernel and from tools goes in pieces
// of differing size. The others are held to the last unit.
const allocated = "allocations"

// recorded is the form of testdata/bench/counts.json.
type recorded struct {
	Go     string                       `json:"go"` // the release that allocations were counted with
	Counts map[string]map[string]counts `json:"counts"`
}

// Allocations may differ by a part of them, and by a few in any case. Other
// releases of Go allocate differently.
const (
	allocatedPart     = 0.02
	allocatedPartElse = 0.10
	allocatedFew      = 10
)

// goRelease returns a version of Go without its patches: "go1.26".
func goRelease(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// typical returns what several counts have in common, with the least allocations.
func typical(t *testing.T, all []counts) counts {
	t.Helper()
	slices.SortFunc(all, func(a, b counts) int { return a[allocated] - b[allocated] })
	least := all[0] // a loaded machine passes the output of tools in more pieces
	for _, c := range all {
		c = maps.Clone(c)
		c[allocated] = least[allocated]
		if diff := cmp.Diff(least, c); diff != "" {
			t.Errorf("not the same each time:\n%s", diff)
		}
	}
	return least
}

// check compares with what is recorded, or records with -update.
func (r recorded) check(t *testing.T) {
	t.Helper()
	var old recorded
	data, err := os.ReadFile(countsFile)
	if err == nil {
		err = json.Unmarshal(data, &old)
	}
	if err != nil && !(*update && errors.Is(err, fs.ErrNotExist)) {
		t.Fatal(err)
	}
	differ := r.differ(&old)
	switch {
	case len(differ) == 0:
	case *update:
		r.keep(&old)
		data, err := json.MarshalIndent(r, "", "\t")
		if err == nil {
			err = os.WriteFile(countsFile, append(data, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("recorded:\n%s", strings.Join(differ, "\n"))
	default:
		t.Errorf("not what testdata/bench/counts.json has:\n%s\nTo accept, whether better or worse, run make bench and commit the file.",
			strings.Join(differ, "\n"))
	}
}

// differ returns a line for each count that is not as recorded.
func (r recorded) differ(old *recorded) (lines []string) {
	for _, of := range union(r.Counts, old.Counts) {
		for _, done := range union(r.Counts[of], old.Counts[of]) {
			now, was := r.Counts[of][done], old.Counts[of][done]
			for _, what := range union(now, was) {
				if !r.same(old, what, was[what], now[what]) {
					lines = append(lines, fmt.Sprintf("%s: %s: %s: %d recorded, %d now%s", of, done, what, was[what], now[what], percent(was[what], now[what])))
				}
			}
		}
	}
	return lines
}

// same reports whether a count is as good as the recorded one.
func (r recorded) same(old *recorded, what string, was, now int) bool {
	if what != allocated {
		return was == now
	}
	part := allocatedPart
	if r.Go != old.Go {
		part = allocatedPartElse
	}
	return max(was-now, now-was) <= max(allocatedFew, int(part*float64(was)))
}

// keep takes over the recorded allocations that are as good as the new ones,
// so that the file shows what changed.
func (r recorded) keep(old *recorded) {
	for of, all := range r.Counts {
		for done, now := range all {
			if was, ok := old.Counts[of][done][allocated]; ok && r.Go == old.Go && r.same(old, allocated, was, now[allocated]) {
				now[allocated] = was
			}
		}
	}
}

// union returns the keys of both, sorted.
func union[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func percent(was, now int) string {
	if was == 0 {
		return ""
	}
	return fmt.Sprintf(" (%+.1f %%)", 100*float64(now-was)/float64(was))
}

// Both higher and lower counts differ from the recorded ones.
func TestCountsDiffer(t *testing.T) {
	with := func(release string, c counts) *recorded {
		return &recorded{release, map[string]map[string]counts{"kernel": {"load": c}}}
	}
	old := with("go1.26", counts{allocated: 1000, "bytes": 500, "rules": 0})
	for _, c := range []struct {
		name string
		now  *recorded
		want []string
	}{
		{"equal", with("go1.26", counts{allocated: 1000, "bytes": 500}), nil},
		{"some more allocations", with("go1.26", counts{allocated: 1020, "bytes": 500}), nil},
		{"many more", with("go1.26", counts{allocated: 1021, "bytes": 500}), []string{"kernel: load: allocations: 1000 recorded, 1021 now (+2.1 %)"}},
		{"fewer", with("go1.26", counts{allocated: 900, "bytes": 500}), []string{"kernel: load: allocations: 1000 recorded, 900 now (-10.0 %)"}},
		{"another Go", with("go1.27", counts{allocated: 900, "bytes": 500}), nil},
		{"far more with another Go", with("go1.27", counts{allocated: 1101, "bytes": 500}), []string{"kernel: load: allocations: 1000 recorded, 1101 now (+10.1 %)"}},
		{"one byte more", with("go1.26", counts{allocated: 1000, "bytes": 501}), []string{"kernel: load: bytes: 500 recorded, 501 now (+0.2 %)"}},
		{"one byte less", with("go1.26", counts{allocated: 1000, "bytes": 499}), []string{"kernel: load: bytes: 500 recorded, 499 now (-0.2 %)"}},
		{"a new count", with("go1.26", counts{allocated: 1000, "bytes": 500, "rules": 1}), []string{"kernel: load: rules: 0 recorded, 1 now"}},
		{"a count gone", with("go1.26", counts{allocated: 1000}), []string{"kernel: load: bytes: 500 recorded, 0 now (-100.0 %)"}},
		{"all gone", &recorded{Go: "go1.26"}, []string{"kernel: load: allocations: 1000 recorded, 0 now (-100.0 %)", "kernel: load: bytes: 500 recorded, 0 now (-100.0 %)"}},
	} {
		if diff := cmp.Diff(c.want, c.now.differ(old)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
