// Package terminal writes for people: it shows colors and progress, and escapes invisible
// characters.
package terminal

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// visible is a Writer that escapes control characters other than line breaks and tabs, and
// characters that change the direction of text or hide in it. Names and settings come from other
// people, and the terminal must show them as they are. The escapes are those of JSON, so JSON stays
// equivalent. It is safe for concurrent use.
type visible struct {
	mu   sync.Mutex
	w    io.Writer
	held []byte // start of an incomplete character
}

// NewVisible returns a visible that writes to w.
func NewVisible(w io.Writer) *visible { return &visible{w: w} }

func (v *visible) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.held) == 0 && isPlain(p) {
		return v.w.Write(p)
	}
	text := append(v.held, p...)
	out := make([]byte, 0, len(text)+16)
	for len(text) > 0 && utf8.FullRune(text) {
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
	v.held = append([]byte(nil), text...)
	if _, err := v.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// End writes buffered text.
func (v *visible) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.held {
		fmt.Fprintf(v.w, `\x%02x`, c) // the text is invalid in any case
	}
	v.held = nil
}

// isPlain reports whether a text is printable ASCII with line breaks, which is the usual case.
func isPlain(p []byte) bool {
	for _, c := range p {
		if (c < ' ' || c > '~') && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}
