// Package diag defines diagnostics: findings about the input, each with its
// place, the invalid value and the valid ones.
package diag

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Severity is the effect of a diagnostic for the caller. The zero value is
// invalid, so that an unset severity does not count as an error.
type Severity uint8

const (
	Error   Severity = iota + 1 // the named part is ignored; an invalid configuration stops compilation
	Warning                     // accepted, but probably unintended
	Info                        // informational
)

// String returns error, warning or info.
func (s Severity) String() string { return [...]string{"no severity", "error", "warning", "info"}[s] }

// Diagnostic is a finding. It prints as "FILE:LINE:COLUMN: OBJECT: PATH: MSG
// (HINT)", without empty parts.
type Diagnostic struct {
	Severity Severity
	Code     Code   // the check; not printed by String
	File     string // input file; "-" is standard input
	Line     int    // 1-based; 0 if unknown
	Column   int    // 1-based, in bytes; 0 if unknown
	Doc      int    // 1-based YAML document number, set if the line is unknown
	Object   string // "Service ns/web"
	Path     string // "spec.ports[0].port"
	Msg      string // lower case, no full stop: the fault, valid values, the actual value
	Hint     string // how to fix it
	More     int    // number of further findings that it summarizes, for other objects or for other ports at the same address
}

// String returns the one-line form without the severity. It escapes invisible
// characters, which names in the input may contain.
func (d Diagnostic) String() string {
	var b strings.Builder
	if d.File != "" {
		b.WriteString(d.File)
		if d.Line > 0 {
			fmt.Fprintf(&b, ":%d", d.Line)
			if d.Column > 0 {
				fmt.Fprintf(&b, ":%d", d.Column)
			}
		} else if d.Doc > 0 {
			fmt.Fprintf(&b, ": document %d", d.Doc)
		}
		b.WriteString(": ")
	}
	for _, part := range [...]string{d.Object, d.Path} {
		if part != "" && d.Object != "--"+part { // a flag with the name of the field already names it
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(d.Msg)
	if d.Hint != "" {
		b.WriteString(" (" + d.Hint + ")")
	}
	if d.More > 0 {
		fmt.Fprintf(&b, " (and %d more like it)", d.More)
	}
	return OneLine(b.String())
}

// OneLine escapes invisible characters in Go syntax: control characters, and
// characters that are hidden or change the text direction.
func OneLine(s string) string {
	if strings.IndexFunc(s, unseen) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unseen(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unseen(r rune) bool { return !strconv.IsPrint(r) }

// Compare orders by file, line, document, object, path, severity and text. Errors
// about a whole file come first, because other findings may follow from them.
func (d Diagnostic) Compare(o Diagnostic) int {
	return cmp.Or(d.rank()-o.rank(), cmp.Compare(d.File, o.File), cmp.Compare(d.Line, o.Line), cmp.Compare(d.Column, o.Column), cmp.Compare(d.Doc, o.Doc),
		cmp.Compare(d.Object, o.Object), cmp.Compare(d.Path, o.Path), cmp.Compare(d.Severity, o.Severity),
		cmp.Compare(d.Msg, o.Msg), cmp.Compare(d.Hint, o.Hint), cmp.Compare(d.More, o.More), cmp.Compare(d.Code, o.Code))
}

func (d Diagnostic) rank() int {
	if d.Severity == Error && d.File != "" && d.Object+d.Path == "" {
		return 0
	}
	return 1
}

// List is a list of diagnostics. The zero value is empty and ready to use.
type List []Diagnostic

// Add appends diagnostics.
func (l *List) Add(d ...Diagnostic) { *l = append(*l, d...) }

// Sorted returns a sorted copy without exact duplicates.
func (l List) Sorted() List {
	l = slices.Clone(l)
	l.Sort()
	return l
}

// Sort sorts the list and removes exact duplicates. No other slice may share its
// array, because Sort clears the elements after the new end.
func (l *List) Sort() {
	slices.SortFunc(*l, Diagnostic.Compare)
	*l = slices.Compact(*l)
}

// MaxSimilar is the default limit of similar findings that are reported one by
// one.
const MaxSimilar = 5

// Summarize summarizes similar findings: if there are more than most, the first one
// replaces all and has a count. Similar findings have the same severity, text
// (except the actual value) and field, in objects of one kind. Warnings about
// addresses that a Service claims from another owner are never summarized,
// because the summary would hide the owners and ports. The result is sorted.
func (l List) Summarize(most int) List {
	g := Gatherer{MaxSimilar: most}
	for _, d := range l {
		g.Add(d, nil)
	}
	return g.List()
}

// similarityKey returns the common part of similar findings.
func (d Diagnostic) similarityKey() Diagnostic {
	if d.Code.Hijacks() && d.Severity != Info {
		d.More = 0
		return d
	}
	kind, _, _ := strings.Cut(d.Object, " ")
	msg, _, _ := strings.Cut(d.Msg, ", got ")
	if d.Code == ObjectDuplicate {
		msg, _, _ = strings.Cut(msg, ", at ")
	}
	return Diagnostic{Severity: d.Severity, Code: d.Code, Object: kind, Path: withoutNumbers(d.Path), Msg: msg, Hint: d.Hint}
}

// withoutNumbers removes the indexes from a path.
func withoutNumbers(path string) string {
	if !strings.Contains(path, "[") {
		return path
	}
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, path)
}

// HasErrors reports whether any diagnostic is an Error.
func (l List) HasErrors() bool {
	return slices.ContainsFunc(l, func(d Diagnostic) bool { return d.Severity == Error })
}

// WriteChecks writes the codes, one a line.
func WriteChecks(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, g := range Groups() {
		for _, c := range g.Checks {
			fmt.Fprintf(t, "%s\t%s\t%s\n", c.Code, c.Severity, c.Title)
		}
	}
	return t.Flush()
}

// WriteCode writes a code's row of docs/reference/codes.md, and the effect.
func WriteCode(w io.Writer, code string) error {
	c, ok := ByCode()[Code(strings.ToUpper(code))]
	if !ok {
		return fmt.Errorf("--explain: must be a code of lint --list, such as PX418, got %q (docs/reference/differences.md describes codes of other forms)", code)
	}
	_, err := fmt.Fprintf(w, "%s (%s): %s\n\nEffect: %s\nFix: %s\n", c.Code, c.Severity, c.Title, c.Why, c.Do)
	return err
}
