package diff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/ir/flow"
)

// ShownUnknown is the maximum number of names in a verdict.
const ShownUnknown = 5

// Failures returns why a change must not be merged: the numbers of dangerous changes that no line accepts, by effect, and
// what is not known. It also returns what the lines accept.
func (d *Diff) Failures(lines *lint.Suppressions) (failures, accepted []string) {
	accepts := func(effect, object, what string) bool {
		why, ok := lines.Accepts(effect, object)
		if ok {
			accepted = append(accepted, strings.TrimSpace(effect+" "+what+" "+why))
		}
		return ok
	}
	dangers := map[flow.Effect]int{}
	for i := range d.Services {
		if s := &d.Services[i]; s.Dangerous() && !accepts(s.Effect.String(), "Service "+s.Name.String(), s.Name.String()) {
			dangers[s.Effect] += len(s.Flows) + len(s.Notes)
		}
	}
	all := flow.Count(d.Services).Effects // as the table has them
	for _, effect := range flow.Effects() {
		if n := dangers[effect]; n == all[effect] && n > 0 {
			failures = append(failures, fmt.Sprintf("%s %d", effect, n))
		} else if n > 0 {
			failures = append(failures, fmt.Sprintf("%s %d of %d", effect, n, all[effect]))
		}
	}
	unknown := slices.DeleteFunc(slices.Concat(d.Unknown, d.NotRead), func(what string) bool { return accepts("unknown", NameOf(what), what) })
	if len(unknown) > 0 {
		failures = append(failures, "not known: "+review.FirstOf(unknown, ShownUnknown))
	}
	if n := d.Wrong; n > 0 {
		failures = append(failures, review.Counted(n, "object")+" with errors")
	}
	return failures, accepted
}

// FailOn returns whether a comparison fails, by the words of --fail-on: effects and danger. Without any, each change is a
// failure.
func FailOn(words []string) func(*Diff) bool {
	effects := EffectsIn(words)
	if words == nil {
		effects = flow.Effects()
	}
	return func(d *Diff) bool {
		failures, _ := d.Failures(&lint.Suppressions{})
		return d.Has(effects) || slices.Contains(words, "danger") && len(failures) > 0
	}
}

// EffectsIn returns the effects among words.
func EffectsIn(words []string) (all []flow.Effect) {
	for _, e := range flow.Effects() {
		if slices.Contains(words, e.String()) {
			all = append(all, e)
		}
	}
	return all
}
