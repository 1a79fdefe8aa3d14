package help

import (
	_ "embed"
	"io"
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/build"
)

// PageOf returns the program for "", the command with a path, or nil.
func PageOf(app *kong.Application, path string) *kong.Node {
	if path == "" {
		return app.Node
	}
	leaves := app.Leaves(true)
	i := slices.IndexFunc(leaves, func(n *kong.Node) bool { return n.Path() == path })
	if i < 0 {
		return nil
	}
	return leaves[i]
}

// PageName returns the name of a page: proxyc, proxyc-config-show.
func PageName(node *kong.Node) string {
	return strings.ReplaceAll(strings.TrimSpace("proxyc "+verbOf(node)), " ", "-")
}

// verbOf returns the path of a command; "" for the program.
func verbOf(node *kong.Node) string {
	if node.Type == kong.ApplicationNode {
		return ""
	}
	return node.Path()
}

//go:embed man.tmpl
var manTemplate string

// WritePage writes the manual page of a command or of the program, for man(7).
func WritePage(w io.Writer, app *kong.Application, node *kong.Node) error {
	page := struct {
		Name, Command, Usage, Others string
		Build                        build.Info
		Node                         *kong.Node
		Verbs                        []*kong.Node
		Flags                        []*kong.Flag
		Verb                         *Verb
	}{Name: PageName(node), Command: strings.TrimSpace("proxyc " + verbOf(node)), Usage: "VERB [FLAGS]", Build: build.Read(), Node: node, Flags: shownFlags(node)}
	if verb, ok := Verbs()[verbOf(node)]; ok {
		page.Verb = &verb
	}
	if node == app.Node {
		page.Verbs = app.Leaves(true)
	} else {
		page.Usage = "[FLAGS]"
		for _, p := range node.Positional {
			if !p.Tag.Hidden {
				page.Usage += " " + p.Summary()
			}
		}
	}
	var others []string
	for _, n := range append([]*kong.Node{app.Node}, app.Leaves(true)...) {
		if n != node {
			others = append(others, PageName(n)+"(1)")
		}
	}
	page.Others = strings.Join(others, ", ")
	funcs := template.FuncMap{"text": manText, "upper": strings.ToUpper, "flagText": FlagText,
		"trimDot": func(s string) string { return strings.TrimSuffix(s, ".") }}
	return template.Must(template.New("man").Funcs(funcs).Parse(manTemplate)).Execute(w, page)
}

// manText escapes a text for man(7): backslashes, and lines that start with a dot or quote. Hyphens
// are those of commands.
func manText(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
