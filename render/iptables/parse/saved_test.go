package parse

import (
	"slices"
	"testing"
)

func TestSavedWords(t *testing.T) {
	for _, tt := range []struct {
		line, target string
		words        []string
	}{
		{"", "", nil},
		{" \r\n", "", nil},
		{":INPUT DROP [1:60]\n", "", []string{":INPUT", "DROP", "[1:60]"}},
		{"-A OUTPUT -j DOCKER\n", "DOCKER", []string{"-A", "OUTPUT", "-j", "DOCKER"}},
		{"[1:60] -A OUTPUT -g  DOCKER", "DOCKER", []string{"-A", "OUTPUT", "-g", "DOCKER"}},
		{`-A ONE --comment "not -j ACCEPT" -j TWO`, "TWO", []string{"-A", "ONE", "--comment", "not -j ACCEPT", "-j", "TWO"}},
		{`-A ONE --comment "" -j TWO`, "TWO", []string{"-A", "ONE", "--comment", "", "-j", "TWO"}},
		{`-A ONE --comment -j -j TWO`, "TWO", []string{"-A", "ONE", "--comment", "-j", "-j", "TWO"}},
		{`-A ONE --comment "a \"b\\" -j TWO`, "TWO", []string{"-A", "ONE", "--comment", `a "b\`, "-j", "TWO"}},
		{`-A TWO -j LOG --log-prefix "-j \"ACCEPT"`, "LOG", []string{"-A", "TWO", "-j", "LOG", "--log-prefix", `-j "ACCEPT`}},
		{`-A TWO -j LOG --log-prefix -j`, "LOG", []string{"-A", "TWO", "-j", "LOG", "--log-prefix", "-j"}},
		{`-A ONE -p tcp`, "", []string{"-A", "ONE", "-p", "tcp"}},
		{`-A ONE -j`, "", []string{"-A", "ONE", "-j"}},
		{`-A ONE --comment`, "", []string{"-A", "ONE", "--comment"}},
		{`-A ONE --comment "cut -j TWO`, "", []string{"-A", "ONE", "--comment", `"cut -j TWO`}},
	} {
		words := SavedWords(tt.line)
		if !slices.Equal(words, tt.words) {
			t.Errorf("%q has words %q, want %q", tt.line, words, tt.words)
		}
		if got := SavedTarget(words); got != tt.target {
			t.Errorf("%q has target %q, want %q", tt.line, got, tt.target)
		}
	}
}
