package diag

import "bytes"

// tabIndents is what the YAML parser says of a tab in the indentation of a line that
// goes on with a value. It names the line where the value begins.
const tabIndents = "found a tab character that violates indentation"

// NoToken is what the YAML parser says of a tab, and of @, ` and %, where something
// begins. It may name the line before.
const NoToken = "found character that cannot start any token"

// Tab is what is wrong where a tab indents a line.
const Tab = "a tab indents the line: use spaces"

// TabOf returns where the tab stands that an error of the YAML parser at a line is about: line
// and column from 1. ok is false if it is about something else.
func TabOf(text []byte, from int, msg string) (line, column int, ok bool) {
	line, column = tabAt(text, from)
	return line, column, column > 0 && (msg == tabIndents || msg == NoToken && line <= from+1)
}

// tabAt returns where the first tab in an indentation stands, from a line on: line and
// column from 1. Without one it returns that line, and column 0.
func tabAt(text []byte, from int) (line, column int) {
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
