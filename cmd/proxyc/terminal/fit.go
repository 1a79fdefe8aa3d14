package terminal

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	// origin is the end of a line that names an object and a field, or a position.
	origin = regexp.MustCompile(`\s+(# \S.*)$`)
	// column is the start of a line up to its last column, as in a list of flags.
	column = regexp.MustCompile(`^ {0,8}\S.{0,36}?\S {2,}`)
	// copied are commands that readers copy.
	copied = regexp.MustCompile(`^\s*(proxyc|kubectl|conntrack|nft|ip6?tables|sysctl) `)
)

// fitted breaks a line between words, so that each part has at most so many columns: its origin and each
// field behind a tab have lines of their own, and further parts are indented. Longer words are not broken.
// 0 columns have no limit.
func fitted(line []byte, columns int) []byte {
	text := strings.TrimRight(string(line), "\n")
	if columns == 0 || utf8.RuneCountInString(text) <= columns || copied.MatchString(text) {
		return line
	}
	indent := strings.Repeat(" ", len(text)-len(strings.TrimLeft(text, " "))+4)
	note := ""
	if m := origin.FindStringSubmatchIndex(text); m != nil && m[0] > 0 {
		text, note = text[:m[0]], text[m[2]:]
	}
	text, fields, _ := strings.Cut(text, "\t")
	hanging := indent
	if first := column.FindString(text); first != "" && 2*len(first) < columns {
		hanging = strings.Repeat(" ", utf8.RuneCountInString(first))
	}
	out := bytes.NewBuffer(broken(nil, text, hanging, columns))
	for field := range strings.FieldsFuncSeq(fields, func(r rune) bool { return r == '\t' }) {
		out.Write(broken([]byte(indent), field, indent, columns))
	}
	if note != "" {
		out.Write(broken([]byte(indent), note, indent+"# ", columns))
	}
	if !bytes.HasSuffix(line, []byte("\n")) {
		out.Truncate(out.Len() - 1)
	}
	return out.Bytes()
}

// broken appends the lines of a text to the start of the first one. Others begin with hanging.
func broken(out []byte, text, hanging string, columns int) []byte {
	width := utf8.RuneCount(out)
	for i, word := range strings.SplitAfter(text, " ") {
		if n := utf8.RuneCountInString(strings.TrimRight(word, " ")); i > 0 && word != " " && width+n > columns && width > len(hanging) {
			out = append(append(bytes.TrimRight(out, " "), '\n'), hanging...)
			width = len(hanging)
		}
		out = append(out, word...)
		width += utf8.RuneCountInString(word)
	}
	return append(bytes.TrimRight(out, " "), '\n')
}
