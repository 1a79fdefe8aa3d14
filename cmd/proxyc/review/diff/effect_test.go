package diff

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

// effectOn is an effect on a Service.
type effectOn struct{ Effect, Service string }

// compare orders as the output does.
func (e effectOn) compare(o effectOn) int {
	at := func(e effectOn) int {
		return slices.IndexFunc(flow.Effects(), func(f flow.Effect) bool { return f.String() == e.Effect })
	}
	return cmp.Or(cmp.Compare(at(e), at(o)), strings.Compare(e.Service, o.Service))
}

// TestEffectsAgree: every form of the output has the same effects on the same Services, ordered by effect.
func TestEffectsAgree(t *testing.T) {
	start := applytest.Seed(t)
	known := map[string]int{}
	for n := range uint64(100) {
		r := reviewtest.New(start, n)
		w := r.World(ir.Modes()[n%uint64(len(ir.Modes()))])
		d, err := Compare(t.Context(), inputOf(w), inputOf(r.Other(w)), Nodes{}, All, flow.CompareOf)
		if err != nil {
			t.Fatal(err)
		}
		entries := d.entries(false)
		if strings.Contains(written(t, d.WriteMarkdown), " more entries: ") || slices.ContainsFunc(entries, func(e flow.Entry) bool { return len(e.Names) > shownNames }) {
			continue // text and Markdown omit names
		}
		var want []effectOn
		for _, s := range d.Services {
			for i := range s.Flows {
				want = append(want, effectOn{s.Flows[i].Change.Effect.String(), serviceName(s.Name)})
			}
			for i := range s.Notes {
				want = append(want, effectOn{s.Notes[i].Effect.String(), serviceName(s.Name)})
			}
		}
		slices.SortFunc(want, effectOn.compare)
		want = slices.Compact(want)
		for _, e := range want {
			known[e.Effect]++
		}
		for form, read := range effectReaders {
			got := read(t, d)
			if !slices.IsSortedFunc(got, func(a, b effectOn) int { a.Service, b.Service = "", ""; return a.compare(b) }) {
				t.Errorf("-seed=%d, world %d, %s: not ordered by effect: %v", start, n, form, got)
			}
			slices.SortFunc(got, effectOn.compare) // the same change of several Services is shown at the first of them
			if diff := gocmp.Diff(want, slices.Compact(got)); diff != "" {
				t.Fatalf("-seed=%d, world %d, %s (-want +got):\n%s", start, n, form, diff)
			}
		}
	}
	t.Log(known)
	if len(known) != len(flow.Effects()) {
		t.Error("not every effect occurs: the test shows too little")
	}
}

// effectReaders read the effects from the forms of the output.
var effectReaders = map[string]func(*testing.T, *Diff) []effectOn{
	"wide": func(t *testing.T, d *Diff) []effectOn {
		return inText(written(t, func(w io.Writer) error { return d.WriteText(w, true) }))
	},
	"text": func(t *testing.T, d *Diff) []effectOn {
		return inText(written(t, func(w io.Writer) error { return d.WriteText(w, false) }))
	},
	"stat": func(t *testing.T, d *Diff) (all []effectOn) {
		for _, m := range regexp.MustCompile(`(?m)^(\S+) +[-+~] (.*\S) +\d+ changes?$`).FindAllStringSubmatch(written(t, d.writeStat), -1) {
			all = append(all, effectOn{m[1], m[2]})
		}
		return all
	},
	"markdown": func(t *testing.T, d *Diff) (all []effectOn) {
		for _, m := range regexp.MustCompile(`(?m)^\| (\S+) \| [-+~] \| ([^|\s].*?) \| `).FindAllStringSubmatch(written(t, d.WriteMarkdown), -1) {
			all = append(all, named(m[1], strings.ReplaceAll(m[2], `\`, ""))...)
		}
		return all
	},
	"json": func(t *testing.T, d *Diff) (all []effectOn) {
		var doc struct {
			Services []struct{ Effect, Name string }
		}
		decode(t, []byte(written(t, d.WriteJSON)), &doc)
		for _, s := range doc.Services {
			all = append(all, effectOn{s.Effect, cmp.Or(s.Name, "no Service")})
		}
		return all
	},
	"page": func(t *testing.T, d *Diff) (all []effectOn) {
		data, err := d.PageJSON()
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Entries []struct {
				Names   []string
				Service struct{ Effect string }
			}
		}
		decode(t, data, &doc)
		for _, e := range doc.Entries {
			for _, name := range e.Names {
				all = append(all, effectOn{e.Service.Effect, cmp.Or(name, "no Service")})
			}
		}
		return all
	},
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func decode(t *testing.T, data []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(data, to); err != nil {
		t.Fatal(err)
	}
}

var (
	heading = regexp.MustCompile(`^([a-z-]+): `)
	entry   = regexp.MustCompile(`^[-+~] (?:\d+ Services with the same change: (.*)\. Shown for the first:|(.*))$`)
)

// inText returns the effects of a text.
func inText(text string) (all []effectOn) {
	effect := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			effect = m[1]
		} else if m := entry.FindStringSubmatch(line); m != nil {
			all = append(all, named(effect, cmp.Or(m[1], m[2]))...)
		}
	}
	return all
}

// named returns an effect on each Service of a list.
func named(effect, list string) (all []effectOn) {
	for _, name := range strings.Split(list, ", ") {
		all = append(all, effectOn{effect, name})
	}
	return all
}
