// Package diag holds diagnostics: what the compiler has to say about its
// input, each with the place, the offending value and what would be right.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// Diagnostic is one finding. It prints as "FILE:LINE:COLUMN: OBJECT: PATH: MSG (HINT)",
// without the parts that are empty.
type Diagnostic struct {
	Severity Severity
	Code     Code   // the check that found it; not printed by String
	File     string // input file; "-" is standard input
	Line     int    // 1-based; 0: not known
	Column   int    // 1-based, in bytes; 0: not known
	Doc      int    // 1-based YAML document number, where the line is not known
	Object   string // "Service ns/web"
	Path     string // "spec.ports[0].port"
	Msg      string // lower case, no full stop: what is wrong, what is allowed, what was found
	Hint     string // what to do about it
	More     int    // how many more findings like it it stands for: of other objects, or of other ports at the same address
}

// String returns the one-line form without the severity. Characters that cannot be
// seen, which a name in the input may hold, are escaped.
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
		if part != "" && d.Object != "--"+part { // a flag that has the field's name tells it
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
	return oneLine(b.String())
}

// oneLine escapes, as Go does, what cannot be seen: control characters, and what
// turns the direction of text or hides in it.
func oneLine(s string) string {
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

// Compare orders by file, line, document, object, path, severity and text; but
// first comes what is wrong with a file as such, from which other findings may follow.
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

// MostAlike is how many findings that say the same are told one by one, unless all are wanted.
const MostAlike = 5

// Fewer returns a list in which the first finding, with a count, stands for
// those that say the same, if these are more than most: the same severity, text
// (but for what was found) and field, of objects of one kind. None stands for warnings
// of what others own and a Service takes: it would hide whose and which ports.
func (l List) Fewer(most int) List {
	counts := map[Diagnostic]int{}
	for _, d := range l {
		counts[d.gist()] += 1 + d.More
	}
	var out List
	for _, d := range l {
		gist := d.gist()
		switch n := counts[gist]; {
		case n <= 0: // one stands for it
			continue
		case n > most:
			d.More = n - 1
			counts[gist] = 0
		}
		out = append(out, d)
	}
	return out
}

// gist returns what findings have in common that say the same.
func (d Diagnostic) gist() Diagnostic {
	if d.Code.Takes() && d.Severity != Info {
		d.More = 0
		return d
	}
	kind, _, _ := strings.Cut(d.Object, " ")
	msg, _, _ := strings.Cut(d.Msg, ", got ")
	return Diagnostic{Severity: d.Severity, Code: d.Code, Object: kind, Path: withoutNumbers(d.Path), Msg: msg, Hint: d.Hint}
}

// withoutNumbers leaves the indexes out of a path.
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
