package diag

import "bytes"

// TabIndents is what the YAML parser says of a tab in the indentation of a line that
// goes on with a value. It names the line where the value begins.
const TabIndents = "found a tab character that violates indentation"

// TabAt returns where the first tab in an indentation stands, from a line on: line and
// column from 1. Without one it returns that line, and column 0.
func TabAt(text []byte, from int) (line, column int) {
	for of := range bytes.Lines(text) {
		if line++; line < from {
			continue
		}
		indent := of[:len(of)-len(bytes.TrimLeft(of, " \t"))]
		if tab := bytes.IndexByte(indent, '\t'); tab >= 0 {
			return line, tab + 1
		}
	}
	return from, 0
}
