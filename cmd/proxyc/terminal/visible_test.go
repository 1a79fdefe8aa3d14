package terminal

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// Text is escaped equally if it is written in pieces of any size, and JSON stays equivalent.
func TestVisible(t *testing.T) {
	const in = "plain\ttext\nü ☺ \u202e\u2066 \x1b[2J \U000e0041 \r\x7f\u200b\ufeff \xff end\xe2\x80"
	const want = "plain\ttext\nü ☺ \\u202e\\u2066 \\u001b[2J \\udb40\\udc41 \\u000d\\u007f\\u200b\\ufeff \\xff end\\xe2\\x80"
	for size := 1; size <= len(in); size++ {
		var b strings.Builder
		v := NewWriter(&b)
		if _, err := io.CopyBuffer(v, struct{ io.Reader }{strings.NewReader(in)}, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		v.End()
		if b.String() != want {
			t.Errorf("in pieces of %d: got  %q\nwant %q", size, b.String(), want)
		}
	}
	var b strings.Builder
	before := map[string]string{"a": "\u202e\U000e0041☺"}
	if err := json.NewEncoder(NewWriter(&b)).Encode(before); err != nil {
		t.Fatal(err)
	}
	var after map[string]string
	if err := json.Unmarshal([]byte(b.String()), &after); err != nil || after["a"] != before["a"] {
		t.Errorf("%s: got %q, %v", b.String(), after, err)
	}
}
