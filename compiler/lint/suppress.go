package lint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Suppressed is a finding that somebody accepted.
type Suppressed struct {
	diag.Diagnostic
	By       string // the file and line, or the annotation
	Why      string // the comment there
	InSource bool   // by an annotation of the object
}

// Suppressions are findings that are accepted, by files. A line of one is a code, and what
// follows it in the text of a finding, as far as it is wanted:
//
//	PX604                                        # anywhere
//	PX604 Service shop/edge                      # the reason why
//	PX604 Service shop/edge: spec.ports[0].nodePort
//
// A * stands for any signs. Without its object, a finding is named by its file. The zero
// value has none.
type Suppressions struct {
	exact    map[string]*line // by its text
	patterns []*line
	lines    []*line // all, in order
}

type line struct {
	file   string
	number int
	text   string // in the form of key
	why    string
	used   bool
}

// Read adds the lines of a file.
func (s *Suppressions) Read(file, text string) (errs diag.List) {
	number := 0
	for row := range strings.Lines(text) {
		number++
		row, why, _ := strings.Cut(strings.TrimSpace(row), "#")
		code, rest, _ := strings.Cut(strings.TrimSpace(row), " ")
		if code == "" {
			continue
		}
		if !strings.HasPrefix(code, "PX") {
			errs.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: file, Line: number, Column: 1,
				Msg: fmt.Sprintf("must begin with the code of a check, such as %s, got %q", diag.RangesNodePort, code)})
			continue
		}
		l := &line{file: file, number: number, text: strings.TrimSuffix(strings.TrimSpace(code+" "+strings.TrimSpace(rest)), ":"), why: strings.TrimSpace(why)}
		s.lines = append(s.lines, l)
		if strings.Contains(l.text, "*") {
			s.patterns = append(s.patterns, l)
			continue
		}
		if s.exact == nil {
			s.exact = map[string]*line{}
		}
		if s.exact[l.text] == nil {
			s.exact[l.text] = l
		}
	}
	return errs
}

// keys are the texts by which a line may name a finding, from the narrowest.
func keys(d diag.Diagnostic) [3]string {
	code, subject := string(d.Code), cmp.Or(d.Object, d.File)
	object := code + " " + subject
	narrow := object
	if d.Path != "" {
		narrow += ": " + d.Path
	}
	return [3]string{narrow, object, code}
}

// find returns the line that suppresses a finding, or nil.
func (s *Suppressions) find(d diag.Diagnostic) *line {
	names := keys(d)
	for _, key := range names {
		if l := s.exact[key]; l != nil {
			return l
		}
	}
	for _, l := range s.patterns {
		for _, key := range names {
			if matches(l.text, key) {
				return l
			}
		}
	}
	return nil
}

// matches reports whether a text is as a pattern says, in which * is any signs.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, parts[last])
}

// Apply takes out of a list what the lines and the annotations of objects suppress, and
// adds what of these suppresses nothing. What could not be read stays, and so do errors
// that an annotation would hide: who writes the object is not who reviews it.
func (s *Suppressions) Apply(list diag.List, written map[string]snapshot.Written) (left diag.List, out []Suppressed) {
	type annotation struct{ object, code string }
	ignored := map[annotation]bool{} // and whether it is used
	for object, w := range written {
		for _, code := range codes(w.Ignore) {
			ignored[annotation{object, code}] = false
		}
	}
	for _, d := range list {
		key := annotation{d.Object, string(d.Code)}
		if d.Code.Unread() {
			left = append(left, d)
		} else if _, ok := ignored[key]; ok && d.Severity != diag.Error {
			ignored[key] = true
			out = append(out, Suppressed{d, "annotation " + snapshot.AnnotationIgnore, "", true})
		} else if l := s.find(d); l != nil {
			l.used = true
			out = append(out, Suppressed{d, fmt.Sprintf("%s:%d", l.file, l.number), l.why, false})
		} else {
			left = append(left, d)
		}
	}
	for _, l := range s.lines {
		if !l.used {
			left = append(left, diag.Diagnostic{Severity: diag.Info, Code: diag.NotSuppressing, File: l.file, Line: l.number, Column: 1, Msg: "suppresses nothing: " + l.text})
		}
	}
	for key, used := range ignored {
		if !used {
			left = append(left, diag.Diagnostic{Severity: diag.Info, Code: diag.NotSuppressing, Object: key.object, Path: "metadata.annotations." + snapshot.AnnotationIgnore,
				Msg: "suppresses nothing: " + diag.Short(key.code)})
		}
	}
	left.Sort()
	return left, out
}

// codes are those of an annotation.
func codes(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return r == ',' || r == ' ' })
}

// baselineTitle is the first line of a baseline.
const baselineTitle = "# Findings of proxyc lint that were there already. Remove a line to hear of it again.\n"

// IsBaseline reports whether a text is one that [Baseline] returned, whatever became of
// its lines.
func IsBaseline(text string) bool { return strings.HasPrefix(text, baselineTitle) }

// Baseline returns a file of lines that suppress all of a list.
func Baseline(list diag.List) string {
	lines := map[string]bool{}
	for _, d := range list {
		lines[keys(d)[0]] = true
	}
	var b strings.Builder
	b.WriteString(baselineTitle)
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(line + "\n")
	}
	return b.String()
}
