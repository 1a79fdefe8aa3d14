package diag

import (
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	long := strings.Repeat("m", 99) + "ö"
	for _, test := range []struct{ value, want string }{
		{"", `""`},
		{"a\n\"", `"a\n\""`},
		{strings.Repeat("m", 100), `"` + strings.Repeat("m", 100) + `"`},
		{long, `"` + strings.Repeat("m", 99) + `"… (101 bytes)`},
		{strings.Repeat("m", 250_000), `"` + strings.Repeat("m", 100) + `"… (250000 bytes)`},
	} {
		if got := Quote(test.value); got != test.want {
			t.Errorf("got %.300s, want %.300s", got, test.want)
		}
	}
	if got, want := Short(long), strings.Repeat("m", 99)+"… (101 bytes)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
