package help

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/ir"
)

// Complete is the command that the scripts call, with the words of the command line up to the
// cursor. It is not part of the grammar, since it accepts incomplete command lines.
const Complete = "__complete"

// ForKubectl is its first argument for kubectl, which expects a number after the candidates: with 0
// the shell completes file names if there are none.
const ForKubectl = "--for-kubectl"

// A candidate is a completion of a word.
type candidate struct{ word, help string }

// WriteCandidates writes one candidate per line: the word, a tab, and its description. It writes
// nothing for file names, which the shell completes.
func WriteCandidates(w io.Writer, app *kong.Application, words []string) error {
	var b strings.Builder
	forKubectl := len(words) > 0 && words[0] == ForKubectl
	if forKubectl {
		words = words[1:]
	}
	for _, c := range complete(app, words) {
		help, _, _ := strings.Cut(c.help, "\n")
		fmt.Fprintf(&b, "%s\t%s\n", c.word, help)
	}
	if forKubectl {
		b.WriteString(":0\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// complete returns the completions of the last word, in order of the help.
func complete(app *kong.Application, words []string) []candidate {
	node, argument := app.Node, 0
	var asks *kong.Flag // flag whose value is the next word
	typed, last := words[:max(0, len(words)-1)], ""
	if len(words) > 0 {
		last = words[len(words)-1]
	}
	for _, word := range typed {
		switch {
		case asks != nil:
			asks = nil
		case word == "--":
			return nil // only arguments after this
		case strings.HasPrefix(word, "-"):
			if flag, _, hasValue := flagOf(node, word); flag != nil && !flag.IsBool() && !hasValue {
				asks = flag
			}
		default:
			if child := childOf(node, word); child != nil {
				node = child
			} else {
				argument++
			}
		}
	}
	if asks != nil {
		return values(asks.Value, "", last)
	}
	if !strings.HasPrefix(last, "-") {
		return starting(append(verbs(node), arguments(node, argument)...), last)
	}
	if flag, name, hasValue := flagOf(node, last); hasValue {
		if flag == nil {
			return nil
		}
		return values(flag.Value, name+"=", last)
	}
	return starting(flags(node), last)
}

// flagOf returns the flag that a word names in a node, its name in the word, and whether the word
// contains a value.
func flagOf(node *kong.Node, word string) (flag *kong.Flag, name string, hasValue bool) {
	name, _, hasValue = strings.Cut(word, "=")
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
				return f, name, hasValue
			}
		}
	}
	return nil, name, hasValue
}

func childOf(node *kong.Node, name string) *kong.Node {
	i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return node.Children[i]
}

// values returns the values of a flag or argument with few of them, also after commas if it accepts
// several.
func values(v *kong.Value, before, last string) []candidate {
	enum := v.Enum
	if v.Tag.PlaceHolder == "MODE" && v.Name != "detect-local-mode" { // kube-proxy's own errors are more detailed than those of an enum
		enum = strings.Join(ir.ModeNames(), ",")
	}
	if enum == "" {
		return nil
	}
	typed := strings.TrimPrefix(last, before)
	if v.IsSlice() {
		before += typed[:strings.LastIndex(typed, ",")+1]
	}
	var out []candidate
	for _, value := range strings.Split(enum, ",") {
		out = append(out, candidate{before + value, ""})
	}
	return starting(out, last)
}

func verbs(node *kong.Node) []candidate {
	var out []candidate
	for _, n := range node.Children {
		if !n.Hidden {
			out = append(out, candidate{n.Name, n.Help})
		}
	}
	return out
}

func arguments(node *kong.Node, i int) []candidate {
	if i >= len(node.Positional) {
		return nil
	}
	return values(node.Positional[i], "", "")
}

// flags returns the flags in a node's help, with "=" if they require a value.
func flags(node *kong.Node) []candidate {
	var out []candidate
	for _, f := range shownFlags(node) {
		word := "--" + f.Name
		if !f.IsBool() {
			word += "="
		}
		out = append(out, candidate{word, f.Help})
	}
	return out
}

// shownFlags returns the flags that a command uses.
func shownFlags(node *kong.Node) (out []*kong.Flag) {
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			if !f.Tag.Has("daemon") || !slices.Contains(Offline, verbOf(node)) {
				out = append(out, f)
			}
		}
	}
	return out
}

func starting(candidates []candidate, with string) []candidate {
	return slices.DeleteFunc(candidates, func(c candidate) bool { return !strings.HasPrefix(c.word, with) })
}
