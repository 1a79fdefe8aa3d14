package apply

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// rules is a dataplane of the simplest kind: a text for each Service.
type rules map[ir.Name]string

type rulesPlan struct {
	ops  []Operation
	want rules
}

func (p rulesPlan) Empty() bool      { return len(p.ops) == 0 }
func (p rulesPlan) Gone() []ir.Match { return nil }
func (p rulesPlan) Operations(yield func(Operation) bool) {
	for _, op := range p.ops {
		if !yield(op) {
			return
		}
	}
}

// memory is a Target in memory. spoil changes what a Commit leaves behind.
type memory struct {
	has   rules
	fail  error
	spoil func(rules)
}

func (m *memory) Read(context.Context) (rules, error) { return maps.Clone(m.has), nil }

func (m *memory) Plan(have, want rules) Plan {
	p := rulesPlan{want: want}
	add := func(v Verb, n ir.Name, text string) {
		p.ops = append(p.ops, Operation{Verb: v, Object: text, Service: n, Origin: ir.Origin{Object: "Service " + n.String()}})
	}
	for _, n := range slices.SortedFunc(maps.Keys(want), ir.Name.Compare) {
		if text, ok := have[n]; !ok {
			add(Add, n, want[n])
		} else if text != want[n] {
			add(Change, n, want[n])
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(have), ir.Name.Compare) {
		if _, ok := want[n]; !ok {
			add(Remove, n, have[n])
		}
	}
	return p
}

func (m *memory) Commit(_ context.Context, p Plan) error {
	if m.fail != nil {
		return m.fail
	}
	m.has = maps.Clone(p.(rulesPlan).want)
	if m.spoil != nil {
		m.spoil(m.has)
	}
	return nil
}

var (
	a = ir.Name{Namespace: "ns", Name: "a"}
	b = ir.Name{Namespace: "ns", Name: "b"}
	c = ir.Name{Namespace: "ns", Name: "c"}
)

func yes(Plan) bool { return true }

func TestOnce(t *testing.T) {
	have, want := rules{a: "1", b: "1"}, rules{b: "2", c: "1"}
	t.Run("converges", func(t *testing.T) {
		m := &memory{has: have}
		p, err := Once(t.Context(), m, want, yes)
		if err != nil || p.Empty() || !maps.Equal(m.has, want) {
			t.Errorf("got %v, plan empty %v, state %v", err, p.Empty(), m.has)
		}
		if p, err = Once(t.Context(), m, want, yes); err != nil || !p.Empty() {
			t.Errorf("the second time: %v, plan %v", err, p)
		}
	})
	t.Run("without approval nothing is written", func(t *testing.T) {
		m := &memory{has: have}
		p, err := Once(t.Context(), m, want, func(Plan) bool { return false })
		if err != nil || p.Empty() || !maps.Equal(m.has, have) {
			t.Errorf("got %v, plan empty %v, state %v", err, p.Empty(), m.has)
		}
	})
	t.Run("a failed commit is reported", func(t *testing.T) {
		broken := errors.New("no")
		if _, err := Once(t.Context(), &memory{has: have, fail: broken}, want, yes); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a commit that does not hold is an error", func(t *testing.T) {
		m := &memory{has: have, spoil: func(r rules) { delete(r, c) }}
		if _, err := Once(t.Context(), m, want, yes); err == nil || !strings.Contains(err.Error(), "1 added") {
			t.Errorf("got %v", err)
		}
	})
}

func TestPrint(t *testing.T) {
	m := &memory{}
	p := m.Plan(rules{a: "old", b: "old"}, rules{b: "new", c: "new"})
	var got bytes.Buffer
	if err := Print(&got, p, true); err != nil {
		t.Fatal(err)
	}
	want := `Service ns/a: 0 added, 0 changed, 1 removed
Service ns/b: 0 added, 1 changed, 0 removed
Service ns/c: 1 added, 0 changed, 0 removed
total: 1 added, 1 changed, 1 removed
change new # Service ns/b
add new # Service ns/c
remove old # Service ns/a
`
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	got.Reset()
	if err := Print(&got, m.Plan(nil, nil), true); err != nil || got.String() != "nothing to change\n" {
		t.Errorf("empty plan: %v, %q", err, got.String())
	}
	got.Reset()
	if err := PrintJSON(&got, p); err != nil || !strings.Contains(got.String(), `"verb": "remove"`) {
		t.Errorf("JSON: %v\n%s", err, got.String())
	}
}

func TestQuarantineNamesServices(t *testing.T) {
	err := error(&Quarantine{[]Refusal{{a, errors.New("no space")}, {b, errors.New("busy")}}})
	want := "Service ns/a: the kernel refuses its rules: no space; Service ns/b: the kernel refuses its rules: busy"
	if err.Error() != want {
		t.Errorf("got %s", err)
	}
}
