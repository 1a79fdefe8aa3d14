package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

// rules are those of a memory: for each Service its first port.
type rules map[ir.Name]uint16

type rulesPlan struct {
	ops        []Operation
	have, want rules
}

func (p rulesPlan) Empty() bool                  { return len(p.ops) == 0 }
func (p rulesPlan) RemovedFrontends() []ir.Match { return nil }
func (p rulesPlan) Without(objects map[string]bool) (Plan, bool) {
	p.ops = slices.DeleteFunc(slices.Clone(p.ops), func(o Operation) bool { return objects[o.Object] })
	return p, true
}
func (p rulesPlan) Operations(yield func(Operation) bool) {
	for _, op := range p.ops {
		if !yield(op) {
			return
		}
	}
}

func (p rulesPlan) Differences(yield func(Operation) bool) {
	for op := range p.Operations {
		var have, want []string
		if op.Verb != Add {
			have = []string{strconv.Itoa(int(p.have[op.Service]))}
		}
		if op.Verb != Remove {
			want = []string{strconv.Itoa(int(p.want[op.Service]))}
		}
		op.LinesOf(have, want)
		if !yield(op) {
			return
		}
	}
}

// memory is a Dataplane in memory, which refuses port 666. spoil changes what a
// Commit leaves behind.
type memory struct {
	Dataplane // nil: what Once does not call
	has       rules
	found     rules
	fail      error
	spoil     func(rules)
	refused   []Refusal // result of each Commit
}

func (m *memory) Read(context.Context, ir.Programs) error {
	m.found = maps.Clone(m.has)
	return nil
}

// reported is a memory that records what it was given to expect.
type reported struct {
	*memory
	expected []rules
}

func (t *reported) Read(ctx context.Context, want ir.Programs) error {
	t.expected = append(t.expected, rulesOf(want))
	return t.memory.Read(ctx, want)
}

// Each Read gets what the next Plan wants, also after Services were refused.
func TestReadForWhatIsPlanned(t *testing.T) {
	d := &reported{memory: &memory{has: rules{}}}
	if _, _, err := Once(t.Context(), d, want(rules{a: 80, b: 666}), yes); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]rules{{a: 80, b: 666}, {a: 80}, {a: 80}}, d.expected); d != "" {
		t.Errorf("expected (-want +got):\n%s", d)
	}
}

func (m *memory) Plan(want ir.Programs) Plan { return compare(m.found, rulesOf(want)) }

func rulesOf(want ir.Programs) rules {
	w := rules{}
	for _, s := range want.IPv4.Services {
		w[s.Name] = s.Frontends[0].Match.Port
	}
	return w
}

func compare(have, want rules) rulesPlan {
	p := rulesPlan{have: have, want: want}
	add := func(v Verb, n ir.Name, port uint16) {
		p.ops = append(p.ops, Operation{Verb: v, Object: strconv.Itoa(int(port)), Service: n, Origin: ir.Origin{Object: "Service " + n.String()}})
	}
	for _, n := range slices.SortedFunc(maps.Keys(want), ir.Name.Compare) {
		if port, ok := have[n]; !ok {
			add(Add, n, want[n])
		} else if port != want[n] {
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

func (m *memory) Commit(_ context.Context, p Plan) (result Result, err error) {
	if m.fail != nil {
		return result, m.fail
	}
	for n, port := range p.(rulesPlan).want {
		if port == 666 {
			result.Refused = append(result.Refused, Refusal{Service: n, Reason: errors.New("no")})
		}
	}
	if len(result.Refused) > 0 {
		return result, nil
	}
	m.has = maps.Clone(p.(rulesPlan).want)
	if m.spoil != nil {
		m.spoil(m.has)
	}
	result.RefusedRemovals = m.refused
	return result, nil
}

var (
	a = ir.Name{Namespace: "ns", Name: "a"}
	b = ir.Name{Namespace: "ns", Name: "b"}
	c = ir.Name{Namespace: "ns", Name: "c"}
)

func yes(Plan) bool { return true }

// want is what leads to rules.
func want(r rules) ir.Programs {
	p := &ir.Program{Family: ir.IPv4}
	for _, n := range slices.SortedFunc(maps.Keys(r), ir.Name.Compare) {
		p.Services = append(p.Services, ir.Service{Name: n, Frontends: []ir.Frontend{{Match: ir.Match{Port: r[n]}}}})
	}
	return ir.NewPrograms(p)
}

func TestOnce(t *testing.T) {
	have, goal := rules{a: 1, b: 1}, rules{b: 2, c: 1}
	t.Run("converges", func(t *testing.T) {
		m := &memory{has: have}
		p, _, err := Once(t.Context(), m, want(goal), yes)
		if err != nil || p.Empty() || !maps.Equal(m.has, goal) {
			t.Errorf("got %v, plan empty %v, state %v", err, p.Empty(), m.has)
		}
		if p, _, err = Once(t.Context(), m, want(goal), yes); err != nil || !p.Empty() {
			t.Errorf("the second time: %v, plan %v", err, p)
		}
	})
	t.Run("without approval nothing is written", func(t *testing.T) {
		m := &memory{has: have}
		p, _, err := Once(t.Context(), m, want(goal), func(Plan) bool { return false })
		if err != nil || p.Empty() || !maps.Equal(m.has, have) {
			t.Errorf("got %v, plan empty %v, state %v", err, p.Empty(), m.has)
		}
	})
	t.Run("a failed commit is reported", func(t *testing.T) {
		broken := errors.New("no")
		if _, _, err := Once(t.Context(), &memory{has: have, fail: broken}, want(goal), yes); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a commit that does not hold is an error", func(t *testing.T) {
		m := &memory{has: have, spoil: func(r rules) { delete(r, c) }}
		if _, _, err := Once(t.Context(), m, want(goal), yes); err == nil || !strings.Contains(err.Error(), "but returns others: add 1: apply --check") {
			t.Errorf("a constant difference: got %v", err)
		}
		next := uint16(7)
		m.spoil = func(r rules) { next++; r[c] = next }
		if _, _, err := Once(t.Context(), m, want(rules{b: 3}), yes); err == nil || !strings.Contains(err.Error(), "changes the committed rules: remove 9: stop") {
			t.Errorf("another program: got %v", err)
		}
		once := false
		m = &memory{has: have, spoil: func(r rules) {
			if !once {
				once = true
				delete(r, c)
			}
		}}
		if _, _, err := Once(t.Context(), m, want(goal), yes); err != nil || !maps.Equal(m.has, goal) {
			t.Errorf("another program that wrote once: got %v, state %v", err, m.has)
		}
	})
	t.Run("beside a refused removal, others must still hold", func(t *testing.T) {
		refused := []Refusal{{Object: "1", Reason: errors.New("busy")}} // the port of a
		m := &memory{has: rules{a: 1}, refused: refused, spoil: func(r rules) { r[a] = 1 }}
		if _, result, err := Once(t.Context(), m, want(rules{b: 2}), yes); err != nil || len(result.RefusedRemovals) != 1 {
			t.Errorf("got %v, refused %v", err, result.RefusedRemovals)
		}
		m = &memory{has: rules{a: 1}, refused: refused, spoil: func(r rules) { r[a] = 1; delete(r, b) }}
		if _, _, err := Once(t.Context(), m, want(rules{b: 2}), yes); err == nil || !strings.Contains(err.Error(), "but returns others: add 2: apply --check") {
			t.Errorf("b is missing: got %v", err)
		}
	})
	t.Run("if all are refused, nothing changes", func(t *testing.T) {
		m := &memory{has: have}
		_, result, err := Once(t.Context(), m, want(rules{a: 666, b: 666}), yes)
		if err == nil || !strings.Contains(err.Error(), "2 of 2 Services") || len(result.Refused) > 0 || !maps.Equal(m.has, have) {
			t.Errorf("got %v, refused %v, state %v", err, result.Refused, m.has)
		}
	})
	t.Run("what is refused is not there, and named", func(t *testing.T) {
		m := &memory{has: have}
		_, result, err := Once(t.Context(), m, want(rules{b: 666, c: 1}), yes)
		if err != nil || len(result.Refused) != 1 || result.Refused[0].Service != b || !maps.Equal(m.has, rules{c: 1}) {
			t.Errorf("got %v, refused %v, state %v", err, result.Refused, m.has)
		}
	})
}

func TestSharedCause(t *testing.T) {
	programs := func(n, without int) ir.Programs {
		p := &ir.Program{Family: ir.IPv4}
		for i := range n {
			s := ir.Service{Name: ir.Name{Namespace: "ns", Name: fmt.Sprintf("s%04d", i)}}
			if i < n-without {
				s.Pools = make([]ir.Pool, 1)
			}
			p.Services = append(p.Services, s)
		}
		return ir.NewPrograms(p)
	}
	for _, tc := range []struct {
		refused, of, without int // Services without endpoints
		want                 bool
	}{
		{0, 0, 0, false}, {0, 5, 0, false},
		{1, 1, 0, true}, {1, 2, 0, false}, {1, 1000, 0, false},
		{1, 9, 8, true}, {1, 9, 9, false},
		{2, 2, 0, true}, {2, 19, 0, true}, {2, 20, 0, false},
		{9, 90, 0, false}, {9, 89, 0, true}, {9, 100, 91, true},
		{10, 1000, 0, true},
	} {
		p := programs(tc.of, tc.without)
		var refused []Refusal
		for _, s := range p.IPv4.Services[:tc.refused] {
			refused = append(refused, Refusal{Service: s.Name, Reason: errors.New("no")})
		}
		if err := SharedCause(p, refused); (err != nil) != tc.want {
			t.Errorf("%d refused of %d, %d without endpoints: %v, want an error: %t", tc.refused, tc.of, tc.without, err, tc.want)
		} else if last := tc.refused - 1; err != nil && !strings.Contains(err.Error(), "namespace ns: ns/s0000") || err != nil && !strings.Contains(err.Error(), refused[last].Service.String()) {
			t.Errorf("Services or namespace are not named: %v", err)
		}
	}
}

func TestPrint(t *testing.T) {
	p := compare(rules{a: 1, b: 1}, rules{b: 2, c: 2})
	var got bytes.Buffer
	if err := Print(&got, p, All); err != nil {
		t.Fatal(err)
	}
	want := `Service ns/a: 0 added, 0 changed, 1 removed
Service ns/b: 0 added, 1 changed, 0 removed
Service ns/c: 1 added, 0 changed, 0 removed
total: 1 added, 1 changed, 1 removed
change 2 # Service ns/b
  have: 1
  want: 2
add 2 # Service ns/c
  want: 2
remove 1 # Service ns/a
  have: 1
`
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	got.Reset()
	if err := Print(&got, compare(nil, nil), All); err != nil || got.String() != "nothing to change\n" {
		t.Errorf("empty plan: %v, %q", err, got.String())
	}
	got.Reset()
	if err := Print(&got, p, 1); err != nil || !strings.HasSuffix(got.String(), "1 removed\nchange 2 # Service ns/b\n  have: 1\n  want: 2\nand 2 more\n") {
		t.Errorf("one operation: %v\n%s", err, got.String())
	}
	got.Reset()
	if err := Print(&got, p, 0); err != nil || !strings.HasSuffix(got.String(), "total: 1 added, 1 changed, 1 removed\n") {
		t.Errorf("no operation: %v\n%s", err, got.String())
	}
	got.Reset()
	if err := PrintJSON(&got, p); err != nil || !strings.Contains(got.String(), `"verb": "remove"`) || !strings.Contains(got.String(), `"have": [`) {
		t.Errorf("JSON: %v\n%s", err, got.String())
	}
}

func TestLinesOf(t *testing.T) {
	many := slices.Repeat([]string{"x"}, LinesShown+3)
	for _, tc := range []struct {
		name                               string
		have, want, shownHave, shownWanted []string
	}{
		{"one more", []string{"a", "b"}, []string{"a"}, []string{"b"}, nil},
		{"one less", []string{"a"}, []string{"a", "b"}, nil, []string{"b"}},
		{"twice", []string{"a", "a"}, []string{"a"}, []string{"a"}, nil},
		{"another", []string{"a", "b"}, []string{"a", "c"}, []string{"b"}, []string{"c"}},
		{"another order", []string{"a", "b"}, []string{"b", "a"}, []string{"a", "b"}, []string{"b", "a"}},
		{"many", many, nil, append(many[:LinesShown:LinesShown], "and 3 more"), nil},
	} {
		var op Operation
		op.LinesOf(tc.have, tc.want)
		if !slices.Equal(op.Have, tc.shownHave) || !slices.Equal(op.Want, tc.shownWanted) {
			t.Errorf("%s: have %q, want %q", tc.name, op.Have, op.Want)
		}
	}
}

func TestResultNamesRefusedServices(t *testing.T) {
	err := (&Result{Refused: []Refusal{{Service: a, Reason: errors.New("no space")}, {Service: b, Reason: errors.New("busy")}}}).Error()
	want := "Service ns/a: the kernel refuses its rules: no space\nService ns/b: the kernel refuses its rules: busy"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if err := new(Result).Error(); err != nil {
		t.Errorf("nothing is refused: %v", err)
	}
}
