package config

import (
	"slices"
	"strings"
)

// suggest says what an unknown key was probably meant to be: the nearest name
// in its own section, else the sections that have a key of that name.
func suggest(section, name string, known []string) string {
	if hint := didYouMean(name, known); hint != "" {
		return hint
	}
	var elsewhere []string
	for _, l := range leaves(new(Config)) {
		if i := strings.LastIndexByte(l.path, '.'); parent(l.path) != section && strings.EqualFold(l.path[i+1:], name) {
			elsewhere = append(elsewhere, l.path)
		}
	}
	if len(elsewhere) > 0 {
		return "did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	return ""
}

// didYouMean returns a hint that names the nearest name, if one is near.
func didYouMean(name string, known []string) string {
	if best := nearest(name, known); best != "" {
		return "did you mean " + best + "?"
	}
	return ""
}

// nearest returns the name with the smallest edit distance, or "" if all differ
// in more than a third of their letters.
func nearest(name string, known []string) string {
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

// distance counts the letters to insert, delete or replace (Levenshtein).
func distance(a, b string) int {
	if len(a) > 100 { // no known key is near
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
