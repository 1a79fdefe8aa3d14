// Package terminal writes for people: it shows colours and progress, and escapes what would hide in a text.
package terminal

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// visible is a Writer through which no control character passes but line break
// and tab, nor what turns the direction of text or hides in it: names and
// settings come from others, and what is on a terminal must be what is meant.
// Such characters are escaped as in JSON, so that JSON stays what it was. It is
// safe for concurrent use.
type visible struct {
	mu   sync.Mutex
	w    io.Writer
	held []byte // the beginning of a character
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

// End writes what was held back.
func (v *visible) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.held {
		fmt.Fprintf(v.w, `\x%02x`, c) // an error is that of a text that is broken anyway
	}
	v.held = nil
}

// isPlain reports whether a text is printable ASCII in lines, as nearly all is.
func isPlain(p []byte) bool {
	for _, c := range p {
		if (c < ' ' || c > '~') && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}
