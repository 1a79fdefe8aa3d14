package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/ir"
)

var capabilityTable = regexp.MustCompile(`(?s)<!-- capabilities -->\n.*<!-- /capabilities -->`)

// TestCapabilityTable keeps the table in docs/reference/ir.md true.
func TestCapabilityTable(t *testing.T) {
	const name = "../../docs/reference/ir.md"
	was, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !capabilityTable.Match(was) {
		t.Fatalf("%s: has no place for the table of capabilities", name)
	}
	is := capabilityTable.ReplaceAllLiteralString(string(was), "<!-- capabilities -->\n"+capabilities()+"<!-- /capabilities -->")
	if *update {
		must(t, os.WriteFile(name, []byte(is), 0o644))
		return
	}
	if diff := cmp.Diff(string(was), is); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// capabilities returns a table of what each mode has.
func capabilities() string {
	var b strings.Builder
	header, rule := "| |", "|---|"
	for _, m := range ir.Modes() {
		header += " " + string(m) + " |"
		rule += "---|"
	}
	b.WriteString(header + "\n" + rule + "\n")
	for i := range 64 {
		c := ir.Capability(1) << i
		if c.String() == "" {
			break
		}
		b.WriteString("| " + c.String() + " |")
		for _, m := range ir.Modes() {
			if m.Capabilities().Has(c) {
				b.WriteString(" yes |")
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
