package diag

import (
	"cmp"
	"slices"
	"strings"
)

// DidYouMean returns a hint with the known name nearest to name, or "" if none is
// near.
func DidYouMean(name string, known []string) string {
	if best := Nearest(name, known); best != "" {
		return "did you mean " + best + "?"
	}
	return ""
}

// Nearest returns the known name with the smallest edit distance, or "" if all
// differ in more than a third of their letters.
func Nearest(name string, known []string) string {
	best, bestDistance := "", max(len(name)/3, 2)+1
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

// distance returns the Levenshtein distance: the number of letters to insert,
// delete or replace.
func distance(a, b string) int {
	if len(a) > 100 { // no known name is near
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := slices.Clone(row)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+cost)
		}
	}
	return row[len(b)]
}
