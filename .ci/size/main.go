// Size prints measures of the structure of this module, and fails if one is above its ceiling:
//
//	go run ./.ci/size [-q]
//
// The ceilings are in ceilings.txt, and are only lowered. With -q, the program prints only what
// is above them.
//
// It reads the files of every operating system. Production code is neither in files named
// _test.go nor in support packages, which are at or below a directory whose name ends in
// test. A line of code is neither blank nor a comment. Modules below this one, such as e2e,
// are not measured.
package main

import (
	"cmp"
	_ "embed"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ceilingsFile has a line "measure number" for each ceiling. Lines that begin with # are comments.
//
//go:embed ceilings.txt
var ceilingsFile string

// measured has the measures that have a ceiling, by name.
var measured = map[string]int{}

// Limits above which a measure is listed by name.
const (
	maxPackage    = 3000 // lines of code
	maxMethods    = 15
	maxFields     = 12
	maxFunction   = 60 // lines
	maxComplexity = 15 // cyclomatic
)

// composed are the packages whose references between files are counted.
var composed = []string{"cmd/proxyc", "apply/daemon"}

// source is a Go file.
type source struct {
	name  string // path below the module
	code  int    // lines of code
	lines []bool // by line, from 0: whether it has code
	text  []string
	*ast.File
}

// pkg is the production code of a directory.
type pkg struct {
	dir   string
	files []*source
}

func (p *pkg) code() (n int) {
	for _, f := range p.files {
		n += f.code
	}
	return n
}

func main() {
	log.SetFlags(0)
	quiet := flag.Bool("q", false, "print only measures above their ceilings")
	flag.Parse()
	stdout := os.Stdout
	if *quiet {
		os.Stdout = nil // fmt then prints nothing
	}
	fset := token.NewFileSet()
	production, aside, err := read(fset, ".")
	if err != nil {
		log.Fatal(err)
	}
	lines(production, aside)
	for _, p := range production {
		if slices.Contains(composed, p.dir) {
			references(fset, p)
		}
	}
	types(production)
	functions(fset, production)
	modes(production)
	exported(production)
	if err := texts("."); err != nil {
		log.Fatal(err)
	}
	os.Stdout = stdout
	if !below(ceilingsFile) {
		os.Exit(1)
	}
}

// below compares each measure with its ceiling, and prints those that are above it or lack one.
func below(ceilings string) bool {
	most := map[string]int{}
	for line := range strings.Lines(ceilings) {
		var name string
		var n int
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			log.Fatalf("ceilings.txt: %q: must be a measure and a number", strings.TrimSpace(line))
		}
		most[name] = n
	}
	ok := true
	for _, name := range slices.Sorted(maps.Keys(measured)) {
		if n, has := most[name]; !has || measured[name] > n {
			fmt.Printf("%s: %d, at most %d: delete what is not needed (make size lists the largest)\n", name, measured[name], n)
			ok = false
		}
	}
	return ok
}

// texts counts the words of pages and the lines of scripts in the page of the report.
func texts(root string) error {
	pages, err := filepath.Glob(filepath.Join(root, "docs/*/*.md"))
	if err != nil {
		return err
	}
	more, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		return err
	}
	for _, page := range append(append(pages, more...), filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		measured["words"] += len(strings.Fields(string(text)))
	}
	scripts, err := filepath.Glob(filepath.Join(root, "cmd/proxyc/page/*.js"))
	if err != nil {
		return err
	}
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		if err != nil {
			return err
		}
		measured["javascript"] += strings.Count(string(text), "\n")
	}
	fmt.Printf("\nwords of pages: %d; lines of JavaScript: %d\n", measured["words"], measured["javascript"])
	return nil
}

// others are the lines of code outside production code.
type others struct{ tests, support int }

// read parses the module's files and returns its packages in order of their directories.
func read(fset *token.FileSet, root string) (production []*pkg, aside others, err error) {
	byDir := map[string]*pkg{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			hidden := strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"
			if path != root && (hidden || err == nil) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		f, err := parse(fset, path)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		switch {
		case strings.HasSuffix(path, "_test.go"):
			aside.tests += f.code
			return nil
		case strings.Contains(dir+"/", "test/"):
			aside.support += f.code
			return nil
		}
		if byDir[dir] == nil {
			byDir[dir] = &pkg{dir: dir}
			production = append(production, byDir[dir])
		}
		byDir[dir].files = append(byDir[dir].files, f)
		return nil
	})
	slices.SortFunc(production, func(a, b *pkg) int { return cmp.Compare(a.dir, b.dir) })
	return production, aside, err
}

func parse(fset *token.FileSet, path string) (*source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &source{name: filepath.ToSlash(path), text: strings.Split(string(text), "\n")}
	f.lines = make([]bool, len(f.text))
	if f.File, err = parser.ParseFile(fset, path, text, parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile(path, -1, len(text))
	s.Init(file, text, nil, 0)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		first := file.Line(pos)
		if tok == token.SEMICOLON && literal == "\n" {
			continue
		}
		for line := first; line <= first+strings.Count(literal, "\n"); line++ {
			f.lines[line-1] = true // lines of a raw string included
		}
	}
	for _, has := range f.lines {
		if has {
			f.code++
		}
	}
	return f, nil
}

// list prints a measure and, below it, what is above its limit.
func list(title string, of []string) {
	fmt.Printf("\n%s: %d\n", title, len(of))
	for _, s := range of {
		fmt.Println("  " + s)
	}
}

func lines(production []*pkg, aside others) {
	total, files := 0, 0
	var large []string
	fmt.Println("lines of code, files, package")
	for _, p := range production {
		total, files = total+p.code(), files+len(p.files)
		top, _, _ := strings.Cut(p.dir, "/")
		measured[top] += p.code()
		measured["package"] = max(measured["package"], p.code())
		for _, f := range p.files {
			measured["file"] = max(measured["file"], f.code)
		}
		fmt.Printf("%7d %4d  %s\n", p.code(), len(p.files), p.dir)
		if p.code() > maxPackage {
			large = append(large, fmt.Sprintf("%s: %d", p.dir, p.code()))
		}
	}
	fmt.Printf("%7d %4d  in all; beside it %d in support packages and %d in tests\n", total, files, aside.support, aside.tests)
	measured["production"], measured["support"], measured["tests"] = total, aside.support, aside.tests
	list(fmt.Sprintf("packages above %d lines of code", maxPackage), large)
}

// receiver returns the name of a method's type, or "".
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

// types lists those with many methods or fields. Types of the same name that are built for
// different systems count as one, with the methods and fields of the larger.
func types(production []*pkg) {
	var out []string
	for _, p := range production {
		fields, methods := map[string]int{}, map[string]map[string]bool{}
		for _, f := range p.files {
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					name := receiver(d)
					if methods[name] == nil {
						methods[name] = map[string]bool{}
					}
					methods[name][d.Name.Name] = true
				case *ast.GenDecl:
					for _, s := range d.Specs {
						if t, ok := s.(*ast.TypeSpec); ok {
							fields[t.Name.Name] = max(fields[t.Name.Name], fieldsOf(t))
						}
					}
				}
			}
		}
		for name, n := range fields {
			if n > maxFields || len(methods[name]) > maxMethods {
				out = append(out, fmt.Sprintf("%s.%s: %d methods, %d fields", p.dir, name, len(methods[name]), n))
			}
		}
	}
	slices.Sort(out)
	measured["types"] = len(out)
	list(fmt.Sprintf("types with more than %d methods or %d fields", maxMethods, maxFields), out)
}

func fieldsOf(t *ast.TypeSpec) (n int) {
	s, ok := t.Type.(*ast.StructType)
	if !ok {
		return 0
	}
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
	}
	return n
}

func functions(fset *token.FileSet, production []*pkg) {
	var out []string
	for _, p := range production {
		for _, f := range p.files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				length := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
				c := complexity(fn)
				if length > maxFunction || c > maxComplexity {
					name := strings.TrimPrefix(receiver(fn)+"."+fn.Name.Name, ".")
					out = append(out, fmt.Sprintf("%s.%s: %d lines, complexity %d", p.dir, name, length, c))
				}
			}
		}
	}
	slices.Sort(out)
	measured["functions"] = len(out)
	list(fmt.Sprintf("functions above %d lines or complexity %d", maxFunction, maxComplexity), out)
}

// complexity returns the cyclomatic complexity of a function, the functions within it
// included.
func complexity(fn *ast.FuncDecl) int {
	n := 1
	ast.Inspect(fn, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// modes lists the places that decide by the name of a mode.
func modes(production []*pkg) {
	for _, pattern := range []string{"case ir.Mode", "Mode ==", "Mode !="} {
		n := 0
		var places []string
		for _, p := range production {
			in := 0
			for _, f := range p.files {
				for i, line := range f.text {
					if f.lines[i] {
						in += strings.Count(line, pattern)
					}
				}
			}
			if in > 0 {
				places = append(places, fmt.Sprintf("%d in %s", in, p.dir))
			}
			n += in
		}
		fmt.Printf("\n%q: %d (%s)\n", pattern, n, strings.Join(places, ", "))
	}
}

// exported counts the names that other packages can use.
func exported(production []*pkg) {
	names, methods := 0, 0
	for _, p := range production {
		for _, f := range p.files {
			if f.Name.Name == "main" {
				continue
			}
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					switch {
					case !d.Name.IsExported():
					case d.Recv == nil:
						names++
					case ast.IsExported(receiver(d)):
						methods++
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						names += exportedIn(s)
					}
				}
			}
		}
	}
	fmt.Printf("\nexported names: %d, and %d methods of exported types\n", names, methods)
}

func exportedIn(s ast.Spec) (n int) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() {
			n++
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() {
				n++
			}
		}
	}
	return n
}
