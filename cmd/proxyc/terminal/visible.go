// Package terminal writes for people: it shows colors and progress, and escapes invisible
// characters.
package terminal

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer escapes control characters other than line breaks and tabs, and characters that change the
// direction of text or hide in it. Names and settings come from other people, and the terminal must
// show them as they are. The escapes are those of JSON, so JSON stays equivalent. It can color lines, and
// fit them to a width. It is safe for concurrent use.
type Writer struct {
	mu       sync.Mutex
	w        io.Writer
	coloured bool
	columns  int    // 0: lines may have any length
	rest     []byte // incomplete line, or start of an incomplete character if lines stay as they are
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Format defines whether later lines are colored, and how long they are.
func (v *Writer) Format(coloured bool, columns int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.coloured, v.columns = coloured, columns
}

func (v *Writer) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines := v.coloured || v.columns > 0
	if len(v.rest) == 0 && !lines && isPlain(p) {
		return v.w.Write(p)
	}
	text := append(v.rest, p...)
	end := bytes.LastIndexByte(text, '\n') + 1
	if !lines {
		end = len(text) - incomplete(text)
	}
	v.rest = slices.Clone(text[end:])
	if _, err := v.w.Write(v.shown(text[:end])); err != nil {
		return 0, err
	}
	return len(p), nil
}

// End writes buffered text.
func (v *Writer) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.w.Write(v.shown(v.rest)) // an error recurs from earlier text
	v.rest = nil
}

// shown returns a text with escapes, colors and breaks of long lines.
func (v *Writer) shown(text []byte) (out []byte) {
	for line := range bytes.Lines(escaped(text)) {
		for line := range bytes.Lines(fitted(line, v.columns)) {
			if v.coloured {
				line = painted(line)
			}
			out = append(out, line...)
		}
	}
	return out
}

// incomplete returns the number of bytes at the end of a text that begin a character.
func incomplete(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if last := text[len(text)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}

func escaped(text []byte) []byte {
	out := make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, text[0])
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			out = append(out, text[:size]...)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
		text = text[size:]
	}
	return out
}

// isPlain reports whether a text is printable ASCII with line breaks, which is the usual case.
func isPlain(p []byte) bool {
	return !bytes.ContainsFunc(p, func(c rune) bool { return (c < ' ' || c > '~') && c != '\n' && c != '\t' })
}
