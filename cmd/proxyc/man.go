package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/compiler/diag"
)

type manCmd struct {
	Verb  []string       `arg:"" optional:"" help:"Verb; by default the program."`
	Write help.Directory `placeholder:"DIR" help:"Write the pages of all verbs into a directory."`
}

func (c *manCmd) Run(e *env) error {
	app := kong.Must(&cli{}, grammar(io.Discard, io.Discard)...).Model
	if c.Write == "" {
		verb := strings.Join(c.Verb, " ")
		node := help.PageOf(app, verb)
		if node == nil {
			return fmt.Errorf("%q: unknown verb%s", verb, diag.Meant(verb, slices.Collect(maps.Keys(help.Verbs()))))
		}
		return help.WritePage(e.stdout, app, node)
	}
	if len(c.Verb) > 0 {
		return fmt.Errorf("--write: accepts no verb: it writes the pages of all")
	}
	if err := e.files.MkdirAll(string(c.Write)); err != nil {
		return err
	}
	for _, node := range append([]*kong.Node{app.Node}, app.Leaves(true)...) {
		err := e.writeFile(filepath.Join(string(c.Write), help.PageName(node)+".1"), func(w io.Writer) error { return help.WritePage(w, app, node) })
		if err != nil {
			return err
		}
	}
	return nil
}
