package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/token"
	gotypes "go/types"
	"log"
	"path"
)

// references prints how the files of a package use each other. A reference is a use of a name in
// another file, except fields. It reads the files built for Linux without their imports, so it
// misses a few references through other packages' types.
func references(fset *token.FileSet, p *pkg) {
	system := build.Default
	system.GOOS = "linux"
	var files []*ast.File
	for _, f := range p.files {
		ok, err := system.MatchFile(path.Dir(f.name), path.Base(f.name))
		if err != nil {
			log.Fatal(err)
		}
		if ok {
			files = append(files, f.File)
		}
	}
	info := gotypes.Info{Uses: map[*ast.Ident]gotypes.Object{}}
	config := gotypes.Config{Importer: nothing{}, Error: func(error) {}}
	checked, _ := config.Check(p.dir, fset, files, &info) // what is imported is unknown
	type pair struct{ from, to string }
	type reference struct {
		from string
		to   gotypes.Object
	}
	seen, edges, both := map[reference]bool{}, map[pair]bool{}, 0
	for ident, to := range info.Uses {
		if to.Pkg() != checked || !shared(to, checked) {
			continue
		}
		e := pair{fset.File(ident.Pos()).Name(), fset.File(to.Pos()).Name()}
		if e.from == e.to {
			continue
		}
		seen[reference{e.from, to}], edges[e] = true, true
	}
	for e := range edges {
		if edges[pair{e.to, e.from}] {
			both++
		}
	}
	fmt.Printf("\n%s: %d files for Linux, %d references between files, in %d pairs of files, of which %d use each other\n",
		p.dir, len(files), len(seen), len(edges)-both/2, both/2)
}

// shared reports whether an object is a package's own or a method, and not local to a function.
func shared(o gotypes.Object, in *gotypes.Package) bool {
	f, ok := o.(*gotypes.Func)
	return o.Parent() == in.Scope() || ok && f.Signature().Recv() != nil
}

// nothing imports empty packages.
type nothing struct{}

func (nothing) Import(name string) (*gotypes.Package, error) {
	p := gotypes.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}
