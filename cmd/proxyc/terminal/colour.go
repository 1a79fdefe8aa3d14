package terminal

import (
	"regexp"
	"slices"
	"sync"
)

// Colors of terminals (ECMA-48, "select graphic rendition").
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

// A paint colors the first group of its match in a line. Colors only repeat information of words or
// signs.
type paint struct {
	line   *regexp.Regexp
	colour string
}

// paints returns all of them. Most runs have no terminal, and then compile none.
var paints = sync.OnceValue(func() []paint {
	return []paint{
		{regexp.MustCompile(`^(error|-)[: ]`), red},
		{regexp.MustCompile(`^(proxyc): `), red},
		{regexp.MustCompile(`^(warning|~)[: ]`), yellow},
		{regexp.MustCompile(`^(info):`), faint},
		{regexp.MustCompile(`^(ok|\+)[: ]`), green},
		{regexp.MustCompile(`(?m)^ +(=> (?:dropped|rejected|refused)\b.*)$`), red},
		{regexp.MustCompile(`(?m)^ +(=> not \b.*)$`), yellow},
		{regexp.MustCompile(`(?m)^ +(=> .*)$`), green},
		{regexp.MustCompile(`^(equal|holds): `), green},
		{regexp.MustCompile(`^(different|not provable|violated|not checked)\b`), red},
		{regexp.MustCompile(`(?m) (# .*)$`), faint},
	}
})

// painted returns a line in color.
func painted(line []byte) []byte {
	for _, paint := range paints() {
		if m := paint.line.FindSubmatchIndex(line); m != nil {
			return slices.Concat(line[:m[2]], []byte("\x1b["+paint.colour+"m"), line[m[2]:m[3]], []byte("\x1b[0m"), line[m[3]:])
		}
	}
	return line
}

// WantsColours reports whether the environment allows colors on a terminal (no-color.org).
func WantsColours(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
