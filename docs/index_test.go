package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// index knows what packages declare, by their source: for any system, tests included.
type index struct {
	t        *testing.T
	declared map[string]map[string]bool // by directory: "Name", "Type.Method"
}

func newIndex(t *testing.T) *index { return &index{t, map[string]map[string]bool{}} }

// missing says why name is nothing below dir; "" if it is. A name is a package,
// as "apply/loop", or something that it declares, as "compiler.Compiler.Update".
func (x *index) missing(dir, name string) string {
	slash := strings.LastIndex(name, "/") + 1
	pkg, symbol, _ := strings.Cut(name[slash:], ".")
	pkg = name[:slash] + pkg
	declared := x.load(filepath.Join(dir, pkg))
	switch {
	case len(declared) == 0:
		return name + ": there is no package " + pkg
	case symbol != "" && !declared[symbol]:
		return name + ": the package does not declare " + symbol
	}
	return ""
}

func (x *index) load(dir string) map[string]bool {
	if known, ok := x.declared[dir]; ok {
		return known
	}
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		x.t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			x.t.Fatal(err)
		}
		for _, d := range f.Decls {
			declare(names, d)
		}
	}
	x.declared[dir] = names
	return names
}

func declare(names map[string]bool, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = receiver(d.Recv.List[0].Type) + "." + name
		}
		names[name] = true
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names[spec.Name.Name] = true
			case *ast.ValueSpec:
				for _, n := range spec.Names {
					names[n.Name] = true
				}
			}
		}
	}
}

// receiver is the name of a method's type, without pointer and parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// moduleDir returns the source of a module that e2e builds tools of. The test is
// skipped where it has not been downloaded, unless the environment variable
// PROXYC_REQUIRE names "modules" (or "all").
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = filepath.Join(root, "e2e")
	cmd.Env = append(os.Environ(), "GOPROXY=off")
	out, err := cmd.Output()
	if dir := strings.TrimSpace(string(out)); err == nil && dir != "" {
		return dir
	}
	required := strings.Split(os.Getenv("PROXYC_REQUIRE"), ",")
	if slices.Contains(required, "modules") || slices.Contains(required, "all") {
		t.Fatalf("PROXYC_REQUIRE: module %s is not downloaded: %v", module, err)
	}
	t.Skipf("needs module %s, see make setup", module)
	return ""
}
