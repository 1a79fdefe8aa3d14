package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
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
func (l *leaf) path() (path string) {
	for n, i := range l.index {
		if n > 0 || !l.array {
			path = memberPath(path, "items")
		}
		path = itemPath(path, i)
	}
	return path
}

// A reader reads JSON text. It accepts duplicate keys and invalid UTF-8, which the
// decoder of objects handles.
type reader struct {
	*jsontext.Decoder
	data []byte
}

func newReader(data []byte) reader {
	return reader{jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)), data}
}

// next returns the offset of the next token.
func (r *reader) next() int {
	return len(r.data) - len(bytes.TrimLeft(r.data[r.InputOffset():], " \t\r\n,:"))
}

// A scanner finds the objects in JSON text, including the items of Lists.
type scanner struct {
	reader
	index  []int // in the open Lists
	array  bool  // the outermost of them is an array
	leaves []leaf
}

// A duplicateKey is a key that a List has twice.
type duplicateKey string

func (k duplicateKey) Error() string {
	return "key " + strconv.Quote(string(k)) + " of a List is duplicate"
}

// scanLeaves returns the objects in one JSON value.
func scanLeaves(data []byte) ([]leaf, error) {
	s := scanner{reader: newReader(data)}
	err := s.document()
	return s.leaves, err
}

// document scans an object or an array of objects.
func (s *scanner) document() error {
	if s.PeekKind() != '[' {
		return s.value()
	}
	s.array = true
	defer func() { s.array = false }()
	return s.items()
}

// value scans an object, or adds a leaf for any other value in its place.
func (s *scanner) value() error {
	start := s.next()
	if s.PeekKind() == '{' {
		return s.object(start)
	}
	err := s.SkipValue()
	if err == nil {
		s.add(leaf{start: start})
	}
	return err
}

// add adds a leaf that ends here.
func (s *scanner) add(l leaf) {
	l.text, l.index, l.array = s.data[l.start:s.InputOffset()], slices.Clone(s.index), s.array
	s.leaves = append(s.leaves, l)
}

// object scans an object. The object is a List if it has items and its kind ends
// in List; the kind may follow the items.
func (s *scanner) object(start int) error {
	if len(s.index) > maxNesting {
		return &jsontext.SyntacticError{ByteOffset: int64(start), Err: fmt.Errorf("items are nested in Lists more than %d deep", maxNesting)}
	}
	_, err := s.ReadToken()
	l, first, list := leaf{start: start}, len(s.leaves), false
	var keys []string
	var duplicate error
	for err == nil && s.PeekKind() != '}' {
		at := s.next()
		var tok jsontext.Token
		if tok, err = s.ReadToken(); err != nil {
			break
		}
		key := tok.String()
		if duplicate == nil && slices.Contains(keys, key) {
			duplicate = &jsontext.SyntacticError{ByteOffset: int64(at), Err: duplicateKey(key)}
		}
		keys = append(keys, key)
		switch kind := s.PeekKind(); {
		case key == "items" && kind == '[':
			list = true
			err = s.items()
		case kind == '"' && key == "apiVersion":
			tok, err = s.ReadToken()
			l.apiVersion = tok.String()
		case kind == '"' && key == "kind":
			tok, err = s.ReadToken()
			l.kind = tok.String()
		default:
			err = s.SkipValue()
		}
	}
	if err == nil {
		_, err = s.ReadToken()
	}
	switch isList := strings.HasSuffix(l.kind, "List"); {
	case err != nil:
		return err
	case isList && duplicate != nil:
		s.leaves = s.leaves[:first]
		return duplicate
	case isList && list:
		inherit(s.leaves[first:], &l, len(s.index))
		return nil
	}
	s.leaves = s.leaves[:first]
	s.add(l)
	return nil
}

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
	_, err := s.ReadToken()
	depth := len(s.index)
	s.index = append(s.index, 0)
	for err == nil && s.PeekKind() != ']' {
		err = s.value()
		s.index[depth]++
	}
	s.index = s.index[:depth]
	if err == nil {
		_, err = s.ReadToken()
	}
	return err
}

// invalid returns the position and the message of an error of a reader, and
// whether the text is truncated.
func invalid(err error) (offset int, msg string, truncated bool) {
	var syntax *jsontext.SyntacticError
	var duplicate duplicateKey
	switch {
	case !errors.As(err, &syntax):
		return 0, err.Error(), false
	case errors.As(err, &duplicate):
		msg = duplicate.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		msg, truncated = "cut off: the JSON is incomplete"+ignoredText, true
	case strings.HasPrefix(syntax.Err.Error(), "invalid character '/'"):
		msg = "invalid JSON: it has comments, which JSON does not allow: remove them" + ignoredText
	default:
		msg = "invalid JSON: " + syntax.Err.Error() + ignoredText
	}
	return int(syntax.ByteOffset), msg, truncated
}

// A token is a key, a value, or the start of an object or list.
type token struct {
	jsontext.Token
	key    bool
	start  int
	reader *reader
}

// tokens returns the tokens in valid JSON text.
func tokens(text []byte) iter.Seq[token] {
	return func(yield func(token) bool) {
		r := newReader(text)
		for {
			start := r.next()
			tok, err := r.ReadToken()
			if err != nil {
				return
			}
			kind, n := r.StackIndex(r.StackDepth())
			if k := tok.Kind(); k != '}' && k != ']' && !yield(token{tok, kind == '{' && n%2 == 1, start, &r}) {
				return
			}
		}
	}
}

// path returns the path of a token that was just read: "spec.ports[0].port".
func (t *token) path() (path string) {
	depth := 0
	for name := range t.reader.StackPointer().Tokens() {
		depth++
		if kind, _ := t.reader.StackIndex(depth); kind == '[' {
			path += "[" + name + "]"
		} else {
			path = memberPath(path, name)
		}
	}
	return path
}

// pathOf returns the path of the first value for which is returns true; "" if
// there is none.
func pathOf(text []byte, is func(*token) bool) string {
	for t := range tokens(text) {
		if !t.key && is(&t) {
			return t.path()
		}
	}
	return ""
}

func memberPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
