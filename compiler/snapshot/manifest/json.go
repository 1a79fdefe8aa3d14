package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxNesting is the maximum nesting of Lists.
const maxNesting = 16

// A leaf is the JSON text of one object that is not a List.
type leaf struct {
	text             []byte
	start            int // offset of text in the scanned data
	apiVersion, kind string
	index            []int // position in the enclosing Lists, outermost first
	array            bool  // the outermost is an array, not a List
}

// path returns the leaf's position in the enclosing Lists: "items[3]".
func (l *leaf) path() string { return listPath(l.index, l.array) }

func listPath(index []int, array bool) string {
	var b strings.Builder
	for n, i := range index {
		if n > 0 {
			b.WriteByte('.')
		}
		if n > 0 || !array {
			b.WriteString("items")
		}
		fmt.Fprintf(&b, "[%d]", i)
	}
	return b.String()
}

// A scanner finds the objects in JSON text, including the items of Lists. It
// parses only brackets and strings, which is much faster than decoding. The
// decoder reports errors inside an object.
type scanner struct {
	data     []byte
	pos      int
	index    []int // in the open Lists
	array    bool  // the outermost of them is an array
	leaves   []leaf
	examined int // bytes examined while scanning strings
}

// A syntaxError is a position at which the scanner cannot continue.
type syntaxError struct {
	offset    int
	truncated bool   // the text ends here
	duplicate string // the duplicate key of a List
	msg       string
}

func (e *syntaxError) Error() string {
	if e.truncated {
		return "cut off: the JSON is incomplete"
	}
	if e.duplicate != "" {
		return "key " + strconv.Quote(e.duplicate) + " of a List is duplicate"
	}
	return "invalid JSON: " + e.msg
}

// scanLeaves returns the objects in one JSON value.
func scanLeaves(data []byte) ([]leaf, error) {
	s := scanner{data: data}
	s.space()
	err := s.document()
	if s.space(); err == nil && s.pos < len(data) {
		err = s.unexpected("after the object")
	}
	return s.leaves, err
}

// document scans an object or an array of objects.
func (s *scanner) document() error {
	if s.peek() != '[' {
		return s.value()
	}
	s.array = true
	defer func() { s.array = false }()
	return s.items()
}

// value scans an object, or adds a leaf for any other value in its place.
func (s *scanner) value() error {
	if s.space(); s.peek() == '{' {
		return s.object()
	}
	start := s.pos
	if err := s.skip(); err != nil {
		return err
	}
	s.add(leaf{text: s.data[start:s.pos], start: start})
	return nil
}

func (s *scanner) add(l leaf) {
	l.index, l.array = slices.Clone(s.index), s.array
	s.leaves = append(s.leaves, l)
}

// listKeys are the keys of a List that the scanner uses.
var listKeys = [...]string{"apiVersion", "kind", "items"}

// object scans an object at '{'. The object is a List if it has items and its
// kind ends in List; the kind may follow the items.
func (s *scanner) object() error {
	if len(s.index) > maxNesting {
		return &syntaxError{offset: s.pos, msg: fmt.Sprintf("Lists are nested more than %d deep", maxNesting)}
	}
	start, first := s.pos, len(s.leaves)
	var l leaf
	list := false
	var seen [len(listKeys)]bool
	var duplicate *syntaxError
	s.pos++
	for n := 0; ; n++ {
		more, err := s.more('}', n == 0)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		at := s.pos
		key, err := s.key()
		if err != nil {
			return err
		}
		if i := slices.Index(listKeys[:], key); i >= 0 {
			if seen[i] && duplicate == nil {
				duplicate = &syntaxError{offset: at, duplicate: key}
			}
			seen[i] = true
		}
		switch {
		case key == "apiVersion" && s.peek() == '"':
			l.apiVersion, err = s.text()
		case key == "kind" && s.peek() == '"':
			l.kind, err = s.text()
		case key == "items" && s.peek() == '[':
			list = true
			err = s.items()
		default:
			err = s.skip()
		}
		if err != nil {
			return err
		}
	}
	if duplicate != nil && isListKind(l.kind) {
		s.leaves = s.leaves[:first]
		return duplicate
	}
	if list && isListKind(l.kind) {
		inherit(s.leaves[first:], &l, len(s.index))
		return nil
	}
	l.text, l.start = s.data[start:s.pos], start
	s.leaves = s.leaves[:first]
	s.add(l)
	return nil
}

// more advances to the next member of an object or array, or past its end.
func (s *scanner) more(end byte, first bool) (bool, error) {
	s.space()
	if s.peek() == end {
		s.pos++
		return false, nil
	}
	if first {
		return true, nil
	}
	if s.peek() != ',' {
		return false, s.unexpected("instead of a comma")
	}
	s.pos++
	s.space()
	return true, nil
}

// key scans a field name and advances to its value.
func (s *scanner) key() (string, error) {
	if s.peek() != '"' {
		return "", s.unexpected("instead of a field name")
	}
	key, err := s.text()
	if err != nil {
		return "", err
	}
	if s.space(); s.peek() != ':' {
		return "", s.unexpected("after field name " + strconv.Quote(key))
	}
	s.pos++
	s.space()
	return key, nil
}

func isListKind(kind string) bool { return strings.HasSuffix(kind, "List") }

// inherit sets the type of items in a typed List such as a ServiceList, because
// the API server omits it there.
func inherit(items []leaf, list *leaf, depth int) {
	kind := strings.TrimSuffix(list.kind, "List")
	for i := range items {
		if l := &items[i]; kind != "" && l.kind == "" && l.apiVersion == "" && len(l.index) == depth+1 {
			l.kind, l.apiVersion = kind, list.apiVersion
		}
	}
}

func (s *scanner) items() error {
	s.pos++
	s.index = append(s.index, 0)
	for {
		at := len(s.index) - 1
		more, err := s.more(']', s.index[at] == 0)
		if err != nil {
			return err
		}
		if !more {
			s.index = s.index[:at]
			return nil
		}
		if err := s.value(); err != nil {
			return err
		}
		s.index[at]++
	}
}

// skip advances past a value of any type.
func (s *scanner) skip() error {
	start := s.pos
	for depth := 0; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case '"':
			if err := s.quoted(); err != nil {
				return err
			}
			if depth == 0 {
				return nil
			}
			s.pos--
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				s.pos++
				return nil
			}
			if depth < 0 {
				return s.ended(start)
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return s.ended(start)
			}
		}
	}
	return s.ended(start)
}

// ended checks that a number or literal is not empty.
func (s *scanner) ended(start int) error {
	if s.pos == start || s.data[start] == '{' || s.data[start] == '[' {
		return s.unexpected("instead of a value")
	}
	return nil
}

// quoted advances past a string.
func (s *scanner) quoted() error {
	start := s.pos
	s.pos++
	for end := -1; ; {
		if end < s.pos { // search once, not for each escape: the end may be far away
			i := bytes.IndexByte(s.data[min(s.pos, len(s.data)):], '"')
			if i < 0 {
				s.pos = len(s.data)
				return &syntaxError{offset: start, truncated: true}
			}
			s.examined += i + 1
			end = s.pos + i
		}
		esc := bytes.IndexByte(s.data[s.pos:end], '\\')
		if esc < 0 {
			s.examined += end - s.pos
			s.pos = end + 1
			return nil
		}
		s.examined += esc + 1
		s.pos += esc + 2
	}
}

// text scans a string.
func (s *scanner) text() (string, error) {
	start := s.pos
	if err := s.quoted(); err != nil {
		return "", err
	}
	raw := s.data[start:s.pos]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var out string
	if err := json.Unmarshal(raw, &out); err != nil {
		return "", &syntaxError{offset: start, msg: err.Error()}
	}
	return out, nil
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) unexpected(where string) error {
	if s.pos >= len(s.data) {
		return &syntaxError{offset: len(s.data), truncated: true}
	}
	return &syntaxError{offset: s.pos, msg: fmt.Sprintf("unexpected %q %s", s.data[s.pos], where)}
}

// pathAt returns the path of the value that a decoder had read at offset:
// "spec.ports[0].port".
func pathAt(text []byte, offset int64) (at string) {
	walk(text, func(path func() string, end int64, _ json.Token) bool {
		if end < offset {
			return true
		}
		at = path()
		return false
	})
	return at
}

// pathOf returns the path of the first value for which is returns true. field, a
// path without indexes, restricts the search; "" matches any path.
func pathOf(text []byte, field string, is func(json.Token) bool) (at string) {
	walk(text, func(path func() string, _ int64, value json.Token) bool {
		if !is(value) {
			return true
		}
		p := path()
		if field != "" && listIndex.ReplaceAllString(p, "") != field {
			return true
		}
		at = p
		return false
	})
	return at
}

// walk visits all values in an object, and objects and lists at their start,
// until visit returns false. end is the decoder's offset after the value.
func walk(text []byte, visit func(path func() string, end int64, value json.Token) bool) {
	type frame struct {
		key   string
		index int // -1 in an object
		value bool
	}
	var stack []frame
	path := func() string {
		var b strings.Builder
		for _, f := range stack {
			if f.index >= 0 {
				fmt.Fprintf(&b, "[%d]", f.index-1)
				continue
			}
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(f.key)
		}
		return b.String()
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		tok, err := dec.Token()
		if err != nil {
			return
		}
		if delim, ok := tok.(json.Delim); ok && (delim == '}' || delim == ']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if top := len(stack) - 1; top >= 0 {
			switch f := &stack[top]; {
			case f.index >= 0:
				f.index++
			case f.value:
				f.value = false
			default:
				f.key, f.value = tok.(string), true
				continue
			}
		}
		if !visit(path, dec.InputOffset(), tok) {
			return
		}
		switch tok {
		case json.Delim('{'):
			stack = append(stack, frame{index: -1})
		case json.Delim('['):
			stack = append(stack, frame{index: 0})
		}
	}
}
