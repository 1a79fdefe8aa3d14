package manifest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// A Reader decodes the files of a Snapshot as Decode does, and records where each
// object is, so that findings about fields can have positions. It keeps the files
// in memory, and parses positions only on demand. The zero value is ready to use.
type Reader struct {
	// MaxSimilar is the limit of similar findings about a file that are reported one by
	// one; further ones are counted. 0 means no limit.
	MaxSimilar int
	// Whole rejects a YAML file that ends in the middle of a line, for files on a node: another program
	// may be writing it.
	Whole bool
	// Strict also reports fields that resemble no field of the API, which the API
	// server drops, too, and versions that a release removed.
	Strict bool
	// Namespace is that of objects without one; "" for default.
	Namespace string
	// NoPositions disables recording of positions, and of all written fields but Rejected; Locate then finds none.
	NoPositions bool

	at       map[string]place     // by the object's name: "Service ns/web"
	written  map[string]Written   // by the same name
	recorded int                  // objects so far
	sliced   string               // the first Service for which Written.Sliced is true
	selects  string               // the first Service for which Written.Selects is true
	slices   bool                 // the input has an EndpointSlice or v1 Endpoints, decoded or invalid
	versions map[string][]Version // replaced objects, by name
	Keep     map[string]any       // versions that no later one replaces, by name
	ignored  map[string]int       // the number of objects of each other kind
	Sums     map[string]uint64    // of the texts of all objects of a name
	shared   map[*part]*yaml.Node
	last     place // the last object that was looked up, and its fields
	fields   fields
	// Counters of work, for tests.
	parsed, objects int
}

// place is the position of an object.
type place struct {
	file      string
	line, col int // 1-based, of the part's start
	part      *part
	index     []int // in the Lists of a YAML part
	value     any   // of the object, which put adds to a Snapshot
	put       func(*snapshot.Snapshot)
}

// Version is one of several objects with the same name. Each may be applied, in another cluster.
type Version struct {
	Value   any // what a Snapshot contains, such as a *snapshot.Service
	Written Written
}

// Versions returns the objects that occur several times, by name, in the order of the input. The last one
// is in the Snapshot.
func (r *Reader) Versions() map[string][]Version {
	all := map[string][]Version{}
	for object, replaced := range r.versions {
		all[object] = append(slices.Clone(replaced), Version{r.at[object].value, r.written[object]})
	}
	return all
}

// Overlay calls a function that decodes objects which replace the previous ones. Those that occur several times have
// only its versions then.
func (r *Reader) Overlay(decode func()) {
	all := maps.Clone(r.versions)
	r.versions = nil
	decode()
	for object, own := range r.versions {
		ir.SetIn(&all, object, own)
	}
	r.versions = all
}

// record records the position and the written fields of an object.
func (r *Reader) record(o *object, at place) {
	if r.sliced == "" && o.written.Sliced {
		r.sliced = o.name
	}
	if r.selects == "" && o.written.Selects {
		r.selects = o.name
	}
	if r.NoPositions {
		if was := r.written[o.name]; len(o.written.Rejected)+len(was.Rejected) > 0 {
			ir.SetIn(&r.written, o.name, Written{Rejected: o.written.Rejected})
		}
		return
	}
	r.recorded++
	o.written.Order, at.value, at.put = r.recorded, o.value, o.put
	ir.SetIn(&r.written, o.name, o.written)
	ir.SetIn(&r.at, o.name, at)
}

// File returns the file that an object is in.
func (r *Reader) File(object string) string { return r.at[object].file }

// Ignored returns the number of objects of each kind that a Snapshot does not use.
func (r *Reader) Ignored() map[string]int { return r.ignored }

// previous returns where an object of a name is, for the end of a message; "" if it is unknown.
func (r *Reader) previous(name string) string {
	at, ok := r.at[name]
	if !ok {
		return ""
	}
	return fmt.Sprintf(", at %s:%d", at.file, r.indexed(&at).find("").line)
}

// ForgetPositions forgets the positions of all objects so far.
func (r *Reader) ForgetPositions() { clear(r.at) }

// Locate adds the file, line and column of the field to findings that have an
// object but no position. If the field is not in the file, the closest enclosing
// one is used. Findings about one object should be consecutive, because the
// Reader caches the positions of one object.
func (r *Reader) Locate(list diag.List) {
	for i := range list {
		d := &list[i]
		at, ok := r.at[strings.TrimPrefix(d.Object, snapshot.AssumedFrom)]
		if d.File != "" || !ok {
			continue
		}
		d.File = at.file
		pos := r.indexed(&at).find(d.Path)
		d.Line, d.Column = pos.line, pos.col
	}
}

// fields are the positions in an object, by path; the path of the object itself
// is "".
type fields map[string]position

type position struct{ line, col int }

// find returns the position of a field or of the innermost enclosing one.
func (f fields) find(path string) position {
	if pos, ok := f[path]; ok {
		return pos
	}
	if pos, ok := f[singular(path)]; ok {
		return pos
	}
	for path != "" {
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
		if pos, ok := f[path]; ok {
			return pos
		}
	}
	return f[""]
}

// singular returns the older field that corresponds to the first item of a newer
// one.
func singular(path string) string {
	switch path {
	case "spec.clusterIPs[0]":
		return "spec.clusterIP"
	case "spec.podCIDRs[0]":
		return "spec.podCIDR"
	}
	return path
}

// indexed returns the positions in an object. It caches those of the last object.
func (r *Reader) indexed(p *place) fields {
	if r.fields == nil || r.last.part != p.part || !slices.Equal(r.last.index, p.index) {
		r.last, r.fields = *p, r.index(p)
	}
	return r.fields
}

// index returns all positions in an object.
func (r *Reader) index(p *place) fields {
	r.objects++
	out := fields{"": {p.line, p.col}}
	if p.part.yaml == nil {
		lines := lineCounter{data: p.part.text}
		for t := range tokens(p.part.text) { // the position of a member is that of its key
			path := t.path()
			if _, known := out[path]; known && !t.key {
				continue
			}
			out[path] = p.sign(lines.at(t.start)-1, t.start-lines.start+1)
		}
		return out
	}
	node := r.document(p)
	for _, i := range p.index {
		if node != nil {
			node = item(node, i)
		}
	}
	if node != nil {
		out[""] = p.of(node)
		indexNode(node, "", p, out)
	}
	return out
}

// document parses a YAML part. It parses a part with several objects only once.
func (r *Reader) document(p *place) *yaml.Node {
	if node, ok := r.shared[p.part]; ok {
		return node
	}
	r.parsed++
	var node *yaml.Node
	var doc yaml.Node
	if err := yaml.Unmarshal(p.part.document(), &doc); err == nil && len(doc.Content) > 0 {
		node = doc.Content[0]
	}
	if len(p.index) > 0 {
		ir.SetIn(&r.shared, p.part, node)
	}
	return node
}

// item returns an item of a List or an array.
func item(list *yaml.Node, i int) *yaml.Node {
	if list.Kind == yaml.MappingNode {
		for j := 0; j+1 < len(list.Content); j += 2 {
			if list.Content[j].Value == "items" {
				list = list.Content[j+1]
				break
			}
		}
	}
	if list.Kind != yaml.SequenceNode || i >= len(list.Content) {
		return nil
	}
	return list.Content[i]
}

// sign returns the position in the file of a line and column of the part's text.
// Column 0 is the first character of the line.
func (p *place) sign(line, column int) position {
	text := p.part.yaml
	if text == nil {
		text = p.part.text
	}
	if column == 0 {
		column = 1
		n := 0
		for l := range bytes.Lines(text) {
			if n == line {
				column += indentation(bytes.TrimRight(l, "\n"))
				break
			}
			n++
		}
	}
	if line == 0 {
		column += p.col - 1
	}
	return position{p.line + line, column}
}

// of returns the position of a node in the file.
func (p *place) of(n *yaml.Node) position {
	pos := position{p.line + n.Line - 1, p.part.column(n)}
	if n.Line == 1 {
		pos.col += p.col - 1
	}
	return pos
}

// column returns the column of a node in bytes; the parser counts characters.
func (p *part) column(n *yaml.Node) int {
	if !p.indexed && slices.ContainsFunc(p.yaml, func(c byte) bool { return c >= utf8.RuneSelf }) {
		p.lines = bytes.Split(p.yaml, []byte("\n"))
	}
	p.indexed = true
	if n.Line > len(p.lines) {
		return n.Column
	}
	col, chars := 1, 1
	for line := p.lines[n.Line-1]; chars < n.Column && col <= len(line); chars++ {
		_, size := utf8.DecodeRune(line[col-1:])
		col += size
	}
	return col
}

// indexNode adds the positions of keys and list items in a node. It does not
// follow aliases: the position of a merged key is that of its "<<".
func indexNode(n *yaml.Node, path string, p *place, out fields) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			inner := memberPath(path, n.Content[i].Value)
			out[inner] = p.of(n.Content[i])
			indexNode(n.Content[i+1], inner, p, out)
			if n.Content[i].Tag == "!!merge" {
				indexMerged(n.Content[i+1], path, out[inner], out)
			}
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			inner := itemPath(path, i)
			out[inner] = p.of(item)
			indexNode(item, inner, p, out)
		}
	}
}

// indexMerged adds a position of the keys that a value of "<<" merges. The mapping's own keys have others.
func indexMerged(n *yaml.Node, path string, at position, out fields) {
	switch n.Kind {
	case yaml.AliasNode:
		indexMerged(n.Alias, path, at, out)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			indexMerged(item, path, at, out)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if inner := memberPath(path, n.Content[i].Value); n.Content[i].Tag == "!!merge" {
				indexMerged(n.Content[i+1], path, at, out)
			} else if _, own := out[inner]; !own {
				out[inner] = at
			}
		}
	}
}

func itemPath(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
