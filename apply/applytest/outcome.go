package applytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// An Outcome is the result of one flow, in the form of the records:
//
//	reached       endpoint → the sources it saw ("pod1a:8080": ["node1.cni0"]); only true for a flow that asks
//	              for any endpoint
//	failed        reasons of failed tries, sorted
//	one endpoint  whether all tries of an affinity flow reached the same
//	same as NAME  whether that was the endpoint of the flow NAME
//	alive         whether a kept connection still replies
//	status, body, weight header    of an HTTP response
//
// Its values have the types of decoded JSON.
type Outcome map[string]any

// normal returns the outcome with the types of decoded JSON.
func (o Outcome) normal() Outcome {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // only for values from other packages
	}
	n := Outcome{}
	if err := json.Unmarshal(text, &n); err != nil {
		panic(err)
	}
	return n
}

func (o Outcome) String() string {
	if o == nil {
		return "nothing"
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

// Reasons of a failed try, as in the records.
const (
	Refused     = "refused"     // RST, or ICMP port unreachable
	Unreachable = "unreachable" // another ICMP error, or no route
	TimedOut    = "timeout"
	WasReset    = "reset" // an established connection was reset
)

// Same reports whether got matches the recorded outcome of the flow.
func (f *Flow) Same(want, got Outcome) bool {
	switch {
	case f.Unstable || want["unstable"] == true: // kube-proxy itself is not deterministic
		return true
	case f.Again != "": // a broken connection is recorded by that, or by the failure of its query
		return (want["alive"] == true) == (got["alive"] == true)
	case f.Any:
		return (want["reached"] == nil) == (got["reached"] == nil)
	}
	return reflect.DeepEqual(want.normal(), got.normal())
}

// answered reports whether every try got a reply or a rejection.
func (o Outcome) answered() bool {
	return o != nil && o["alive"] != false && !strings.Contains(fmt.Sprint(o["failed"]), TimedOut)
}

// Records are the outcomes of one mode: family → case → flow key.
type Records struct {
	Driver  string                                   `json:"driver"`
	Kernel  string                                   `json:"kernel"`
	Mode    string                                   `json:"mode"`
	Proxy   string                                   `json:"proxy"`
	Tools   string                                   `json:"tools"`
	Results map[string]map[string]map[string]Outcome `json:"results"`
}

// LoadRecords reads one MODE.json.
func LoadRecords(dir fs.FS, file string) (*Records, error) {
	data, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	r := &Records{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// oneLine returns v as JSON on one line, with spaces.
func oneLine(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	if err := e.Encode(v); err != nil {
		panic(err) // only for values from other packages
	}
	return breaks.ReplaceAllStringFunc(strings.TrimSpace(b.String()), func(s string) string {
		if s[0] == ',' {
			return ", "
		}
		return strings.TrimSpace(s)
	})
}

// breaks matches line breaks of package json with the comma before; a line break inside a string is
// \n.
var breaks = regexp.MustCompile(`,?\n\t*`)

// Add adds the outcomes of a case that has none yet.
func (r *Records) Add(family, name string, results []Result) {
	if r.Results[family] == nil {
		r.Results[family] = map[string]map[string]Outcome{}
	}
	if r.Results[family][name] != nil {
		return
	}
	outcomes := map[string]Outcome{}
	for _, res := range results {
		outcomes[res.Key] = res.Outcome.normal()
	}
	r.Results[family][name] = outcomes
}

// Write writes the records to a file, one flow per line, ordered by key.
func (r *Records) Write(file string) error {
	var b strings.Builder
	b.WriteString("{\n")
	for _, head := range [][2]string{{"driver", r.Driver}, {"kernel", r.Kernel}, {"mode", r.Mode}, {"proxy", r.Proxy}, {"tools", r.Tools}} {
		if head[1] != "" {
			fmt.Fprintf(&b, " %q: %q,\n", head[0], head[1])
		}
	}
	b.WriteString(` "results": `)
	writeTree(&b, " ", r.Results, func(cases map[string]map[string]Outcome) {
		writeTree(&b, "  ", cases, func(flows map[string]Outcome) {
			writeTree(&b, "   ", flows, func(o Outcome) { b.WriteString(oneLine(o)) })
		})
	})
	b.WriteString("\n}\n")
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// writeTree writes a JSON object whose members are indented by one more level.
func writeTree[T any](b *strings.Builder, indent string, members map[string]T, value func(T)) {
	b.WriteString("{")
	for i, key := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(b, "\n%s %s: ", indent, oneLine(key))
		value(members[key])
	}
	b.WriteString("\n" + indent + "}")
}

// An Exception is an intentional difference from the records.
type Exception struct {
	Case     string   `json:"case"`
	Flow     string   `json:"flow"`     // the flow's key, in IPv4
	Modes    []string `json:"modes"`    // empty for all
	Families []string `json:"families"` // empty for both
	Want     Outcome  `json:"want"`
	Why      string   `json:"why"`
	Differs  string   `json:"differs"` // the capability that causes the difference, if any
}

// matches reports whether the exception applies to the flow.
func (e *Exception) matches(mode, family, name, key string) bool {
	flow := e.Flow
	if family == IPv6 {
		flow = Twin(flow)
	}
	return e.Case == name && flow == key &&
		(len(e.Modes) == 0 || slices.Contains(e.Modes, mode)) &&
		(len(e.Families) == 0 || slices.Contains(e.Families, family))
}

// A Difference is a flow with an unexpected outcome.
type Difference struct {
	Case, Flow string
	Want, Got  Outcome
	Why        string // why Want differs from the record; "" if it does not
}

func (d Difference) String() string {
	s := fmt.Sprintf("%s %s\n  want %s\n  got  %s", d.Case, d.Flow, d.Want, d.Got)
	if d.Why != "" {
		s += "\n  (intentionally not as recorded: " + d.Why + ")"
	}
	return s
}

// twin returns the outcome over IPv6. It contains names instead of most addresses, except those of
// Services, which a server may see as its client's.
func (o Outcome) twin() Outcome {
	if o == nil {
		return nil
	}
	return twinTree(map[string]any(o.normal())).(map[string]any)
}

// Recorded returns the outcome of a flow, or of its IPv4 twin if the case was not recorded over
// IPv6.
func (r *Records) Recorded(family, name, key string) Outcome {
	if family == IPv6 && r.Results[IPv6][name] == nil {
		for twin, o := range r.Results[IPv4][name] {
			if Twin(twin) == key {
				return o.twin()
			}
		}
	}
	return r.Results[family][name][key]
}

// Want returns the expected outcome of a flow: the recorded one, or that of an exception, and why.
func (r *Records) Want(mode, family, name, key string, exceptions []Exception) (want Outcome, why string) {
	want = r.Recorded(family, name, key)
	for _, e := range exceptions {
		if e.matches(mode, family, name, key) {
			want, why = e.Want, e.Why
			if family == IPv6 {
				want = want.twin()
			}
		}
	}
	return want, why
}

// Answered returns a Runner.Answered function from the records and the exceptions.
func (r *Records) Answered(mode, family string, exceptions []Exception) func(c *Case, key string) bool {
	return func(c *Case, key string) bool {
		want, _ := r.Want(mode, family, c.Name, key, exceptions)
		return want.answered()
	}
}

// Compare compares the results of a case with the expected ones.
func (r *Records) Compare(mode, family string, c *Case, results []Result, exceptions []Exception) []Difference {
	var diffs []Difference
	for _, res := range results {
		d := Difference{Case: c.Name, Flow: res.Key, Got: res.Outcome}
		d.Want, d.Why = r.Want(mode, family, c.Name, res.Key, exceptions)
		if d.Want == nil && !res.Flow.Unstable || !res.Flow.Same(d.Want, d.Got) {
			diffs = append(diffs, d)
		}
	}
	return diffs
}

// A Result is the outcome of one flow of a case.
type Result struct {
	Key     string
	Flow    Flow
	Outcome Outcome
}
