package main

import (
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
)

// A flag is listed once, and an argument that is there to be refused is not.
func TestHelpListsOnce(t *testing.T) {
	for verb := range help.Verbs() {
		var out strings.Builder
		run(&env{args: append(strings.Fields(verb), "--help"), stdout: &out, stderr: io.Discard})
		if n := strings.Count(out.String(), "--version "); n != 1 || strings.Contains(out.String(), "<rest>") {
			t.Errorf("%s: --version %d times in\n%s", verb, n, &out)
		}
	}
}

// Every verb has examples and exit codes, and each example is one that it takes.
func TestHelpOfEveryVerb(t *testing.T) {
	parser := func() *kong.Kong {
		return kong.Must(&cli{}, append(grammar(io.Discard, io.Discard), help.Options(false, new(env).calls)...)...)
	}
	all := help.Verbs()
	for _, verb := range parser().Model.Leaves(true) {
		u, ok := all[verb.Path()]
		if !ok || len(u.Examples) == 0 || u.Exits[exitDone] == "" || u.Exits[exitBad] == "" {
			t.Errorf("%s: no examples or no exit codes", verb.Path())
		}
		delete(all, verb.Path())
		own := 0
		for _, example := range u.Examples {
			_, args, found := strings.Cut(example, "proxyc ")
			if !found {
				continue
			}
			own++
			ctx, err := parser().Parse(help.Dashed(strings.Fields(args))) // a parser remembers flags of one parse for the next
			if err != nil {
				t.Errorf("%s: %v", example, err)
			} else if got := ctx.Selected().Path(); got != verb.Path() {
				t.Errorf("%s: is of %s, not of %s", example, got, verb.Path())
			}
		}
		if own == 0 {
			t.Errorf("%s: no example of its own", verb.Path())
		}
	}
	for verb := range all {
		t.Errorf("%s: is no verb", verb)
	}
	for _, verb := range help.Offline {
		if _, ok := help.Verbs()[verb]; !ok {
			t.Errorf("%s: is no verb", verb)
		}
	}
}

// A flag with a default shows it.
func TestHelpShowsDefaults(t *testing.T) {
	parser := kong.Must(&cli{}, grammar(io.Discard, io.Discard)...)
	seen := 0
	for _, verb := range parser.Model.Leaves(true) {
		for _, f := range verb.Flags {
			if f.Default == "" || f.Tag.Has("config") || f.Tag.Has("sets") {
				continue
			}
			seen++
			if text := help.FlagText(f.Value); !strings.Contains(text, f.Default) {
				t.Errorf("%s --%s: %q does not show %s", verb.Path(), f.Name, text, f.Default)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d flags have a default", seen)
	}
}

// The grammar of one verb is that of the verb among all.
func TestGrammarOfAVerb(t *testing.T) {
	words := func(n *kong.Node) (all []string) {
		kong.Visit(n, func(at kong.Visitable, next kong.Next) error {
			switch at := at.(type) {
			case *kong.Node:
				all = append(all, at.Summary())
			case *kong.Flag:
				all = append(all, at.String())
			case *kong.Value:
				all = append(all, at.Summary())
			}
			return next(nil)
		})
		return all
	}
	whole := kong.Must(grammarOf(nil), grammar(io.Discard, io.Discard)...).Model
	for _, want := range whole.Children {
		one := kong.Must(grammarOf([]string{want.Name, "--nope"}), grammar(io.Discard, io.Discard)...).Model
		if len(one.Children) != 1 {
			t.Fatalf("%s: %d verbs", want.Name, len(one.Children))
		}
		if diff := cmp.Diff(words(want), words(one.Children[0])); diff != "" {
			t.Errorf("%s (-among all +alone):\n%s", want.Name, diff)
		}
		if diff := cmp.Diff(len(whole.Flags), len(one.Flags)); diff != "" {
			t.Errorf("%s: flags of the program (-among all +alone):\n%s", want.Name, diff)
		}
	}
}
