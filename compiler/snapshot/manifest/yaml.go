package manifest

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// toJSON converts one YAML document to JSON by kubectl's rules, those of
// sigs.k8s.io/yaml. Block YAML as printed by kubectl, by far the most common
// form, uses a path that is about twenty times as fast. It preserves line breaks,
// so that JSON and YAML lines are equal. Duplicate keys remain in the fast path's
// output, and are an error in the other one. FuzzTranscode compares the two
// paths.
func toJSON(doc []byte) (text []byte, lines bool, err error) {
	if out, ok := transcode(doc); ok {
		return out, true, nil
	}
	out, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		if duplicate := findDuplicate(doc); duplicate != nil {
			return nil, false, duplicate
		}
		out, err = yaml.YAMLToJSON(doc) // a merged key may equal an explicit one
	}
	return out, false, err
}

// A duplicateError is a duplicate key of a mapping.
type duplicateError struct {
	key *goyaml.Node
}

func (e *duplicateError) Error() string {
	return "key " + strconv.Quote(e.key.Value) + " is duplicate: the object is ignored"
}

// findDuplicate returns the first duplicate key in a document, or nil.
func findDuplicate(doc []byte) *duplicateError {
	type entry struct {
		mapping *goyaml.Node
		key     string
	}
	seen := map[entry]bool{}
	key := findKey(doc, func(mapping, key *goyaml.Node) bool {
		e := entry{mapping, key.Value}
		if key.Kind != goyaml.ScalarNode || seen[e] {
			return key.Kind == goyaml.ScalarNode
		}
		seen[e] = true
		return false
	})
	if key == nil {
		return nil
	}
	return &duplicateError{key}
}

// findKey returns the first key of a mapping for which is returns true, or nil.
func findKey(doc []byte, is func(mapping, key *goyaml.Node) bool) *goyaml.Node {
	var root goyaml.Node
	if goyaml.Unmarshal(doc, &root) != nil {
		return nil
	}
	var find func(n *goyaml.Node) *goyaml.Node
	find = func(n *goyaml.Node) *goyaml.Node {
		for i, child := range n.Content {
			if n.Kind == goyaml.MappingNode && i%2 == 0 && is(n, child) {
				return child
			}
			if key := find(child); key != nil {
				return key
			}
		}
		return nil
	}
	return find(&root)
}

// A transcoder reads block YAML line by line and writes JSON. It sets fail for
// anything else (anchors, tags, folded or multi-line text, other than simple flow collections,
// unusual numbers, anything but printable ASCII); its output is then invalid.
type transcoder struct {
	in   []byte
	next int    // offset of the line after the current one
	rest []byte // the current line from its column on
	col  int    // column of rest; -1 after the last line
	fail bool
	out  []byte
}

// transcode returns the JSON of a document with one node.
func transcode(doc []byte) ([]byte, bool) {
	if !isPlain(doc) {
		return nil, false
	}
	t := transcoder{in: doc, out: make([]byte, 0, len(doc))}
	t.advance()
	if t.col < 0 {
		return nil, false
	}
	t.node(0)
	if t.col >= 0 {
		t.fail = true
	}
	return t.out, !t.fail
}

// isPlain reports whether the text consists of lines of printable ASCII.
func isPlain(text []byte) bool {
	for _, c := range text {
		if (c < ' ' || c > '~') && c != '\n' {
			return false
		}
	}
	return true
}

// advance moves to the next line that is not blank or a comment. It copies each
// line break to the output.
func (t *transcoder) advance() {
	for t.next < len(t.in) && !t.fail {
		if t.next > 0 {
			t.out = append(t.out, '\n')
		}
		line := t.line()
		indent := indentation(line)
		if rest := line[indent:]; len(rest) > 0 && rest[0] != '#' {
			t.rest, t.col = rest, indent
			return
		}
	}
	t.rest, t.col = nil, -1
}

// line returns the next line without its line break.
func (t *transcoder) line() []byte {
	line := t.in[t.next:]
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end]
		t.next++
	}
	t.next += len(line)
	return line
}

func indentation(line []byte) int {
	for i, c := range line {
		if c != ' ' {
			return i
		}
	}
	return len(line)
}

// isDash reports whether a list item starts here.
func isDash(rest []byte) bool {
	return len(rest) > 0 && rest[0] == '-' && (len(rest) == 1 || rest[1] == ' ')
}

// node writes the list, mapping or scalar that starts at the current column.
func (t *transcoder) node(depth int) {
	if depth > 100 {
		t.fail = true
		return
	}
	if isDash(t.rest) {
		t.list(t.col, depth)
		return
	}
	if _, _, ok := splitKey(t.rest); ok {
		t.mapping(t.col, depth)
		return
	}
	t.scalar(t.rest)
	t.advance()
}

// list writes the list with dashes at col.
func (t *transcoder) list(col, depth int) {
	t.out = append(t.out, '[')
	for n := 0; t.col == col && isDash(t.rest) && !t.fail; n++ {
		if n > 0 {
			t.out = append(t.out, ',')
		}
		item := bytes.TrimLeft(t.rest[1:], " ")
		if len(item) > 0 && item[0] != '#' {
			t.col += len(t.rest) - len(item)
			t.rest = item
			t.node(depth + 1)
			continue
		}
		if t.advance(); t.col > col {
			t.node(depth + 1)
		} else {
			t.out = append(t.out, "null"...)
		}
	}
	t.out = append(t.out, ']')
	t.dedented(col)
}

// mapping writes the mapping with keys at col.
func (t *transcoder) mapping(col, depth int) {
	t.out = append(t.out, '{')
	for n := 0; t.col == col && !isDash(t.rest) && !t.fail; n++ {
		if n > 0 {
			t.out = append(t.out, ',')
		}
		key, rest, ok := splitKey(t.rest)
		if !ok {
			t.fail = true
			return
		}
		t.quote(key)
		t.out = append(t.out, ':')
		t.field(bytes.TrimLeft(rest, " "), col, depth)
	}
	t.out = append(t.out, '}')
	t.dedented(col)
}

// dedented fails if the line after a block at col is indented further.
func (t *transcoder) dedented(col int) {
	if t.col > col {
		t.fail = true
	}
}

// field writes the value after the colon of a key at col.
func (t *transcoder) field(rest []byte, col, depth int) {
	switch {
	case len(rest) > 0 && rest[0] == '|':
		t.literal(rest, col)
	case len(rest) > 0 && rest[0] != '#':
		t.scalar(rest)
		t.advance()
	default:
		t.advance()
		switch {
		case t.col > col:
			t.node(depth + 1)
		case t.col == col && isDash(t.rest):
			t.list(col, depth+1)
		default:
			t.out = append(t.out, "null"...)
		}
	}
}

// splitKey splits a mapping entry at the colon. It accepts only keys of a letter
// followed by characters of names, labels and annotations, so that the key is
// certainly a string.
func splitKey(line []byte) (key, rest []byte, ok bool) {
	if len(line) == 0 || !isLetter(line[0]) {
		return nil, nil, false
	}
	for i := 1; i < len(line) && i < 300; i++ {
		switch c := line[i]; {
		case c == ':' && (i+1 == len(line) || line[i+1] == ' '):
			return line[:i], line[i+1:], !isWord(line[:i])
		case isLetter(c), '0' <= c && c <= '9', c == '.', c == '/', c == '-', c == '_', c == ':':
		default:
			return nil, nil, false
		}
	}
	return nil, nil, false
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// isWord reports whether YAML 1.1 parses the word as a boolean or null.
func isWord(word []byte) bool {
	if len(word) > 5 {
		return false
	}
	switch strings.ToLower(string(word)) {
	case "y", "yes", "n", "no", "on", "off", "true", "false", "null":
		return true
	}
	return false
}

// scalar writes a value on one line.
func (t *transcoder) scalar(text []byte) {
	var after []byte
	switch text[0] {
	case '"':
		after = t.double(text)
	case '\'':
		after = t.single(text)
	case '{', '[':
		after = t.flow(text, 0)
	default:
		t.plain(text)
		return
	}
	if rest := bytes.TrimLeft(after, " "); len(rest) > 0 && (rest[0] != '#' || len(rest) == len(after)) {
		t.fail = true
	}
}

// flow writes a flow mapping or list on one line, and returns the rest. Its keys are those of block
// mappings, each once, and its unquoted texts are words.
func (t *transcoder) flow(text []byte, depth int) []byte {
	end := text[0] + 2
	t.out = append(t.out, text[0])
	rest := bytes.TrimLeft(text[1:], " ")
	var keys [][]byte
	for n := 0; len(rest) > 0 && depth < 100 && !t.fail; n++ {
		if rest[0] == end && n == 0 {
			t.out = append(t.out, end)
			return rest[1:]
		}
		if n > 0 {
			t.out = append(t.out, ',')
		}
		if end == '}' {
			key, value, ok := splitKey(rest)
			if rest = bytes.TrimLeft(value, " "); !ok || len(rest) == 0 || slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
				break
			}
			keys = append(keys, key)
			t.quote(key)
			t.out = append(t.out, ':')
		}
		rest = t.flowValue(rest, depth)
		if rest = bytes.TrimLeft(rest, " "); len(rest) > 0 && rest[0] == end {
			t.out = append(t.out, end)
			return rest[1:]
		}
		if len(rest) == 0 || rest[0] != ',' {
			break
		}
		rest = bytes.TrimLeft(rest[1:], " ")
	}
	t.fail = true
	return nil
}

// flowValue writes a value in a flow mapping or list, and returns the rest.
func (t *transcoder) flowValue(text []byte, depth int) []byte {
	switch text[0] {
	case '"':
		return t.double(text)
	case '\'':
		return t.single(text)
	case '{', '[':
		return t.flow(text, depth+1)
	}
	word := len(text) - len(bytes.TrimLeftFunc(text, isOfWord))
	if word == 0 {
		t.fail = true
		return nil
	}
	t.plain(text[:word])
	return text[word:]
}

// isOfWord reports whether a character of an unquoted text has no meaning in YAML.
func isOfWord(c rune) bool {
	return c < 0x80 && isLetter(byte(c)) || '0' <= c && c <= '9' || strings.ContainsRune("./-_", c)
}

// double writes a double-quoted text and returns the rest. It accepts only
// escapes that are equal in JSON.
func (t *transcoder) double(text []byte) []byte {
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			t.out = append(t.out, text[:i+1]...)
			return text[i+1:]
		case c == '\\':
			if i++; i == len(text) || strings.IndexByte(`"\nt`, text[i]) < 0 {
				t.fail = true
				return nil
			}
		}
	}
	t.fail = true
	return nil
}

// single writes a single-quoted text without escapes and returns the rest.
func (t *transcoder) single(text []byte) []byte {
	end := bytes.IndexByte(text[1:], '\'')
	if end < 0 || bytes.HasPrefix(text[end+2:], []byte("'")) {
		t.fail = true
		return nil
	}
	t.quote(text[1 : end+1])
	return text[end+2:]
}

// plain writes an unquoted text.
func (t *transcoder) plain(text []byte) {
	if i := bytes.Index(text, []byte(" #")); i >= 0 {
		text = text[:i]
	}
	text = bytes.TrimRight(text, " ")
	if text[len(text)-1] == ':' || bytes.Contains(text, []byte(": ")) {
		t.fail = true
		return
	}
	switch c := text[0]; {
	case string(text) == "true", string(text) == "false", string(text) == "null":
		t.out = append(t.out, text...)
	case isInt(text):
		t.out = append(t.out, text...)
	case isLetter(c) && !isWord(text), c == '/', '0' <= c && c <= '9' && isNotNumber(text):
		t.quote(text)
	default:
		t.fail = true
	}
}

// isInt reports whether the text is an integer in both YAML and JSON.
func isInt(text []byte) bool {
	digits := bytes.TrimPrefix(text, []byte("-"))
	if len(digits) == 0 || len(digits) > 18 || digits[0] == '0' && len(text) > 1 {
		return false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// isNotNumber reports whether a text that starts with a digit is certainly a
// string: an address, a CIDR, a time, an identifier, a quantity.
func isNotNumber(text []byte) bool {
	dots, dashes := 0, 0
	for _, c := range text {
		switch c {
		case '.':
			dots++
		case '-':
			dashes++
		case ':', '/', 'g', 'h', 'i', 'k', 'm', 's', 'z', 'G', 'K', 'M', 'T', 'Z':
			return true
		}
	}
	return dots > 1 || dashes > 1
}

// literal writes the text of a | block under a key at col. The indentation of its
// first line determines its end.
func (t *transcoder) literal(header []byte, col int) {
	header = bytes.TrimRight(header, " ")
	strip := string(header) == "|-"
	if !strip && string(header) != "|" {
		t.fail = true
		return
	}
	var text []byte
	indent, breaks := 0, 0
	for t.next < len(t.in) {
		at := t.next
		line := t.line()
		n := indentation(line)
		if indent == 0 {
			if indent = n; n <= col || n == len(line) { // leading blank lines are not supported
				t.fail = true
				return
			}
		}
		if n < indent && n < len(line) {
			t.next = at
			break
		}
		breaks++
		text = append(text, line[min(indent, len(line)):]...)
		text = append(text, '\n')
	}
	if len(text) == 0 || t.in[t.next-1] != '\n' {
		t.fail = true
		return
	}
	text = bytes.TrimRight(text, "\n")
	if !strip {
		text = append(text, '\n')
	}
	t.quote(text)
	for range breaks {
		t.out = append(t.out, '\n')
	}
	t.advance()
}

// quote writes a text as a JSON string.
func (t *transcoder) quote(text []byte) {
	t.out = append(t.out, '"')
	for _, c := range text {
		switch {
		case c == '\n':
			t.out = append(t.out, '\\', 'n')
		case c == '"' || c == '\\':
			t.out = append(t.out, '\\', c)
		default:
			t.out = append(t.out, c)
		}
	}
	t.out = append(t.out, '"')
}
