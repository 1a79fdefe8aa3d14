package snapshot

import (
	"bytes"
	"errors"
)

// A part is a piece of a file that is decoded by itself: a JSON object that
// is not a List, an item of a YAML List, or a YAML document.
type part struct {
	leaf           // of JSON; of an item of a YAML List: type and index, as far as the List tells
	doc     int    // 1-based number of the document
	yaml    []byte // a document, or an item with its dash
	item    bool
	closed  bool   // more of the List follows its last item: that is all of it
	problem string // what is wrong at start, where there is nothing to decode
	lost    bool   // with a problem: nothing is taken of a text that has an end, and lacks it

	looked bool
	lines  [][]byte // of yaml, once looked at, where columns in bytes are not those in characters
}

// split takes a file apart. It looks at lines, brackets and strings, not at
// what they say, so that the parts can be decoded side by side.
func split(data []byte) []part {
	var parts []part
	doc := 0
	ends := endsOf(data)
	for start := 0; start < len(data); {
		end, next := ends.after(start)
		line, body := significant(data[:end], start)
		switch {
		case body < end && isJSON(data[body:end]):
			parts = splitJSON(parts, &doc, data[:end], body)
		case body < end:
			doc++
			parts = splitYAML(parts, doc, data[line:end], line)
		case start > 0: // an empty document; before the first separator there is none
			doc++
		}
		start = next
	}
	return parts
}

// plainLines returns the text without byte order mark and with line feeds for
// line breaks, which is what YAML makes of them, and JSON does not care.
func plainLines(data []byte) []byte {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.IndexByte(data, '\r') < 0 {
		return data
	}
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
}

// Lines between which kubectl cluster-info dump prints the log of a container,
// among the objects.
const (
	logStart = "==== START logs for container "
	logEnd   = "==== END logs for container "
)

// withoutLogs empties the lines of the logs in what kubectl cluster-info dump
// prints. No line moves.
func withoutLogs(data []byte) []byte {
	if !bytes.HasPrefix(data, []byte(logStart)) && !bytes.Contains(data, []byte("\n"+logStart)) {
		return data
	}
	out := make([]byte, 0, len(data))
	inLog := false
	for line := range bytes.Lines(data) {
		inLog = inLog || bytes.HasPrefix(line, []byte(logStart))
		if !inLog {
			out = append(out, line...)
			continue
		}
		out = append(out, '\n')
		inLog = !bytes.HasPrefix(line, []byte(logEnd))
	}
	return out
}

// ends finds the ends of documents. Not line by line: the search for a sign
// goes at the speed of memory.
type ends struct {
	data         []byte
	dashes, dots marks
}

func endsOf(data []byte) ends {
	return ends{data, marks{sign: "\n---"}, marks{sign: "\n..."}}
}

// after finds the next line that starts with --- or ... and returns where it and
// what follows its three signs start.
func (e *ends) after(start int) (end, next int) {
	for at := start; at < len(e.data); {
		if isMarker(e.data[at:]) {
			return at, at + 3
		}
		if at = min(e.dashes.next(e.data, at), e.dots.next(e.data, at)); at < len(e.data) {
			at++
		}
	}
	return len(e.data), len(e.data)
}

// marks finds a sign again and again. What it found stays good until it is passed.
type marks struct {
	sign   string
	at     int
	known  bool
	looked int // bytes that this took
}

// next returns where the sign stands at or after an offset, the end of data if it does not.
func (m *marks) next(data []byte, from int) int {
	if m.known && m.at >= from {
		return m.at
	}
	m.at, m.known = len(data), true
	if i := bytes.Index(data[from:], []byte(m.sign)); i >= 0 {
		m.at = from + i
	}
	m.looked += m.at - from
	return m.at
}

func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || line[3] == '\n' || line[3] == ' ' || line[3] == '\t'
}

// significant returns the offsets of the first sign from start on that is not of
// a blank line, a comment or a directive, and of its line.
func significant(data []byte, start int) (line, sign int) {
	for line = start; line < len(data); {
		text := data[line:]
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			text = text[:end+1]
		}
		rest := bytes.TrimLeft(text, " \t\n")
		if len(rest) > 0 && rest[0] != '#' && text[0] != '%' {
			return line, line + len(text) - len(rest)
		}
		line += len(text)
	}
	return line, line
}

// isJSON distinguishes JSON from YAML in flow style, which may start with a brace or
// bracket too.
func isJSON(text []byte) bool {
	rest := bytes.TrimLeft(text[1:], " \t\n")
	switch {
	case text[0] == '[':
		return len(rest) > 0 && (rest[0] == ']' || rest[0] == '{' && isJSON(rest))
	case text[0] != '{':
		return false
	}
	return len(rest) == 0 || rest[0] == '"' || rest[0] == '}'
}

// nothingTaken ends what is said of text that has an end, and lacks it.
const nothingTaken = "; nothing of it is taken"

// splitJSON takes JSON objects and arrays apart, of which any number may follow one another.
func splitJSON(parts []part, doc *int, data []byte, start int) []part {
	s := scanner{data: data, pos: start}
	for s.space(); s.pos < len(data); s.space() {
		*doc++
		s.leaves, s.index = s.leaves[:0], s.index[:0]
		var err error
		if c := s.peek(); c == '{' || c == '[' {
			err = s.document()
		} else {
			err = s.unexpected("after the object")
		}
		syntax := (*syntaxError)(nil)
		if errors.As(err, &syntax) && syntax.cut {
			return append(parts, part{leaf: leaf{start: syntax.offset}, doc: *doc, problem: syntax.Error() + nothingTaken, lost: true})
		}
		for _, l := range s.leaves {
			parts = append(parts, part{leaf: l, doc: *doc})
		}
		if syntax != nil {
			return append(parts, part{leaf: leaf{start: syntax.offset}, doc: *doc, problem: syntax.Error()})
		}
	}
	return parts
}

// splitYAML takes the List in a YAML document apart, if it is one in block style.
func splitYAML(parts []part, doc int, text []byte, start int) []part {
	items, list := listItems(text)
	if list == nil {
		if cut := cutOff(text, items); cut != "" {
			return append(parts, part{leaf: leaf{start: start + len(text)}, doc: doc, problem: cut + nothingTaken, lost: true})
		}
		return append(parts, part{leaf: leaf{start: start}, doc: doc, yaml: text})
	}
	closed := len(items) > 0 && len(bytes.TrimSpace(text[items[len(items)-1][1]:])) > 0
	for i, item := range items {
		l := []leaf{{start: start + item[0], index: []int{i}}}
		inherit(l, list, 0)
		parts = append(parts, part{leaf: l[0], doc: doc, yaml: text[item[0]:item[1]], item: true, closed: closed})
	}
	return parts
}

// cutOff returns what is missing at the end of a List, or nothing: kubectl and oc
// write its kind behind the items.
func cutOff(text []byte, items [][2]int) string {
	if len(items) == 0 {
		return ""
	}
	head, tail := text[:items[0][0]], text[items[len(items)-1][1]:]
	for _, around := range [][]byte{head, tail} {
		for line := range bytes.Lines(around) {
			if bytes.HasPrefix(line, []byte("kind:")) && bytes.HasSuffix(line, []byte("\n")) {
				return ""
			}
		}
	}
	return "cut off: the List ends before its kind, which stands behind the items"
}

// listItems finds the items of a List: where each starts and ends, and the
// List's own type. The List is nil if the document is something else, or so
// written that it is better read as a whole.
func listItems(text []byte) (items [][2]int, list *leaf) {
	first := findItems(text)
	if first < 0 || hasAnchor(text) {
		return nil, nil
	}
	col := indentation(text[first:])
	end := first
	for end < len(text) {
		line := text[end:]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line = line[:i+1]
		}
		indent := min(indentation(line), col+1)
		rest := bytes.TrimRight(line[indent:], "\n")
		switch {
		case len(bytes.TrimLeft(rest, " ")) == 0, rest[0] == '#', indent > col: // the item goes on
		case indent == col && isDash(rest):
			items = append(items, [2]int{end, 0})
		default:
			return closeItems(items, end), listOf(text[:first], text[end:])
		}
		end += len(line)
	}
	return closeItems(items, end), listOf(text[:first], nil)
}

func closeItems(items [][2]int, end int) [][2]int {
	for i := range items {
		items[i][1] = end
		if i+1 < len(items) {
			items[i][1] = items[i+1][0]
		}
	}
	return items
}

// hasAnchor reports whether the text may have an anchor, by which one item can
// stand for a piece of another.
func hasAnchor(text []byte) bool {
	for at := 0; ; at++ {
		i := bytes.IndexByte(text[at:], '&')
		if i < 0 {
			return false
		}
		if at += i; at == 0 || bytes.IndexByte([]byte(" \n\t,[{"), text[at-1]) >= 0 {
			return true
		}
	}
}

// findItems returns the offset of the first line after "items:" that is an
// item, or -1.
func findItems(text []byte) int {
	const key = "\nitems:"
	at := bytes.Index(text, []byte(key))
	if bytes.HasPrefix(text, []byte(key[1:])) {
		at = -1
	} else if at < 0 {
		return -1
	}
	at += len(key)
	line, rest, ok := bytes.Cut(text[at:], []byte("\n"))
	if !ok || len(bytes.TrimLeft(line, " ")) > 0 {
		return -1
	}
	at += len(line) + 1
	if !isDash(bytes.TrimRight(firstLine(rest[indentation(rest):]), "\n")) {
		return -1
	}
	return at
}

func firstLine(text []byte) []byte {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return line
}

// listOf reads what stands around the items and returns the type of the List.
func listOf(head, tail []byte) *leaf {
	text, _, err := toJSON(bytes.Join([][]byte{head, tail}, []byte("\n")))
	if err != nil {
		return nil
	}
	leaves, err := scanLeaves(text)
	if err != nil || len(leaves) != 1 || !isListKind(leaves[0].kind) {
		return nil
	}
	return &leaves[0]
}
