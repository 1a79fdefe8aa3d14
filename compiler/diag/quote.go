package diag

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxQuoted is the maximum number of bytes of a value in a message. An
// annotation may have 256 KiB, and each message is in the log of every node.
const maxQuoted = 100

// Quote quotes a value of the input for a message, in Go syntax. It truncates a
// long value and appends its length.
func Quote(value string) string {
	head, rest := cut(value)
	return strconv.Quote(head) + rest
}

// Short is Quote without the quotes.
func Short(value string) string {
	head, rest := cut(value)
	return head + rest
}

// cut truncates a long value. rest states its length in bytes.
func cut(value string) (head, rest string) {
	if len(value) <= maxQuoted {
		return value, ""
	}
	n := maxQuoted
	for n > maxQuoted-utf8.UTFMax && !utf8.RuneStart(value[n]) {
		n--
	}
	return value[:n], fmt.Sprintf("… (%d bytes)", len(value))
}
