package snapshot

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/compiler/diag"
)

// Decode adds the objects in a file to s: Services, EndpointSlices, Endpoints,
// Nodes and ServiceCIDRs, as YAML documents, JSON objects and Lists of them,
// in any mixture. Objects of other kinds are passed over. An object that the
// API server would refuse is left out with an Error that names its place, and
// the rest goes on. What the API server would fill in is filled in. An object
// that s has already is replaced, with a Warning.
//
// Call Finish after the last file. file is only for diagnostics.
func Decode(s *Snapshot, file string, data []byte) diag.List {
	return decode(s, file, data, false, func(string, place) {})
}

// decode is Decode. It tells note where each object stands. Nothing is wrong
// with a file from a directory in which nothing has an apiVersion and a kind.
func decode(s *Snapshot, file string, data []byte, fromDirectory bool, note func(object string, at place)) (list diag.List) {
	data = withoutLogs(plainLines(data))
	parts := split(data)
	results := decodeAll(parts)
	fromDirectory = fromDirectory && !slices.ContainsFunc(results, func(r result) bool { return r.typed })
	if n := len(results); n > 0 && parts[n-1].yaml != nil && data[len(data)-1] != '\n' {
		results[n-1].doubt()
	}
	lines := lineCounter{data: data}
	for i, r := range results {
		first := lines.at(parts[i].start)
		report := func(d diag.Diagnostic, line int) {
			d.File, d.Line, d.Doc = file, first+line, parts[i].doc
			list.Add(d)
		}
		for _, d := range r.diags {
			if !fromDirectory || !d.untyped {
				report(d.Diagnostic, d.line)
			}
		}
		for _, o := range r.objects {
			if o.put(s) {
				report(diag.Diagnostic{Severity: diag.Warning, Object: o.name, Msg: "given more than once: this one replaces the one before"}, o.line)
			}
			note(o.name, place{file: file, line: first, col: parts[i].start - lines.start + 1, part: &parts[i], index: o.index})
		}
	}
	list.Sort()
	return list
}

// Finish reports what can only be told once all files are decoded.
func (s *Snapshot) Finish() diag.List {
	const shown = 3
	var names []string
	for _, svc := range s.Services() {
		if owned := s.Slices(svc.Name); len(owned) > 0 && owned[0].FromEndpoints {
			names = append(names, svc.Name.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return diag.List{{
		Severity: diag.Info,
		Msg:      "no EndpointSlice serves Service " + text + ": v1 Endpoints are used instead",
		Hint:     "they do not tell terminating endpoints or zone hints; add EndpointSlices where the cluster has them",
	}}
}

// lineCounter returns lines of ascending offsets without counting any twice.
type lineCounter struct {
	data         []byte
	offset, seen int
	start        int // of the line of offset
}

// at returns the 1-based line of an offset.
func (c *lineCounter) at(offset int) int {
	offset = min(offset, len(c.data))
	passed := c.data[c.offset:offset]
	c.seen += bytes.Count(passed, []byte("\n"))
	if i := bytes.LastIndexByte(passed, '\n'); i >= 0 {
		c.start = c.offset + i + 1
	}
	c.offset = offset
	return c.seen + 1
}

// A result is what a part holds. Lines in it count from 0 at the part's start.
type result struct {
	objects []object
	diags   []placed
	typed   bool // something has an apiVersion and a kind
}

type placed struct {
	diag.Diagnostic
	line    int
	untyped bool // it says that an apiVersion or a kind is missing
}

// An object is ready to be put into a Snapshot; put reports whether it replaced one.
type object struct {
	name  string
	line  int
	index []int // in the Lists of a YAML part
	put   func(*Snapshot) (replaced bool)
}

// decodeAll decodes the parts side by side; results come in the order of parts.
func decodeAll(parts []part) []result {
	results := make([]result, len(parts))
	workers := min(runtime.GOMAXPROCS(0), len(parts))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(parts); i += workers {
				results[i] = parts[i].decode()
			}
		})
	}
	wg.Wait()
	return results
}

func (p *part) decode() result {
	var r result
	switch {
	case p.problem != "":
		r.fail(0, diag.Diagnostic{Severity: diag.Error, Msg: p.problem})
	case p.yaml != nil:
		p.decodeYAML(&r)
	default:
		counter := lineCounter{data: p.text}
		r.leaf(&p.leaf, func(offset int) int { return counter.at(offset-p.start) - 1 })
	}
	return r
}

// document returns the text of a YAML part as a document of its own, in which
// lines and columns are the same.
func (p *part) document() []byte {
	if !p.item {
		return p.yaml
	}
	return bytes.Replace(p.yaml, []byte("-"), []byte(" "), 1)
}

// decodeYAML goes through JSON, in which there may be a List yet.
func (p *part) decodeYAML(r *result) {
	text, lines, err := toJSON(p.document())
	if err != nil {
		line, msg := yamlError(err)
		r.fail(line, diag.Diagnostic{Severity: diag.Error, Path: p.path(), Msg: msg})
		return
	}
	leaves, err := scanLeaves(text)
	if err != nil {
		r.fail(0, diag.Diagnostic{Severity: diag.Error, Path: p.path(), Msg: err.Error()})
		return
	}
	line := func(offset int) int { return 0 }
	if lines {
		counter := lineCounter{data: text}
		line = func(offset int) int { return counter.at(offset) - 1 }
	}
	for i := range leaves {
		l := &leaves[i]
		if p.item && len(l.index) == 0 && l.kind == "" && l.apiVersion == "" {
			l.kind, l.apiVersion = p.kind, p.apiVersion
		}
		inner := l.index
		l.index = append(p.index, inner...)
		before := len(r.objects)
		r.leaf(l, line)
		for i := range r.objects[before:] {
			r.objects[before+i].index = inner
		}
	}
}

// yamlLine is how the YAML parser gives the place of an error.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// yamlError takes an error of the YAML parser apart: the line from 0, and the rest.
func yamlError(err error) (line int, msg string) {
	msg = err.Error()
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		return line - 1, "invalid YAML: " + msg[len(m[0]):]
	}
	return 0, "invalid YAML: " + strings.TrimPrefix(msg, "yaml: ")
}

func (r *result) fail(line int, d diag.Diagnostic) {
	r.diags = append(r.diags, placed{Diagnostic: d, line: line})
}

// doubt returns a hint with the errors of YAML at the end of a file that has no line
// break there, as one that was cut off.
func (r *result) doubt() {
	for i := range r.diags {
		if d := &r.diags[i]; d.Object == "" && !d.untyped {
			d.Hint = "the file ends in the middle of a line: is it cut off?"
		}
	}
}

// leaf decodes an object. line returns the line of an offset in what was scanned;
// it is asked for ascending offsets.
func (r *result) leaf(l *leaf, line func(offset int) int) {
	at := line(l.start)
	if msg := l.problem(); msg != "" {
		r.fail(at, diag.Diagnostic{Severity: diag.Error, Path: l.path(), Msg: msg})
		r.diags[len(r.diags)-1].untyped = true
		return
	}
	r.typed = true
	decode := decoderOf(l.apiVersion, l.kind)
	if decode == nil {
		if meant := nearKind(l.apiVersion, l.kind); meant != "" {
			r.fail(at, diag.Diagnostic{Severity: diag.Warning, Path: join(l.path(), "kind"),
				Msg: "is no kind that is read: the object is left out: got " + strconv.Quote(l.kind), Hint: "did you mean " + meant + "?"})
		}
		return
	}
	o, findings, err := decode(l.text)
	o.line = at
	if err != nil {
		offset, path, msg := explain(l.text, err)
		r.fail(line(l.start+offset), diag.Diagnostic{Severity: diag.Error, Object: o.name, Path: join(l.path(), path), Msg: msg})
		return
	}
	usable := true
	for _, f := range findings {
		usable = usable && f.severity != diag.Error
		r.fail(at, diag.Diagnostic{Severity: f.severity, Object: o.name, Path: join(l.path(), f.path), Msg: f.msg})
	}
	if usable {
		r.objects = append(r.objects, o)
	}
}

// problem returns why a leaf cannot be an object of any kind, or nothing.
func (l *leaf) problem() string {
	switch {
	case l.text[0] != '{':
		return "must be an object with apiVersion and kind, got " + shorten(l.text)
	case l.kind == "":
		return "kind: must be given, such as Service or List"
	case l.apiVersion == "":
		return "apiVersion: must be given, such as v1"
	}
	return ""
}

// shorten cuts a text to what fits into a message.
func shorten(text []byte) string {
	const limit = 40
	if len(text) > limit {
		return strconv.Quote(string(text[:limit])) + "..."
	}
	return strconv.Quote(string(text))
}

// join puts a field path after the path of its object.
func join(object, field string) string {
	if object == "" || field == "" {
		return object + field
	}
	return object + "." + field
}
