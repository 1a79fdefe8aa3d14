package main

import (
	"go/ast"
	"go/parser"
	"go/token"
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
	is := capabilityTable.ReplaceAllLiteralString(string(was), "<!-- capabilities -->\n"+capabilities(t)+"<!-- /capabilities -->")
	if *update {
		must(t, os.WriteFile(name, []byte(is), 0o644))
		return
	}
	if diff := cmp.Diff(string(was), is); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// capabilities returns a table of the modes with each capability. The names are compared with
// the constants in the source: one without a name, or with that of another, fails the test.
func capabilities(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| capability | modes |\n|---|---|\n")
	for i, name := range declaredCapabilities(t) {
		c := ir.Capability(1) << i
		if c.String() != name {
			t.Errorf("ir.capabilityNames: %s: must be the name of entry %d, got %q", name, i, c)
		}
		var modes []string
		for _, m := range ir.Modes() {
			if m.Capabilities().Has(c) {
				modes = append(modes, string(m))
			}
		}
		if modes == nil {
			t.Errorf("ir.%s: must be a capability of some mode", name)
		}
		b.WriteString("| " + name + " | " + strings.Join(modes, ", ") + " |\n")
	}
	return b.String()
}

// declaredCapabilities returns the constants of type ir.Capability, in their order.
func declaredCapabilities(t *testing.T) (names []string) {
	f, err := parser.ParseFile(token.NewFileSet(), "../../ir/capability.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST || len(d.Specs) == 0 {
			continue
		}
		first := d.Specs[0].(*ast.ValueSpec)
		if typ, ok := first.Type.(*ast.Ident); !ok || typ.Name != "Capability" {
			continue
		}
		for _, s := range d.Specs {
			names = append(names, s.(*ast.ValueSpec).Names[0].Name)
		}
	}
	if len(names) == 0 {
		t.Fatal("ir/capability.go: declares no capability")
	}
	return names
}
