// Package manifest decodes files of Kubernetes objects into a Snapshot. It sets
// the API server's defaults, and reports the objects that the API server would
// reject with their positions.
package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"hash/maphash"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Decode adds the objects in a file to s: Services, EndpointSlices, Endpoints,
// Nodes and ServiceCIDRs, as YAML documents, JSON objects and Lists of them, in
// any combination. It ignores objects of other kinds. It sets the API server's
// defaults. An object that the API server would reject is invalid, with an Error
// that has its position; decoding continues. An object that s already contains is
// replaced, with a Warning.
//
// Call Finish after the last file. file is only for diagnostics.
func Decode(s *snapshot.Snapshot, file string, data []byte) diag.List {
	return (&Reader{NoPositions: true}).Decode(s, file, data, false)
}

// escaped matches escapes of letters and line breaks, with which keys can be written.
var escaped = regexp.MustCompile(`\\(x[4-7]|u00[4-7]|U000000[4-7]|\r?\n\s*\w+["']\s*:)`)

// batch is the number of parts that are decoded at a time. It limits the memory
// for results that are not in the Snapshot yet.
const batch = 1024

// Decode is like the function Decode. fromDirectory means that the file was found
// in a directory: a file without any apiVersion and kind is then ignored, because
// it is not a file of Kubernetes objects.
func (r *Reader) Decode(s *snapshot.Snapshot, file string, data []byte, fromDirectory bool) diag.List {
	if fromDirectory && !r.Whole && !(bytes.Contains(data, []byte("apiVersion")) && bytes.Contains(data, []byte("kind"))) && !escaped.Match(data) {
		return nil
	}
	data = withoutLogs(plainLines(data))
	parts := split(data)
	lines := lineCounter{data: data}
	found := diag.Gatherer{MaxSimilar: r.MaxSimilar}
	foreign := diag.Gatherer{MaxSimilar: r.MaxSimilar} // reported only if the file contains an object that is read
	configs := diag.Gatherer{MaxSimilar: r.MaxSimilar} // reported only if the file contains no object that is read
	typed, read := !fromDirectory, fromDirectory
	for first := 0; first < len(parts); first += batch {
		some := parts[first:min(first+batch, len(parts))]
		results := r.decodeAll(some)
		for i, result := range results {
			typed, read = typed || result.typed, read || len(result.objects) > 0
			r.slices = r.slices || result.slices
			for _, w := range result.customs {
				s.SetCustom(w)
			}
			for _, u := range result.uncompared {
				s.AddUncompared(u)
			}
			for object, sum := range result.sums {
				ir.SetIn(&r.Sums, object, r.Sums[object]+sum)
			}
			for _, kind := range result.ignored {
				ir.SetIn(&r.ignored, kind, r.ignored[kind]+1)
			}
			at := place{file: file, line: lines.at(some[i].start), part: &some[i]}
			at.col = some[i].start - lines.start + 1
			for _, d := range result.diags {
				to := &found
				switch {
				case d.untyped:
					to = &foreign
				case d.config:
					to = &configs
				}
				why := r.report(to, d, at)
				if d.invalid != nil {
					d.invalid.setInvalid(s, why)
				}
			}
			for _, o := range result.objects {
				at.index = o.index
				twice := o.has(s)
				was := r.at[o.name]
				if keep := r.Keep[o.name]; twice && keep != nil && reflect.DeepEqual(was.value, keep) {
					ir.SetIn(&r.versions, o.name, append(r.versions[o.name], Version{o.value, o.written}))
					o.put(s)
					was.put(s)
					continue
				}
				if twice && was.value != nil {
					ir.SetIn(&r.versions, o.name, append(r.versions[o.name], Version{was.value, r.written[o.name]}))
				}
				o.put(s)
				s.ClearInvalid(o.name)
				if twice {
					severity := diag.Warning
					if fromDirectory && r.at[o.name].file != file { // files of a directory may be for different clusters
						severity = diag.Info
					}
					r.report(&found, placed{index: o.index, Diagnostic: diag.Diagnostic{Severity: severity, Code: diag.ObjectDuplicate, Object: o.name,
						Msg: "is a duplicate: it replaces the previous one" + r.previous(o.name)}}, at)
				}
				r.record(&o, at)
			}
		}
	}
	list := found.List()
	if typed {
		list.Add(foreign.List()...)
		if r.Whole && len(parts) > 0 {
			list.Add(inLine(file, data, &parts[len(parts)-1])...)
		}
	}
	if !read {
		list.Add(configs.List()...)
	}
	list.Sort()
	return list
}

// inLine returns an error if YAML text does not end with a line break.
func inLine(file string, data []byte, last *part) (list diag.List) {
	if last.yaml != nil && data[len(data)-1] != '\n' {
		list.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: file, Doc: last.doc,
			Line: 1 + bytes.Count(data, []byte("\n")), Column: len(data) - bytes.LastIndexByte(data, '\n'),
			Msg: "may be cut off: it ends in the middle of a line", Hint: "if it is complete, end it with a line break"})
	}
	return list
}

// report adds a finding about a part with its position, and returns it. It
// computes the column only if the finding is kept.
func (r *Reader) report(to *diag.Gatherer, d placed, at place) diag.Diagnostic {
	d.File, d.Line, d.Doc = at.file, at.line+d.line, at.part.doc
	to.Add(d.Diagnostic, func(f *diag.Diagnostic) {
		var pos position
		switch at.index = d.index; {
		case at.part.problem != "":
			pos = position{at.line, at.col}
		case d.syntax:
			pos = at.sign(d.line, d.column)
		default:
			pos = r.indexed(&at).find(d.field)
		}
		f.Line, f.Column = pos.line, pos.col
		d.Diagnostic = *f
	})
	return d.Diagnostic
}

// lineCounter returns the lines of ascending offsets and counts each line only
// once.
type lineCounter struct {
	data         []byte
	offset, seen int
	start        int // offset of the current line
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

// A result is the content of a part. Its lines count from 0 at the start of the
// part.
type result struct {
	objects    []object
	diags      []placed
	typed      bool                 // some object has an apiVersion and a kind
	slices     bool                 // some object is an EndpointSlice or v1 Endpoints
	customs    []*snapshot.Workload // see Snapshot.Customs
	ignored    []string             // kinds of the objects of other kinds
	uncompared []snapshot.Uncompared
	sums       map[string]uint64 // of the texts of objects, by name
	// namespace and read are for decoders. strict also reports what the API server rejects only since
	// some release.
	namespace string
	read      unmarshal
	strict    bool
}

type placed struct {
	diag.Diagnostic
	line    int     // of the syntax error
	column  int     // of the error, from 1; 0 for the first character of the line
	index   []int   // of the object in the Lists of a YAML part
	field   string  // path in the object
	syntax  bool    // the text is neither YAML nor JSON
	untyped bool    // an apiVersion or a kind is missing
	config  bool    // the file belongs to another flag
	invalid *object // the object that is invalid because of this finding; nil if unknown
}

// An object is ready to be added to a Snapshot, where it replaces an object of
// the same name.
type object struct {
	name    string
	value   any                           // what the Snapshot contains; nil if reviews do not compare it
	index   []int                         // in the Lists of a YAML part
	has     func(*snapshot.Snapshot) bool // reports whether an object of this name exists
	put     func(*snapshot.Snapshot)
	invalid func() snapshot.Invalid // describes the object if it is invalid; nil if only the name is known
	written Written
	// uncompared is what a comparison of the value leaves out. Unlike it, that of a previous object remains.
	uncompared []snapshot.Uncompared
}

// setInvalid records that the object is invalid because of a finding, unless another
// object of its name exists.
func (o *object) setInvalid(s *snapshot.Snapshot, why diag.Diagnostic) {
	if o.name == "" || o.has != nil && o.has(s) {
		return
	}
	var l snapshot.Invalid
	if o.invalid != nil {
		l = o.invalid()
	}
	l.Object = o.name
	s.SetInvalid(l, why)
}

// decodeAll decodes parts in parallel. The results have the order of the parts.
func (r *Reader) decodeAll(parts []part) []result {
	results := make([]result, len(parts))
	ir.Parallel(len(parts), func(i int) { results[i] = parts[i].decode(r.Namespace, r.Strict) })
	return results
}

func (p *part) decode(namespace string, strict bool) result {
	r := result{namespace: namespace, read: lenient, strict: strict}
	if strict {
		r.read = strictly
	}
	switch {
	case p.problem != "":
		code := diag.NotYAML
		if p.truncated {
			code = diag.FileUnreadable
		}
		r.fail(placed{Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: code, Msg: p.problem}})
	case p.yaml != nil:
		p.decodeYAML(&r)
	default:
		r.leaf(&p.leaf, nil)
	}
	return r
}

// document returns the text of a YAML part as a separate document with the same
// lines and columns.
func (p *part) document() []byte {
	if !p.item {
		return p.yaml
	}
	return bytes.Replace(p.yaml, []byte("-"), []byte(" "), 1)
}

// decodeYAML converts the part to JSON, which may still contain a List, and
// decodes that.
func (p *part) decodeYAML(r *result) {
	doc := p.document()
	text, lines, err := toJSON(doc)
	if err != nil {
		line, column, msg := yamlError(doc, err)
		if at, in := diag.TemplateOf(doc); in > 0 {
			line, column, msg = at-1, in, diag.Template
		}
		r.fail(placed{line: line, column: column, syntax: true, Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: codeOf(err), Path: p.path(), Msg: msg}})
		return
	}
	leaves, err := scanLeaves(text)
	if err != nil {
		offset, msg, _ := invalid(err)
		at := placed{syntax: true, Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: codeOf(err), Path: p.path(), Msg: msg}}
		if lines {
			at.line = bytes.Count(text[:offset], []byte("\n"))
		}
		r.fail(at)
		return
	}
	for i := range leaves {
		l := &leaves[i]
		if p.item && len(l.index) == 0 && l.kind == "" && l.apiVersion == "" {
			l.kind, l.apiVersion = p.kind, p.apiVersion
		}
		inner := l.index
		l.index = append(p.index, inner...)
		r.leaf(l, inner)
	}
}

// codeOf returns the code of a syntax error.
func codeOf(err error) diag.Code {
	var inList duplicateKey
	var duplicate *duplicateError
	if errors.As(err, &duplicate) || errors.As(err, &inList) {
		return diag.FieldDuplicate
	}
	return diag.NotYAML
}

// yamlLine matches the position in an error of the YAML parser.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// yamlError splits an error of the YAML parser into the line from 0, the column
// from 1 if known, and the message.
func yamlError(doc []byte, err error) (line, column int, msg string) {
	msg = err.Error()
	if duplicate := (*duplicateError)(nil); errors.As(err, &duplicate) {
		return duplicate.key.Line - 1, duplicate.key.Column, msg
	}
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		line, msg = line-1, msg[len(m[0]):]
	} else {
		msg = strings.TrimPrefix(msg, "yaml: ")
	}
	if at, in, ok := diag.TabOf(doc, line+1, msg); ok {
		line, column, msg = at-1, in, diag.Tab
	} else if msg == diag.NoToken {
		line, column = noTokenAt(doc, line)
	} else if strings.HasPrefix(msg, "invalid map key: ") {
		line, column = noKeyAt(doc)
		msg = "a key must be text, got a mapping or a list"
	}
	return line, column, "invalid YAML: " + msg
}

// noKeyAt returns the position of the first key that is not a scalar: the line
// from 0 and the column from 1.
func noKeyAt(doc []byte) (line, column int) {
	key := findKey(doc, func(_, key *yaml.Node) bool { return key.Kind != yaml.ScalarNode && key.Kind != yaml.AliasNode })
	if key == nil {
		return 0, 0
	}
	return key.Line - 1, key.Column
}

// noTokenAt returns the position of the first character that causes diag.NoToken,
// at the start of a line or value.
func noTokenAt(doc []byte, from int) (line, column int) {
	for text := range bytes.Lines(doc) {
		if line >= from {
			rest := bytes.TrimLeft(text, " ")
			for {
				if len(rest) > 0 && bytes.IndexByte([]byte("\t@`%"), rest[0]) >= 0 {
					return line, len(text) - len(rest) + 1
				}
				next := bytes.IndexAny(rest, ":-,[{")
				if next < 0 {
					break
				}
				rest = bytes.TrimLeft(rest[next+1:], " ")
			}
		}
		line++
	}
	return from, 0
}

func (r *result) fail(d placed) { r.diags = append(r.diags, d) }

// seed is that of all sums, which are compared in one process only.
var seed = maphash.MakeSeed()

// sum adds the text of an object to those of its name.
func (r *result) sum(object string, text []byte) {
	ir.SetIn(&r.sums, object, r.sums[object]+maphash.Bytes(seed, text))
}

// leaf decodes an object. index is its position in the Lists of a YAML part.
func (r *result) leaf(l *leaf, index []int) {
	report := func(at placed) {
		at.index = index
		r.fail(at)
	}
	if msg := l.problem(); msg != "" {
		report(placed{untyped: true, Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: diag.NoKind, Path: l.path(), Msg: msg}})
		return
	}
	r.typed = true
	if l.apiVersion == "v1" && l.kind == "Status" {
		report(placed{Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, Path: l.path(), Msg: l.refusal(), Hint: "write the file again, and check that the command succeeds"}})
		return
	}
	if u := l.uncompared(r.namespace); u.Object != "" {
		r.uncompared = append(r.uncompared, u)
	}
	decode := decoderOf(l.apiVersion, l.kind)
	group, _ := splitVersion(l.apiVersion)
	if msg := diag.WrongFile("-s", l.apiVersion, l.kind); decode == nil && msg != "" {
		report(placed{config: true, Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, Path: l.path(), Msg: msg}})
		return
	}
	if decode == nil {
		f := misspelt(l.apiVersion, l.kind)
		if f != nil || isCustom(group) && !podless.MatchString(l.kind) {
			r.custom(l, f == nil && !makesPods.Match(l.text))
		}
		if f != nil {
			// It is invalid as an object of the kind that was meant: see Keep.
			meant := cmp.Or(nearKind(group, l.kind), l.kind)
			r.sum(l.named(l.kind, meant, r.namespace), l.text)
			report(placed{field: f.path, invalid: &object{name: l.named(meant, meant, r.namespace)}, Diagnostic: diag.Diagnostic{Severity: f.severity, Code: f.code, Object: l.named(l.kind, meant, r.namespace), Path: join(l.path(), f.path), Msg: f.msg, Hint: f.hint}})
		} else {
			r.ignored = append(r.ignored, l.kind)
		}
		return
	}
	r.slices = r.slices || l.kind == "EndpointSlice" || l.kind == "Endpoints"
	o, findings, err := decode(l.text, r.namespace, r.read)
	r.sum(o.name, l.text)
	o.index = index
	if err != nil {
		r.custom(l, false)
		path, msg := explain(l.text, err)
		report(placed{field: path, invalid: &o, Diagnostic: diag.Diagnostic{Severity: diag.Error, Code: diag.FieldType, Object: o.name, Path: join(l.path(), path), Msg: msg}})
		return
	}
	if r.strict && !o.written.Live { // a cluster serves the versions of its objects
		findings = append(findings, removal(l.apiVersion, l.kind)...)
	}
	usable := true
	for _, f := range findings {
		if f.rejected != "" {
			o.written.Rejected = append(o.written.Rejected, Rejection{diag.Diagnostic{Severity: diag.Error, Code: f.code, Object: o.name, Path: f.path, Msg: f.rejected, Hint: f.hint}, f.ofType})
		}
		if f.msg == "" {
			continue
		}
		var invalid *object
		if f.severity == diag.Error {
			usable, invalid = false, &o
		}
		report(placed{field: f.path, invalid: invalid, Diagnostic: diag.Diagnostic{Severity: f.severity, Code: f.code, Object: o.name, Path: join(l.path(), f.path), Msg: f.msg, Hint: f.hint}})
	}
	if !usable {
		r.custom(l, false)
	} else {
		r.objects = append(r.objects, o)
		r.uncompared = append(r.uncompared, o.uncompared...)
	}
}

// problem returns why a leaf cannot be an object of any kind, or "".
func (l *leaf) problem() string {
	switch {
	case l.text[0] != '{':
		return "must be an object with apiVersion and kind, got " + shorten(l.text)
	case l.kind == "" && l.apiVersion != "": // kubectl writes the kind of a List last
		return "kind: must be set, such as Service or List: the file may be cut off"
	case l.kind == "":
		return "kind: must be set, such as Service or List"
	case l.apiVersion == "":
		return "apiVersion: must be set, such as v1"
	}
	return ""
}

// refusal returns the message for a Status, which an API server sends instead of
// objects after a failure.
func (l *leaf) refusal() string {
	var in metav1.Status
	_ = kjson.UnmarshalCaseSensitivePreserveInts(l.text, &in) // a Status without a message is still a Status
	msg := "is a Status, the API server's answer to a failed request, not an object"
	if in.Message != "" {
		msg += ": " + diag.Quote(in.Message)
	}
	return msg
}

// named returns the name of an object of a misspelt kind, as one of the kind or of the one that was
// meant.
func (l *leaf) named(kind, meant, namespace string) string {
	m := l.meta(namespace)
	if meant == "Node" || meant == "ServiceCIDR" { // has no namespace
		m.Namespace = ""
	}
	return snapshot.ObjectName(kind, snapshot.NameOf(m))
}

// meta returns the metadata of an object, as far as they can be decoded, with a namespace.
func (l *leaf) meta(namespace string) *metav1.ObjectMeta {
	var in struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(l.text, &in) // an undecodable object has no name
	defaultNamespace(&in.Metadata, namespace)
	in.Metadata.Name = cmp.Or(in.Metadata.Name, in.Metadata.GenerateName)
	return &in.Metadata
}

// custom adds an object that may make pods, as far as it can be decoded.
func (r *result) custom(l *leaf, doubtful bool) {
	var in struct {
		Spec struct {
			Replicas any `json:"replicas"`
			Template struct {
				Metadata metav1.ObjectMeta `json:"metadata"`
			} `json:"template"`
		} `json:"spec"`
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(l.text, &in) // most have no template
	w := &snapshot.Workload{Kind: l.kind, Name: snapshot.NameOf(l.meta(r.namespace)), Labels: in.Spec.Template.Metadata.Labels, Doubtful: doubtful}
	if in.Spec.Replicas != int64(0) {
		w.Pods = 1 // or more
	}
	if w.Object = snapshot.ObjectName(l.kind, w.Name); w.Name.Name != "" { // others are patches
		r.customs = append(r.customs, w)
	}
}

// shorten truncates a text for a message.
func shorten(text []byte) string {
	const limit = 40
	if len(text) > limit {
		return strconv.Quote(string(text[:limit])) + "..."
	}
	return strconv.Quote(string(text))
}

// join joins the path of an object and the path of a field.
func join(object, field string) string {
	if object == "" || field == "" {
		return object + field
	}
	return object + "." + field
}
