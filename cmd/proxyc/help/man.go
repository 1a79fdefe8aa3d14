package help

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/compiler/config"
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

// WritePage writes the manual page of a command or of the program, for man(7).
func WritePage(w io.Writer, app *kong.Application, node *kong.Node) error {
	var m manPage
	defaults := FlagText(config.FlagDefaults())
	about := build.Read()
	m.line(".TH %q 1 %q %q \"Manual of proxyc\"", strings.ToUpper(PageName(node)), about.Date, "proxyc "+about.Version)
	m.section("NAME")
	name := strings.TrimSpace("proxyc " + verbOf(node))
	m.text(PageName(node) + " - " + strings.TrimSuffix(node.Help, "."))
	m.section("SYNOPSIS")
	m.line(".B %s", manText(name))
	if verbOf(node) == "" {
		m.text("VERB [FLAGS]")
	} else {
		m.text(strings.TrimSpace("[FLAGS] " + positionals(node)))
	}
	m.section("DESCRIPTION")
	m.text(node.Help)
	if node.Detail != "" {
		m.text(node.Detail)
	}
	if verbOf(node) == "" {
		m.section("VERBS")
		for _, n := range app.Leaves(true) {
			m.item("proxyc "+n.Path(), n.Help)
		}
	}
	m.section("OPTIONS")
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			if f.Tag.Has("daemon") && slices.Contains(Offline, verbOf(node)) {
				continue
			}
			m.item(f.String(), defaults(f.Value))
		}
	}
	if u, ok := Verbs()[verbOf(node)]; ok {
		m.section("EXAMPLES")
		m.line(".nf")
		for _, example := range u.Examples {
			m.text(example)
		}
		m.line(".fi")
		m.section("EXIT STATUS")
		for code, means := range u.Exits {
			if means != "" {
				m.item(fmt.Sprint(code), means)
			}
		}
	}
	m.section("SEE ALSO")
	var others []string
	for _, n := range append([]*kong.Node{app.Node}, app.Leaves(true)...) {
		if n != node {
			others = append(others, PageName(n)+"(1)")
		}
	}
	m.text(strings.Join(others, ", "))
	_, err := io.WriteString(w, m.String())
	return err
}

func positionals(node *kong.Node) string {
	var out []string
	for _, p := range node.Positional {
		if !p.Tag.Hidden {
			out = append(out, p.Summary())
		}
	}
	return strings.Join(out, " ")
}

// manPage is a page while it is written.
type manPage struct{ strings.Builder }

func (m *manPage) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

func (m *manPage) section(title string) { m.line(".SH %s", title) }

func (m *manPage) text(s string) { m.line("%s", manText(s)) }

// item writes a term with its description.
func (m *manPage) item(term, about string) {
	m.line(".TP")
	m.line(".B %s", manText(term))
	m.text(about)
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
