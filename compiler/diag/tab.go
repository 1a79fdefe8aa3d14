package diag

import "bytes"

// tabIndents is the YAML parser's error for a tab in the indentation of a
// continued value. It refers to the first line of the value.
const tabIndents = "found a tab character that violates indentation"

// NoToken is the YAML parser's error for a tab, @, ` or % at the beginning of a
// token. It may refer to the line before.
const NoToken = "found character that cannot start any token"

// Tab is the message for a tab in an indentation.
const Tab = "a tab indents the line: use spaces"

// TabOf returns the position of the tab that caused a YAML error at line from,
// with line and column from 1. ok is false if the error has another cause.
func TabOf(text []byte, from int, msg string) (line, column int, ok bool) {
	line, column = tabAt(text, from)
	return line, column, column > 0 && (msg == tabIndents || msg == NoToken && line <= from+1)
}

// tabAt returns the position of the first tab in an indentation at or after line
// from, with line and column from 1. If there is none, column is 0.
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
