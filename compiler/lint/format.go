package lint

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Report is the result of a lint run.
type Report struct {
	Findings   diag.List
	Suppressed []Suppressed
	Version    string // of the program
	Roots      Roots
}

// Since returns the findings of r that before does not contain. Findings with the
// same code, severity, object and field are equal; line and message are ignored,
// and the file of an object.
func (r *Report) Since(before Report) Report {
	type key struct { // a finding may have another severity in another mode
		diag.Severity
		text string
	}
	keyOf := func(roots Roots, d diag.Diagnostic) key { return key{d.Severity, roots.keys(d)[0]} }
	known, accepted := map[key]bool{}, map[key]bool{}
	for _, d := range before.Findings {
		known[keyOf(before.Roots, d)] = true
	}
	for _, s := range before.Suppressed {
		accepted[keyOf(before.Roots, s.Diagnostic)] = true
	}
	fresh := Report{Version: r.Version, Roots: r.Roots}
	for _, d := range r.Findings {
		if k := keyOf(r.Roots, d); !known[k] {
			known[k] = true
			fresh.Findings.Add(d)
		}
	}
	for _, s := range r.Suppressed {
		if !accepted[keyOf(r.Roots, s.Diagnostic)] {
			fresh.Suppressed = append(fresh.Suppressed, s)
		}
	}
	return fresh
}

// Write writes the Report as json, sarif, github or markdown. Any other format is
// text.
func (r *Report) Write(w io.Writer, format string) error {
	b := bufio.NewWriter(w)
	var err error
	switch format {
	case "json":
		err = encode(b, r.json())
	case "sarif":
		err = encode(b, r.sarif())
	case "github":
		r.github(b)
	case "markdown":
		r.markdown(b)
	default:
		r.text(b)
	}
	if err != nil {
		return err
	}
	return b.Flush()
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Line returns the one-line form of a finding.
func Line(d diag.Diagnostic) string {
	text := fmt.Sprintf("%s: %s", d.Severity, d)
	if d.Code != "" {
		text += " [" + string(d.Code) + "]"
	}
	return text
}

func (r *Report) text(w io.Writer) {
	for _, d := range r.Findings {
		fmt.Fprintln(w, Line(d))
	}
	if n := len(r.Suppressed); n > 0 {
		fmt.Fprintf(w, "suppressed: %d\n", n)
	}
	for _, line := range r.annotated() {
		fmt.Fprintln(w, line)
	}
}

// annotated lists the objects whose annotations suppress findings about
// themselves, with the codes. It makes such suppressions visible to a reviewer.
func (r *Report) annotated() (lines []string) {
	codes := map[string][]string{}
	for _, s := range r.Suppressed {
		if s.InSource {
			codes[s.Object] = append(codes[s.Object], string(s.Code))
		}
	}
	for object, of := range codes {
		slices.Sort(of)
		lines = append(lines, fmt.Sprintf("suppressed by an annotation of %s: %s", object, strings.Join(slices.Compact(of), ", ")))
	}
	slices.Sort(lines)
	return lines
}

// counts returns the number of findings of each severity, including those that
// one finding summarizes.
func (r *Report) counts() map[string]int {
	counts := map[string]int{diag.Error.String(): 0, diag.Warning.String(): 0, diag.Info.String(): 0}
	for _, d := range r.Findings {
		counts[d.Severity.String()] += 1 + d.More
	}
	return counts
}

type finding struct {
	Code     diag.Code `json:"code"`
	Severity string    `json:"severity"`
	Title    string    `json:"title"`
	Object   string    `json:"object,omitempty"`
	Field    string    `json:"field,omitempty"`
	File     string    `json:"file,omitempty"`
	Line     int       `json:"line,omitempty"`
	Column   int       `json:"column,omitempty"`
	Document int       `json:"document,omitempty"`
	Message  string    `json:"message"`
	Hint     string    `json:"hint,omitempty"`
	Why      string    `json:"why,omitempty"`
	Do       string    `json:"do,omitempty"`
	More     int       `json:"more,omitempty"`
	By       string    `json:"suppressedBy,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

func findingOf(checks map[diag.Code]diag.Check, d diag.Diagnostic) finding {
	c := checks[d.Code]
	f := finding{Code: d.Code, Severity: d.Severity.String(), Title: c.Title, Object: d.Object, Field: d.Path,
		File: d.File, Line: d.Line, Column: d.Column, Message: d.Msg, Hint: d.Hint, Why: c.Why, Do: c.Do, More: d.More}
	if d.Line == 0 {
		f.Document = d.Doc
	}
	return f
}

func (r *Report) json() any {
	checks := diag.ByCode()
	out := struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Findings   []finding      `json:"findings"`
		Suppressed []finding      `json:"suppressed"`
		Counts     map[string]int `json:"counts"`
	}{ir.APIVersion, "Findings", []finding{}, []finding{}, r.counts()}
	for _, d := range r.Findings {
		out.Findings = append(out.Findings, findingOf(checks, d))
	}
	for _, s := range r.Suppressed {
		f := findingOf(checks, s.Diagnostic)
		f.By, f.Reason = s.By, s.Why
		out.Suppressed = append(out.Suppressed, f)
	}
	return out
}

// github writes GitHub workflow commands, which annotate a pull request with
// findings.
func (r *Report) github(w io.Writer) {
	commands := map[diag.Severity]string{diag.Error: "error", diag.Warning: "warning", diag.Info: "notice"}
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, d := range r.Findings {
		var properties []string
		if d.File != "" && d.File != "-" {
			properties = append(properties, "file="+property.Replace(filepath.ToSlash(d.File)))
			if d.Line > 0 {
				properties = append(properties, fmt.Sprintf("line=%d", d.Line))
			}
			if d.Column > 0 {
				properties = append(properties, fmt.Sprintf("col=%d", d.Column))
			}
		}
		properties = append(properties, "title="+property.Replace(string(d.Code)))
		d.File = ""
		fmt.Fprintf(w, "::%s %s::%s\n", commands[d.Severity], strings.Join(properties, ","), data.Replace(d.String()))
	}
	for _, line := range r.annotated() {
		fmt.Fprintf(w, "::notice title=%s::%s\n", snapshot.AnnotationIgnore, data.Replace(line))
	}
}

// cells escapes Markdown. GitHub links URLs and notifies mentioned users even
// after a backslash; a zero-width space prevents both.
var cells = strings.NewReplacer("|", `\|`, "\r", " ", "\n", " ", "`", "'", "&", "&amp;", "<", "&lt;",
	"*", `\*`, "_", `\_`, "~", `\~`, "](", `]\(`, "@", "@&#8203;", "#", "#&#8203;", "://", ":&#8203;//", "www.", "www&#8203;.")

// inCode escapes text between backquotes in a table.
var inCode = strings.NewReplacer("|", `\|`, "\r", " ", "\n", " ", "`", "'")

// Cell escapes text for a Markdown table or line: no markup, link, image or
// mention remains. Findings contain text chosen by the authors of objects.
func Cell(text string) string { return cells.Replace(text) }

// markdown writes a comment for a pull request.
func (r *Report) markdown(w io.Writer) {
	n := r.counts()
	fmt.Fprintf(w, "### proxyc lint: %d errors, %d warnings, %d infos", n["error"], n["warning"], n["info"])
	if s := len(r.Suppressed); s > 0 {
		fmt.Fprintf(w, " (%d suppressed)", s)
	}
	fmt.Fprintln(w)
	for _, line := range r.annotated() {
		fmt.Fprintf(w, "\n- %s\n", Cell(line))
	}
	if len(r.Findings) == 0 {
		return
	}
	fmt.Fprint(w, "\n| | code | where | finding |\n|---|---|---|---|\n")
	for _, d := range r.Findings {
		where := ""
		if d.File != "" {
			if where = d.File; d.Line > 0 {
				where = fmt.Sprintf("%s:%d", d.File, d.Line)
			}
			where = "`" + inCode.Replace(where) + "`"
		}
		d.File = ""
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", d.Severity, d.Code, where, Cell(d.String()))
	}
}

func sarifLevel(s diag.Severity) string {
	if s == diag.Info {
		return "note"
	}
	return s.String()
}

// object is a JSON object.
type object = map[string]any

// sarif returns a SARIF 2.1.0 log (OASIS).
func (r *Report) sarif() object {
	index := map[diag.Code]int{}
	rules, results := []object{}, []object{}
	for _, g := range diag.Groups() {
		for _, c := range g.Checks {
			index[c.Code] = len(rules)
			rules = append(rules, object{"id": c.Code, "shortDescription": object{"text": c.Title}, "fullDescription": object{"text": c.Why},
				"help": object{"text": c.Do}, "defaultConfiguration": object{"level": sarifLevel(c.Severity)}})
		}
	}
	for _, d := range r.Findings {
		results = append(results, r.sarifOf(d, index[d.Code]))
	}
	for _, s := range r.Suppressed {
		suppression := object{"kind": "external", "justification": s.Why}
		if s.InSource {
			suppression["kind"] = "inSource"
		}
		result := r.sarifOf(s.Diagnostic, index[s.Code])
		result["suppressions"] = []object{suppression}
		results = append(results, result)
	}
	driver := object{"name": "proxyc", "version": r.Version, "rules": rules}
	return object{"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{"tool": object{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}}}
}

func (r *Report) sarifOf(d diag.Diagnostic, rule int) object {
	location := object{}
	if d.File != "" && d.File != "-" {
		physical := object{"artifactLocation": object{"uri": (&url.URL{Path: filepath.ToSlash(d.File)}).EscapedPath()}}
		if d.Line > 0 {
			physical["region"] = object{"startLine": d.Line, "startColumn": max(d.Column, 1)}
		}
		location["physicalLocation"] = physical
	}
	if name := strings.Trim(d.Object+": "+d.Path, ": "); name != "" {
		location["logicalLocations"] = []object{{"fullyQualifiedName": name, "kind": "object"}}
	}
	fingerprint := r.Roots.keys(d)[0]
	d.File = ""
	result := object{"ruleId": d.Code, "ruleIndex": rule, "level": sarifLevel(d.Severity), "message": object{"text": d.String()},
		"partialFingerprints": object{"proxyc/v1": fingerprint}}
	if len(location) > 0 {
		result["locations"] = []object{location}
	}
	return result
}
