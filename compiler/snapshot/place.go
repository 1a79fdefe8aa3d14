package snapshot

import (
	"bytes"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/proxyc/proxyc/compiler/diag"
)

// A Reader decodes the files of a Snapshot as Decode does, and remembers where
// each object stands, so that a finding about a field can be given its place.
// It keeps the files in memory, and looks at them only when it is asked. The
// zero value is ready to use.
type Reader struct {
	at map[string]place // by the object's name: "Service ns/web"
}

// place is where an object stands.
type place struct {
	file      string
	line, col int // 1-based, of the part's start
	part      *part
	path      string // in the Lists of a YAML part
}

// Decode adds the objects in a file to s, as the function of that name does.
// With foreign, for what was found in a directory, a file without anything that
// has an apiVersion and a kind is something else, and nothing is wrong with it.
func (r *Reader) Decode(s *Snapshot, file string, data []byte, foreign bool) diag.List {
	if r.at == nil {
		r.at = map[string]place{}
	}
	note := func(object string, at place) { r.at[object] = at }
	list := decode(s, file, data, foreign, note)
	return list
}

// Locate completes findings that know their object, and no place, with file,
// line and column of the field; of what stands around it, where the field does
// not stand in the file.
func (r *Reader) Locate(list diag.List) {
	for i := range list {
		d := &list[i]
		at, ok := r.at[d.Object]
		if d.File != "" || !ok {
			continue
		}
		d.File = at.file
		d.Line, d.Column = at.find(d.Path)
	}
}

// find gives line and column of a field, 1-based.
func (p *place) find(path string) (line, col int) {
	if short, ok := singular(path); ok {
		if line, col, whole := p.lookup(short); whole {
			return line, col
		}
	}
	line, col, _ = p.lookup(path)
	return line, col
}

// singular gives the older field that stands for the first item of a newer one.
func singular(path string) (string, bool) {
	switch path {
	case "spec.clusterIPs[0]":
		return "spec.clusterIP", true
	case "spec.podCIDRs[0]":
		return "spec.podCIDR", true
	}
	return "", false
}

// lookup gives the place of a field, or of the innermost one around it that is
// there, and reports whether it was the field itself.
func (p *place) lookup(path string) (line, col int, whole bool) {
	if p.part.yaml != nil {
		return p.lookupYAML(path)
	}
	offset, whole := lookupJSON(p.part.text, path)
	before := p.part.text[:offset]
	line, col = p.line+bytes.Count(before, []byte("\n")), offset+p.col
	if start := bytes.LastIndexByte(before, '\n'); start >= 0 {
		col = offset - start
	}
	return line, col, whole
}

func (p *place) lookupYAML(path string) (line, col int, whole bool) {
	path = join(p.path, path)
	var doc yaml.Node
	if err := yaml.Unmarshal(p.part.document(), &doc); err != nil || len(doc.Content) == 0 {
		return p.line, p.col, false
	}
	node, whole := lookupNode(doc.Content[0], path)
	line, col = p.line+node.Line-1, node.Column
	if node.Line == 1 {
		col += p.col - 1
	}
	return line, col, whole
}

// lookupNode gives the key or list item that a path names.
func lookupNode(n *yaml.Node, path string) (at *yaml.Node, whole bool) {
	for at = n; path != ""; {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		next, rest := (*yaml.Node)(nil), ""
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if r, ok := cutKey(path, n.Content[i].Value); ok {
					at, next, rest = n.Content[i], n.Content[i+1], r
					break
				}
			}
		case yaml.SequenceNode:
			if i, r, ok := cutIndex(path); ok && i < len(n.Content) {
				at, next, rest = n.Content[i], n.Content[i], r
			}
		}
		if next == nil {
			return at, false
		}
		n, path = next, rest
	}
	return at, true
}

// lookupJSON gives the offset of the key or list item that a path names.
func lookupJSON(text []byte, path string) (offset int, whole bool) {
	s := scanner{data: text}
	for path != "" {
		s.space()
		at, rest := -1, ""
		switch s.peek() {
		case '{':
			at, rest = s.member(path)
		case '[':
			at, rest = s.element(path)
		}
		if at < 0 {
			return offset, false
		}
		offset, path = at, rest
	}
	return offset, true
}

// member goes to the value of the key that a path begins with, and gives the
// key's offset and the rest of the path; -1 if there is none.
func (s *scanner) member(path string) (at int, rest string) {
	s.pos++
	for first := true; ; first = false {
		if more, err := s.more('}', first); err != nil || !more {
			return -1, ""
		}
		at := s.pos
		key, err := s.key()
		if err != nil {
			return -1, ""
		}
		if rest, ok := cutKey(path, key); ok {
			return at, rest
		}
		if s.skip() != nil {
			return -1, ""
		}
	}
}

// element goes to the item that a path begins with; -1 if there is none.
func (s *scanner) element(path string) (at int, rest string) {
	want, rest, ok := cutIndex(path)
	s.pos++
	for i := 0; ok; i++ {
		if more, err := s.more(']', i == 0); err != nil || !more {
			break
		}
		if i == want {
			return s.pos, rest
		}
		if s.skip() != nil {
			break
		}
	}
	return -1, ""
}

// cutKey cuts a key off the front of a path; a key may have dots.
func cutKey(path, key string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, key)
	switch {
	case !ok || key == "":
		return "", false
	case rest == "" || rest[0] == '[':
		return rest, true
	}
	return strings.CutPrefix(rest, ".")
}

// cutIndex cuts "[3]" off the front of a path.
func cutIndex(path string) (i int, rest string, ok bool) {
	inner, rest, ok := strings.Cut(path, "]")
	if !ok || inner == "" || inner[0] != '[' {
		return 0, "", false
	}
	i, err := strconv.Atoi(inner[1:])
	return i, strings.TrimPrefix(rest, "."), err == nil && i >= 0
}
