package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// NotOneOf returns the error about a value that none of the known ones equals.
func NotOneOf(value string, known []string) error {
	return fmt.Errorf("must be one of %s, got %q%s", strings.Join(known, ", "), value, Meant(value, known))
}

// Meant is DidYouMean for the end of a message, in parentheses.
func Meant(name string, known []string) string {
	if hint := DidYouMean(name, known); hint != "" {
		return " (" + hint + ")"
	}
	return ""
}

// DidYouMean returns a hint with the known name nearest to name, or else the only
// one that begins with it. It returns "" if there is none.
func DidYouMean(name string, known []string) string {
	best := Nearest(name, known)
	if best == "" && name != "" {
		begin := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !strings.HasPrefix(k, name) })
		if len(begin) == 1 {
			best = begin[0]
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// Nearest returns the known name with the smallest edit distance, or "" if all
// differ in more than a third of their letters. One letter may always differ.
func Nearest(name string, known []string) string {
	best, bestDistance := "", max(len(name)/3, 1)+1
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if d := distance(name, k); d < bestDistance && d < len(k) {
			best, bestDistance = k, d
		}
	}
	return best
}

// Misspelling returns the known name nearest to name, or "" if all differ in more than two letters.
// Unlike the words of a language, names of objects often differ in part of their letters.
func Misspelling(name string, known []string) string {
	if near := Nearest(name, known); near != "" && distance(name, near) <= 2 {
		return near
	}
	return ""
}

// NearestFirst returns the known names sorted by edit distance to name.
func NearestFirst(name string, known []string) []string {
	known = slices.Clone(known)
	distances := make(map[string]int, len(known))
	for _, k := range known {
		distances[k] = distance(name, k)
	}
	slices.SortFunc(known, func(a, b string) int { return cmp.Or(distances[a]-distances[b], strings.Compare(a, b)) })
	return known
}

// distance returns the number of letters to insert, delete or replace, or to swap
// with the next one.
func distance(a, b string) int {
	if len(a) > 100 { // no known name is near
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	var prev []int
	for i := range len(a) {
		before := prev
		prev = slices.Clone(row)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
