package help

import (
	"cmp"
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

// Objects returns the names of objects in the files of --snapshot, by the flag or argument that
// accepts them.
type Objects func(files []string) map[string][]string

// A candidate is a completion of a word.
type candidate struct{ word, help string }

// WriteCandidates writes one candidate per line: the word, a tab, and its description. It writes
// nothing for file names, which the shell completes.
func WriteCandidates(w io.Writer, parser *kong.Kong, words []string, objects Objects) error {
	var b strings.Builder
	forKubectl := len(words) > 0 && words[0] == ForKubectl
	if forKubectl {
		words = words[1:]
	}
	for _, c := range complete(parser, words, objects) {
		help, _, _ := strings.Cut(c.help, "\n")
		fmt.Fprintf(&b, "%s\t%s\n", c.word, help)
	}
	if forKubectl {
		b.WriteString(":0\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// typed returns the command of words, and how many arguments and which snapshots they contain. An error is about a flag that
// lacks its value, or a wrong word.
func typed(parser *kong.Kong, words []string) (node *kong.Node, arguments int, snapshots []string) {
	ctx, _ := kong.Trace(parser, words)
	for _, at := range ctx.Path {
		if at.Positional != nil {
			arguments++
		} else if at.Flag != nil && at.Flag.Name == "snapshot" {
			snapshots, _ = ctx.FlagValue(at.Flag).([]string)
		}
	}
	return cmp.Or(ctx.Selected(), parser.Model.Node), arguments, snapshots
}

// complete returns the completions of the last word, in order of the help.
func complete(parser *kong.Kong, words []string, objects Objects) []candidate {
	last, before := "", words
	if n := len(words) - 1; n >= 0 {
		before, last = words[:n], words[n]
	}
	if slices.Contains(before, "--") { // only arguments follow
		return nil
	}
	node, arguments, files := typed(parser, before)
	values := func(v *kong.Value, before string) []candidate {
		all := enumOf(v)
		if all == nil {
			all = objects(files)[v.Name]
		}
		return values(v, all, before, last)
	}
	if n := len(before); n > 0 {
		if asks, _, hasValue := flagOf(node, before[n-1]); asks != nil && !hasValue && !asks.IsBool() {
			return values(asks.Value, "")
		}
	}
	switch {
	case strings.HasPrefix(last, "-"):
		if flag, name, hasValue := flagOf(node, last); !hasValue {
			return starting(flags(node), last)
		} else if flag != nil {
			return values(flag.Value, name+"=")
		}
		return nil
	case arguments < len(node.Positional):
		return append(starting(verbs(node), last), values(node.Positional[arguments], "")...)
	}
	return starting(verbs(node), last)
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

// enumOf returns the values of a flag or argument with few of them; nil for any other.
func enumOf(v *kong.Value) []string {
	if v.Tag.PlaceHolder == "MODE" && v.Name != "detect-local-mode" { // kube-proxy's own errors are more detailed than those of an enum
		return ir.ModeNames()
	}
	if v.Enum == "" {
		return nil
	}
	return strings.Split(v.Enum, ",")
}

// values returns the values that the last word may be, also after commas if several are accepted.
func values(v *kong.Value, all []string, before, last string) []candidate {
	typed := strings.TrimPrefix(last, before)
	if v.IsSlice() {
		before += typed[:strings.LastIndex(typed, ",")+1]
	}
	var out []candidate
	for _, value := range all {
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
