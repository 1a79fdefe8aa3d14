package diag

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestString(t *testing.T) {
	tests := []struct {
		d    Diagnostic
		want string
	}{
		{Diagnostic{File: "config.yaml", Line: 12, Path: "iptables.masqueradeBit", Msg: "must be 0-31, got 40"},
			"config.yaml:12: iptables.masqueradeBit: must be 0-31, got 40"},
		{Diagnostic{Object: "Service ns/web", Path: "spec.ports[0]", Msg: "has no port", Hint: "give one"},
			"Service ns/web: spec.ports[0]: has no port (give one)"},
		{Diagnostic{Object: "Service ns/a\nerror: b\x1b[2J", Msg: "must be 'x'"}, `Service ns/a\nerror: b\x1b[2J: must be 'x'`},
		{Diagnostic{File: "-", Doc: 3, Msg: "not an object"}, "-: document 3: not an object"},
	}
	for _, tt := range tests {
		if got := tt.d.String(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestSort(t *testing.T) {
	l := List{
		{File: "b", Line: 1, Msg: "x"}, {File: "a", Line: 10, Msg: "x"}, {File: "a", Line: 9, Msg: "x"},
		{File: "a", Line: 9, Msg: "x"}, {Severity: Error, Msg: "x"}, {Severity: Warning, Msg: "x"},
	}
	l.Sort()
	want := List{
		{Severity: Error, Msg: "x"}, {Severity: Warning, Msg: "x"},
		{File: "a", Line: 9, Msg: "x"}, {File: "a", Line: 10, Msg: "x"}, {File: "b", Line: 1, Msg: "x"},
	}
	if d := cmp.Diff(want, l); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !l.HasErrors() || (List{{Severity: Warning}}).HasErrors() {
		t.Error("HasErrors is wrong")
	}
}
