package lint

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

// Suppressed is an accepted finding.
type Suppressed struct {
	diag.Diagnostic
	By       string // file:line, or the annotation
	Why      string // the comment of that line
	InSource bool   // by an annotation of the object
}

// Suppressions are accepted findings, read from files. Each line is a code,
// optionally followed by the beginning of the finding's text, its object and
// field:
//
//	PX604                                        # anywhere
//	PX604 Service shop/edge                      # the reason why
//	PX604 Service shop/edge: spec.ports[0].nodePort
//
// A * matches any characters. A finding without an object is identified by its
// file. Instead of a code, a line may have an effect of a change on a Service,
// opens or lost, or unknown and what is not known. The zero value suppresses nothing.
type Suppressions struct {
	Roots    Roots
	exact    map[string]*line // by text
	patterns []*line
	lines    []*line // all, in order
}

// Roots are the named directories. Files are identified by their path below one, so that another copy
// of a directory has the same findings.
type Roots []string

func (r Roots) below(file string) string {
	for _, root := range r {
		if below, err := filepath.Rel(root, file); err == nil && filepath.IsLocal(below) {
			return filepath.ToSlash(below)
		}
	}
	return file
}

type line struct {
	file   string
	number int
	text   string // in the form of keys
	why    string
	used   bool
}

// Read adds the lines of a file. It returns a finding for each malformed line.
func (s *Suppressions) Read(file, text string) (errs diag.List) {
	number := 0
	for row := range strings.Lines(text) {
		number++
		row, why, _ := strings.Cut(strings.TrimSpace(row), "#")
		code, rest, _ := strings.Cut(strings.TrimSpace(row), " ")
		if code == "" {
			continue
		}
		if !strings.HasPrefix(code, "PX") && !isEffect(code) {
			errs.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: file, Line: number, Column: 1,
				Msg: fmt.Sprintf("must begin with the code of a check, such as %s, got %q", diag.RangesNodePort, code)})
			if len(s.lines) == 0 {
				return errs // it is another file
			}
			continue
		}
		l := &line{file: file, number: number, text: strings.TrimSuffix(strings.TrimSpace(code+" "+strings.TrimSpace(rest)), ":"), why: strings.TrimSpace(why)}
		s.lines = append(s.lines, l)
		if strings.Contains(l.text, "*") {
			s.patterns = append(s.patterns, l)
			continue
		}
		if s.exact[l.text] == nil {
			ir.SetIn(&s.exact, l.text, l)
		}
	}
	return errs
}

func isEffect(code string) bool {
	return slices.Contains([]string{flow.Opens.String(), flow.Lost.String(), "unknown"}, code)
}

// Accepts reports whether a line accepts the effect of a change on an object, with the reason.
func (s *Suppressions) Accepts(effect, object string) (why string, ok bool) {
	l := s.find(diag.Diagnostic{Severity: diag.Error, Code: diag.Code(effect), Object: object})
	if l == nil {
		return "", false
	}
	return l.why, true
}

// keys returns the texts that identify a finding, the most specific first.
func (r Roots) keys(d diag.Diagnostic) [3]string {
	code, subject := string(d.Code), d.Object
	if subject == "" && d.File != "" {
		subject = r.below(d.File)
	}
	object := code + " " + subject
	narrow := object
	if d.Path != "" {
		narrow += ": " + d.Path
	}
	return [3]string{narrow, object, code}
}

// find returns the line that suppresses a finding, or nil.
func (s *Suppressions) find(d diag.Diagnostic) *line {
	names := s.Roots.keys(d)
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

// matches reports whether text matches a pattern, in which * matches any
// characters.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*") // several: other lines are found by their text
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

// Apply moves the findings that lines or annotations suppress from list to out.
// It adds a finding for each line and annotation that suppresses nothing.
// Findings about unreadable input are never suppressed. An annotation does not
// suppress an error, because the author of an object is not its reviewer.
func (s *Suppressions) Apply(list diag.List, written map[string]manifest.Written) (left diag.List, out []Suppressed) {
	type annotation struct{ object, code string }
	ignored := map[annotation]bool{} // value: whether it is used
	for object, w := range written {
		for _, code := range strings.FieldsFunc(w.Ignore, func(r rune) bool { return r == ',' || r == ' ' }) {
			ignored[annotation{object, code}] = false
		}
	}
	for _, d := range list {
		key := annotation{d.Object, string(d.Code)}
		if d.Code.Unreadable() {
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
		if code, _, _ := strings.Cut(l.text, " "); !l.used && !isEffect(code) {
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

// baselineTitle is the first line of a baseline.
const baselineTitle = "# Existing findings of proxyc lint. Remove a line to report its finding again.\n"

// IsBaseline reports whether a text was returned by [Baseline], even if lines
// were removed since.
func IsBaseline(text string) bool { return strings.HasPrefix(text, baselineTitle) }

// Baseline returns a file with lines that suppress all findings of a list.
func Baseline(list diag.List, roots Roots) string {
	lines := map[string]bool{}
	for _, d := range list {
		lines[roots.keys(d)[0]] = true
	}
	var b strings.Builder
	b.WriteString(baselineTitle)
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(line + "\n")
	}
	return b.String()
}
