package manifest

import (
	"bytes"
	"regexp"
	"strings"
)

// A part is a section of a file that is decoded separately: a JSON object that is
// not a List, an item of a YAML List, or a YAML document.
type part struct {
	leaf             // of JSON; for an item of a YAML List only the List's type and the index
	doc       int    // 1-based number of the document
	yaml      []byte // a document, or an item with its dash
	item      bool
	problem   string // error at start, if nothing can be decoded
	truncated bool   // with a problem: a truncated text, of which nothing is used

	indexed bool
	lines   [][]byte // lines of yaml, set on first use if byte and character columns differ
}

// split splits a file into parts. It examines only lines, brackets and strings,
// so that the parts can be decoded in parallel.
func split(data []byte) []part {
	var parts []part
	doc := 0
	for start := 0; start < len(data); {
		end, next := endOf(data, start)
		line, body := significant(data[:end], start)
		switch {
		case body < end && isJSON(data[body:end]):
			parts = splitJSON(parts, &doc, data[:end], body)
		case body < end:
			doc++
			parts = splitYAML(parts, doc, data[line:end], line)
		case start > 0: // an empty document; there is none before the first separator
			doc++
		}
		start = next
	}
	return parts
}

// IsEmpty reports whether a file contains at most comments and empty documents. A
// List without items is not empty.
func IsEmpty(data []byte) bool {
	data = plainLines(data)
	for start := 0; start < len(data); {
		line, sign := significant(data, start)
		if sign == len(data) {
			break
		}
		if sign > line || !isMarker(data[sign:]) {
			return false
		}
		start = sign + len("---")
	}
	return true
}

// plainLines returns the text without a byte order mark and with line feeds as
// line breaks. YAML treats all line breaks alike, and JSON ignores them.
func plainLines(data []byte) []byte {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.Contains(data, []byte("\u0085")) || bytes.Contains(data, []byte("\u2028")) || bytes.Contains(data, []byte("\u2029")) {
		data = comments.ReplaceAllFunc(data, func(line []byte) []byte { return breaks.ReplaceAll(line, []byte("\n")) })
	}
	if bytes.IndexByte(data, '\r') < 0 {
		return data
	}
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
}

// comments matches comments that contain other line breaks of YAML 1.1, which breaks matches: text may follow.
var (
	breaks   = regexp.MustCompile(`\x{85}|\x{2028}|\x{2029}`)
	comments = regexp.MustCompile(`(?m)^[ \t]*#.*(\x{85}|\x{2028}|\x{2029}).*$`)
)

// Markers of the container logs that kubectl cluster-info dump prints among the
// objects.
const (
	logStart = "==== START logs for container "
	logEnd   = "==== END logs for container "
)

// withoutLogs empties the lines of logs in the output of kubectl cluster-info
// dump. Line numbers do not change.
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

// endOf returns the offset of the next line from start on that begins with --- or
// ..., and the offset after these three characters.
func endOf(data []byte, start int) (end, next int) {
	for at := start; at < len(data); {
		if isMarker(data[at:]) {
			return at, at + 3
		}
		length := bytes.IndexByte(data[at:], '\n')
		if length < 0 {
			break
		}
		at += length + 1
	}
	return len(data), len(data)
}

func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || line[3] == '\n' || line[3] == ' ' || line[3] == '\t'
}

// significant returns the offset of the first character from start on that is not
// in a blank line, a comment or a directive, and the offset of its line.
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

// isJSON distinguishes JSON from YAML in flow style, which may also start with a
// brace or bracket.
func isJSON(text []byte) bool {
	rest := bytes.TrimLeft(text[1:], " \t\n")
	switch {
	case text[0] == '/': // a comment, which JSON does not allow
		return len(rest) > 0 && (rest[0] == '/' || rest[0] == '*')
	case text[0] == '[':
		return len(rest) > 0 && (rest[0] == ']' || rest[0] == '{' && isJSON(rest))
	case text[0] != '{':
		return false
	}
	return len(rest) == 0 || rest[0] == '"' || rest[0] == '}' || rest[0] == '/'
}

// ignoredText ends the message about a text that cannot be read.
const ignoredText = "; it is ignored completely"

// splitJSON splits a sequence of JSON objects and arrays into parts.
func splitJSON(parts []part, doc *int, data []byte, start int) []part {
	s := scanner{reader: newReader(data[start:])}
	for s.next() < len(s.data) {
		*doc++
		s.leaves, s.index = s.leaves[:0], s.index[:0]
		if err := s.document(); err != nil {
			at, msg, truncated := invalid(err)
			return append(parts, part{leaf: leaf{start: start + at}, doc: *doc, problem: msg, truncated: truncated})
		}
		for _, l := range s.leaves {
			l.start += start
			parts = append(parts, part{leaf: l, doc: *doc})
		}
	}
	return parts
}

// splitYAML splits a YAML document into the items of its List, if it is a List in
// block style.
func splitYAML(parts []part, doc int, text []byte, start int) []part {
	items, list := listItems(text)
	if list == nil {
		if truncated := truncation(text, items); truncated != "" {
			return append(parts, part{leaf: leaf{start: start + len(text)}, doc: doc, problem: truncated + ignoredText, truncated: true})
		}
		return append(parts, part{leaf: leaf{start: start}, doc: doc, yaml: text})
	}
	for i, item := range items {
		l := []leaf{{start: start + item[0], index: []int{i}}}
		inherit(l, list, 0)
		parts = append(parts, part{leaf: l[0], doc: doc, yaml: text[item[0]:item[1]], item: true})
	}
	return parts
}

// truncation returns a message if the end of a List is missing, or "". kubectl and oc
// write the apiVersion of a List before the items, and the kind after them.
func truncation(text []byte, items [][2]int) string {
	if len(items) == 0 {
		return ""
	}
	head, tail := text[:items[0][0]], text[items[len(items)-1][1]:]
	if !bytes.Contains(append([]byte("\n"), head...), []byte("\napiVersion:")) {
		return ""
	}
	for _, around := range [][]byte{head, tail} {
		for line := range bytes.Lines(around) {
			if bytes.HasPrefix(line, []byte("kind:")) && bytes.HasSuffix(line, []byte("\n")) {
				return ""
			}
		}
	}
	return "cut off: the List ends before its kind, which follows the items"
}

// listItems returns the start and end of each item of a List, and the List's
// type. The List is nil if the document is not a List or must be parsed as a
// whole.
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
		case len(bytes.TrimLeft(rest, " ")) == 0, rest[0] == '#', indent > col: // the item continues
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

// hasAnchor reports whether the text may contain an anchor, by which one item can
// refer to a part of another.
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

// findItems returns the offset of the first item line after "items:", or -1.
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
	if line, _, _ = bytes.Cut(rest[indentation(rest):], []byte("\n")); !isDash(line) {
		return -1
	}
	return at
}

// listOf parses the text around the items and returns the type of the List.
func listOf(head, tail []byte) *leaf {
	text, _, err := toJSON(bytes.Join([][]byte{head, tail}, []byte("\n")))
	if err != nil {
		return nil
	}
	leaves, err := scanLeaves(text)
	if err != nil || len(leaves) != 1 || !strings.HasSuffix(leaves[0].kind, "List") {
		return nil
	}
	return &leaves[0]
}
