package apply_test

import (
	"testing"

	"github.com/proxyc/proxyc/apply"
)

// The nearest chain that drops is found, round chains that lead to each other.
func TestFindDrop(t *testing.T) {
	chains := map[string]*apply.ChainEffect{
		"input": {To: []string{"a", "gone", "b"}},
		"a":     {To: []string{"input", "far"}},
		"b":     {Drops: "reject"},
		"far":   {Drops: "drop"},
		"loop":  {To: []string{"loop"}},
	}
	for base, want := range map[string][2]string{"input": {"b", "reject"}, "a": {"far", "drop"}, "loop": {}, "gone": {}} {
		in, drops, err := apply.FindDrop(base, func(chain string) (*apply.ChainEffect, error) { return chains[chain], nil })
		if got := [2]string{in, drops}; err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", base, got, err, want)
		}
	}
}
