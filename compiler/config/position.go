package config

import (
	"bytes"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// position is a line and a column in bytes, both from 1.
type position struct{ line, column int }

// placeIn returns a function for the position of a node in a text. A node without
// a column is at the first non-blank character of its line. The parser counts
// characters, not bytes.
func placeIn(data []byte) func(*yaml.Node) position {
	lines := bytes.Split(data, []byte("\n"))
	return func(n *yaml.Node) position {
		pos := position{n.Line, n.Column}
		if n.Line < 1 || n.Line > len(lines) {
			return position{n.Line, max(1, n.Column)}
		}
		line := lines[n.Line-1]
		if n.Column < 1 {
			pos.column = 1 + len(line) - len(bytes.TrimLeft(line, " \t"))
			return pos
		}
		pos.column = 1
		for range n.Column - 1 {
			if pos.column > len(line) {
				break
			}
			_, size := utf8.DecodeRune(line[pos.column-1:])
			pos.column += size
		}
		return pos
	}
}
