package terminal

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"sync"
)

// Colours of terminals (ECMA-48, "select graphic rendition").
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

// A paint colours what its first group matches in a line. Colours repeat what words or
// signs say.
type paint struct {
	line   *regexp.Regexp
	colour string
}

var paints = []paint{
	{regexp.MustCompile(`^(error)[: ]`), red},
	{regexp.MustCompile(`^(proxyc): `), red},
	{regexp.MustCompile(`^(warning)[: ]`), yellow},
	{regexp.MustCompile(`^(info):`), faint},
	{regexp.MustCompile(`^(ok)[: ]`), green},
	{regexp.MustCompile(`(?m)^ +(=> (?:dropped|rejected|refused)\b.*)$`), red},
	{regexp.MustCompile(`(?m)^ +(=> not \b.*)$`), yellow},
	{regexp.MustCompile(`(?m)^ +(=> .*)$`), green},
	{regexp.MustCompile(`^(\+) `), green},
	{regexp.MustCompile(`^(-) `), red},
	{regexp.MustCompile(`^(~) `), yellow},
	{regexp.MustCompile(`^(equal): `), green},
	{regexp.MustCompile(`^(different|not provable)\b`), red},
	{regexp.MustCompile(`(?m) (# .*)$`), faint},
}

// painter is a Writer that colours lines. It is safe for concurrent use.
type painter struct {
	mu   sync.Mutex
	w    io.Writer
	on   bool
	rest []byte // of a line that has not ended
}

// NewPainter returns a painter that writes to w. It colours nothing before Begin.
func NewPainter(w io.Writer) *painter { return &painter{w: w} }

func (p *painter) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on {
		return p.w.Write(text)
	}
	lines := append(p.rest, text...)
	end := bytes.LastIndexByte(lines, '\n') + 1
	var out []byte
	for line := range bytes.Lines(lines[:end]) {
		out = append(out, painted(line)...)
	}
	p.rest = slices.Clone(lines[end:])
	if _, err := p.w.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

// End writes what was held back.
func (p *painter) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.w.Write(painted(p.rest)) // an error is that of the lines before it
	p.rest = nil
}

// Begin begins to colour.
func (p *painter) Begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = true
}

func painted(line []byte) []byte {
	for _, paint := range paints {
		if m := paint.line.FindSubmatchIndex(line); m != nil {
			return slices.Concat(line[:m[2]], []byte("\x1b["+paint.colour+"m"), line[m[2]:m[3]], []byte("\x1b[0m"), line[m[3]:])
		}
	}
	return line
}

// WantsColours reports whether a terminal is to have them (no-color.org).
func WantsColours(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
