package diag

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
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
		{Diagnostic{Object: "Service ns/a\u202eb\u2066\u200b", Msg: "ü ☺"}, `Service ns/a\u202eb\u2066\u200b: ü ☺`},
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

// Sorted does not change a shared list, and an unset severity is not an error.
func TestSortedKeepsList(t *testing.T) {
	l := List{{Severity: Warning, Msg: "b"}, {Severity: Warning, Msg: "a"}, {Severity: Warning, Msg: "a"}}
	want := List{{Severity: Warning, Msg: "a"}, {Severity: Warning, Msg: "b"}}
	if d := cmp.Diff(want, l.Sorted()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if l[0].Msg != "b" || l[2].Msg != "a" || l.HasErrors() {
		t.Errorf("the list was changed: %v", l)
	}
	if (List{{}}).HasErrors() {
		t.Error("the zero Diagnostic is an error")
	}
}

// Every Diagnostic in the program sets its severity and its code. Without a
// severity the exit code of the program would be wrong. Without a code users
// could not suppress the finding.
func TestSeverityAndCodeAreGiven(t *testing.T) {
	files := token.NewFileSet()
	seen := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "String" {
				return false // only printed
			}
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			switch typeName(lit.Type) {
			case "Diagnostic":
				seen++
				check(t, files, lit)
			case "List":
				for _, e := range lit.Elts {
					if e, ok := e.(*ast.CompositeLit); ok && e.Type == nil {
						seen++
						check(t, files, e)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil || seen < 20 {
		t.Fatalf("saw %d literals: %v", seen, err)
	}
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		if pkg, ok := e.X.(*ast.Ident); ok && pkg.Name == "diag" {
			return e.Sel.Name
		}
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func check(t *testing.T, files *token.FileSet, lit *ast.CompositeLit) {
	t.Helper()
	given := map[string]bool{}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				given[key.Name] = true
			}
		}
	}
	for _, key := range []string{"Severity", "Code"} {
		if !given[key] && len(lit.Elts) > 0 {
			t.Errorf("%s: a Diagnostic without %s", files.Position(lit.Pos()), key)
		}
	}
}
