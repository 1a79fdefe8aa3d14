package main

import (
	"archive/zip"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

// packages are the packages whose gates kube-proxy has, by module. Those of client-go are registered
// by k8s.io/kubernetes/pkg/features.
var packages = map[string][]string{
	"kubernetes":              {"pkg/features"},
	"apiserver":               {"pkg/features"},
	"apiextensions-apiserver": {"pkg/features"},
	"controller-manager":      {"pkg/features"},
	"client-go":               {"features"},
	"component-base":          {"featuregate", "logs/api/v1", "metrics/features", "zpages/features"},
}

// source is the part of a release's source that declares gates.
type source struct {
	minor string
	names map[string]string // of gates, by the name of the constant
	maps  []*ast.CompositeLit
}

// gatesOf returns the state of each gate in a release.
func gatesOf(version string) (map[string]string, error) {
	s := &source{minor: minor(version), names: map[string]string{}}
	for module, dirs := range packages {
		version := version
		if module != "kubernetes" {
			version = "0." + strings.TrimPrefix(version, "1.")
		}
		archive, err := download("k8s.io/"+module, "v"+version)
		if err != nil {
			return nil, err
		}
		err = s.read(archive, "k8s.io/"+module+"@v"+version, dirs)
		archive.Close()
		if err != nil {
			return nil, err
		}
	}
	return s.states()
}

// download returns the archive of a module. The command may fail for a module of a newer Go after it
// has downloaded the archive.
func download(module, version string) (*zip.ReadCloser, error) {
	out, err := exec.Command("go", "mod", "download", "-json", module+"@"+version).Output()
	var result struct{ Zip, Error string }
	if jsonErr := json.Unmarshal(out, &result); jsonErr != nil {
		return nil, fmt.Errorf("%s@%s: %w", module, version, cmp.Or(err, jsonErr))
	}
	if result.Zip == "" {
		return nil, fmt.Errorf("%s", result.Error)
	}
	return zip.OpenReader(result.Zip)
}

// read collects the declarations of a module's packages.
func (s *source) read(archive *zip.ReadCloser, root string, dirs []string) error {
	return each(archive, root, func(name string, text []byte) error {
		if !slices.Contains(dirs, path.Dir(name)) || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err == nil {
			ast.Inspect(file, s.declaration)
		}
		return err
	}, dirs...)
}

// each calls use for each file of a module below one of the paths.
func each(archive *zip.ReadCloser, root string, use func(name string, text []byte) error, paths ...string) error {
	for _, f := range archive.File {
		name := strings.TrimPrefix(f.Name, root+"/")
		if !slices.ContainsFunc(paths, func(p string) bool { return p == "" || name == p || strings.HasPrefix(name, p+"/") }) {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			err = use(name, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// declaration keeps constants with a text, and maps of gates.
func (s *source) declaration(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i >= len(n.Values) {
				break
			}
			value := n.Values[i]
			if call, ok := value.(*ast.CallExpr); ok && last(call.Fun) == "Feature" {
				value = call.Args[0]
			}
			if text, ok := value.(*ast.BasicLit); ok && text.Kind == token.STRING {
				s.names[name.Name], _ = strconv.Unquote(text.Value)
			}
		}
	case *ast.CompositeLit:
		if m, ok := n.Type.(*ast.MapType); ok && last(m.Key) == "Feature" && len(n.Elts) > 0 {
			s.maps = append(s.maps, n)
		}
	}
	return true
}

// states returns the state of each gate, with the gates that it requires.
func (s *source) states() (map[string]string, error) {
	states, needs := map[string]string{}, map[string][]string{}
	for _, m := range s.maps {
		kind := last(m.Type.(*ast.MapType).Value)
		for _, e := range m.Elts {
			entry := e.(*ast.KeyValueExpr)
			name, ok := s.names[last(entry.Key)]
			if !ok {
				return nil, fmt.Errorf("%s: no constant of this name", last(entry.Key))
			}
			value, ok := entry.Value.(*ast.CompositeLit)
			switch {
			case !ok: // functions of AllAlpha and AllBeta
			case kind == "Feature": // a map of lists
				for _, need := range value.Elts {
					needs[name] = append(needs[name], s.names[last(need)])
				}
			case kind == "FeatureSpec":
				states[name] = state(value)
			case kind == "VersionedSpecs":
				if spec := s.current(value); spec != nil {
					states[name] = state(spec)
				}
			}
		}
	}
	for name, list := range needs {
		if slices.Sort(list); states[name] != "" && len(list) > 0 {
			states[name] += " requires " + strings.Join(list, " ")
		}
	}
	return states, nil
}

// current returns the last specification that applies to the release. By default, components of the
// release before it are supported, too.
func (s *source) current(specs *ast.CompositeLit) (spec *ast.CompositeLit) {
	for _, e := range specs.Elts {
		one := e.(*ast.CompositeLit)
		if release(field(one, "Version")) <= number(s.minor) && release(field(one, "MinCompatibilityVersion")) < number(s.minor) {
			spec = one
		}
	}
	return spec
}

// release returns the number of version.MustParse("1.31"), and 0 for no or another call.
func release(e ast.Expr) int {
	if call, ok := e.(*ast.CallExpr); ok {
		if text, ok := call.Args[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
			since, _ := strconv.Unquote(text.Value)
			return number(since)
		}
	}
	return 0
}

// number orders releases: 31 for 1.31.
func number(release string) int {
	_, text, _ := strings.Cut(release, ".")
	n, _ := strconv.Atoi(text)
	return n
}

// state returns the text of a specification: BETA on, or GA on locked.
func state(spec *ast.CompositeLit) string {
	text := cmp.Or(strings.ToUpper(last(field(spec, "PreRelease"))), "GA")
	if last(field(spec, "Default")) == "true" {
		text += " on"
	} else {
		text += " off"
	}
	if last(field(spec, "LockToDefault")) == "true" {
		text += " locked"
	}
	return text
}

// field returns the value of a field of a composite literal; nil if it is absent.
func field(lit *ast.CompositeLit, name string) ast.Expr {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && last(kv.Key) == name {
			return kv.Value
		}
	}
	return nil
}

// last returns the last name of an expression: Feature for featuregate.Feature and []featuregate.Feature.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.ArrayType:
		return last(e.Elt)
	case *ast.CallExpr: // a conversion
		return last(e.Args[0])
	}
	return ""
}
