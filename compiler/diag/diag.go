// Package diag holds diagnostics: what the compiler has to say about its
// input, each with the place, the offending value and what would be right.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Severity orders diagnostics by what they mean for the caller. The zero value
// is none of them: what nobody filled in must not pass for an error.
type Severity uint8

const (
	Error   Severity = iota + 1 // the piece named is left out; for configuration: nothing is compiled
	Warning                     // accepted, and probably not what was meant
	Info                        // worth knowing
)

// String returns error, warning or info.
func (s Severity) String() string { return [...]string{"no severity", "error", "warning", "info"}[s] }

// Diagnostic is one finding. It prints as "FILE:LINE: OBJECT: PATH: MSG (HINT)",
// without the parts that are empty.
type Diagnostic struct {
	Severity Severity
	File     string // input file; "-" is standard input
	Line     int    // 1-based; 0: not known
	Doc      int    // 1-based YAML document number, where the line is not known
	Object   string // "Service ns/web"
	Path     string // "spec.ports[0].port"
	Msg      string // lower case, no full stop: what is wrong, what is allowed, what was found
	Hint     string // what to do about it
}

// String gives the one-line form without the severity. Control characters,
// which a name in the input may hold, are escaped.
func (d Diagnostic) String() string {
	var b strings.Builder
	if d.File != "" {
		b.WriteString(d.File)
		if d.Line > 0 {
			fmt.Fprintf(&b, ":%d", d.Line)
		} else if d.Doc > 0 {
			fmt.Fprintf(&b, ": document %d", d.Doc)
		}
		b.WriteString(": ")
	}
	for _, part := range [...]string{d.Object, d.Path} {
		if part != "" {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(d.Msg)
	if d.Hint != "" {
		b.WriteString(" (" + d.Hint + ")")
	}
	return oneLine(b.String())
}

// oneLine escapes control characters as Go does.
func oneLine(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Compare orders by file, line, document, object, path, severity and text.
func (d Diagnostic) Compare(o Diagnostic) int {
	return cmp.Or(cmp.Compare(d.File, o.File), cmp.Compare(d.Line, o.Line), cmp.Compare(d.Doc, o.Doc),
		cmp.Compare(d.Object, o.Object), cmp.Compare(d.Path, o.Path), cmp.Compare(d.Severity, o.Severity),
		cmp.Compare(d.Msg, o.Msg), cmp.Compare(d.Hint, o.Hint))
}

// List is a list of diagnostics. The zero value is empty and ready to use.
type List []Diagnostic

// Add appends diagnostics.
func (l *List) Add(d ...Diagnostic) { *l = append(*l, d...) }

// Sorted returns the list in order and without exact duplicates, and leaves l
// as it is.
func (l List) Sorted() List {
	l = slices.Clone(l)
	l.Sort()
	return l
}

// Sort puts the list in order and removes exact duplicates. No other list may
// share its array: what is left behind the shorter list is cleared.
func (l *List) Sort() {
	slices.SortFunc(*l, Diagnostic.Compare)
	*l = slices.Compact(*l)
}

// HasErrors tells whether any diagnostic is an Error.
func (l List) HasErrors() bool {
	return slices.ContainsFunc(l, func(d Diagnostic) bool { return d.Severity == Error })
}
