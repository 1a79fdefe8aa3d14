package diag

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// mostQuoted is how many bytes of a value a message has: enough to know it by. An annotation
// may have 256 KiB, and each message stands in the log of every node.
const mostQuoted = 100

// Quote quotes a value of the input for a message, as Go does. Of a long one it is the beginning,
// with how many bytes there are.
func Quote(value string) string {
	head, rest := cut(value)
	return strconv.Quote(head) + rest
}

// Short is Quote without the quotes.
func Short(value string) string {
	head, rest := cut(value)
	return head + rest
}

// cut returns the beginning of a long value and what is said of the rest.
func cut(value string) (head, rest string) {
	if len(value) <= mostQuoted {
		return value, ""
	}
	n := mostQuoted
	for n > mostQuoted-utf8.UTFMax && !utf8.RuneStart(value[n]) {
		n--
	}
	return value[:n], fmt.Sprintf("… (%d bytes)", len(value))
}
