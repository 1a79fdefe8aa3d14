// Package help parses command lines, and writes the help of commands, their manual pages, and shell
// completions.
package help

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/compiler/config"
)

// Verb is the help of a command besides its flags.
type Verb struct {
	Examples []string
	// Exits are the meanings of its exit codes, by code; "" if it does not return the code.
	Exits [3]string
}

// verbsText has a paragraph for each command: its path, examples, and exit codes.
//
//go:embed verbs.txt
var verbsText string

// Verbs returns the help of all commands, by path.
func Verbs() map[string]Verb {
	all := map[string]Verb{}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(verbsText), "\n\n") {
		path, lines, _ := strings.Cut(strings.TrimPrefix(paragraph, "# "), "\n")
		var v Verb
		for line := range strings.SplitSeq(lines, "\n") {
			if code := strings.IndexByte("012", line[0]); code >= 0 {
				v.Exits[code] = line[len("0 "):]
			} else {
				v.Examples = append(v.Examples, line)
			}
		}
		all[path] = v
	}
	return all
}

// Args removes requests for help that kong does not support: help VERB, and --help=all. all reports
// whether to show every flag.
func Args(args []string) (rest []string, all bool) {
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	for _, arg := range args {
		if arg == "--" {
			break
		}
		all = all || arg == "--help=all"
	}
	if all {
		args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--help" || arg == "--help=all" })
		args = append(args, "--help")
	}
	return args, all
}

// Offline are the commands that neither change a node nor run on one, so they do not use the
// daemon's flags.
var Offline = []string{"compile", "trace", "explain", "flows", "diff", "prove", "assert", "migrate", "lint", "report", "replay", "config defaults", "config show"}

// printHelp prints the help of a command: one line per flag, without most of kube-proxy's flags, or
// all flags with their full texts if all is set. calls formats the command lines of examples.
func printHelp(all bool, calls func(string) string) kong.HelpPrinter {
	return func(options kong.HelpOptions, ctx *kong.Context) error {
		verb := ctx.Selected()
		if verb == nil || len(verb.Children) > 0 {
			return kong.DefaultHelpPrinter(options, ctx)
		}
		verb.Positional = slices.DeleteFunc(verb.Positional, func(v *kong.Value) bool { return v.Tag.Hidden }) // kong shows them
		var b strings.Builder
		if all {
			for _, f := range verb.Flags {
				f.Hidden = f.Hidden && !f.Tag.Has("config") && !f.Tag.Has("sets") // only kube-proxy's are shown
			}
			if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
				return err
			}
		} else {
			writeBrief(&b, ctx.Model.Name, verb)
		}
		u := Verbs()[verb.Path()]
		b.WriteString("\nExamples:\n")
		for _, example := range u.Examples {
			b.WriteString("  " + calls(example) + "\n")
		}
		b.WriteString("\nExit codes:\n")
		for code, means := range u.Exits {
			if means != "" {
				fmt.Fprintf(&b, "  %d  %s\n", code, means)
			}
		}
		_, err := ctx.Stdout.Write([]byte(b.String()))
		return err
	}
}

// briefColumn is the column of the texts of flags. Few names are longer.
const briefColumn = 34

// common are the flags of kube-proxy that the help of every verb shows.
var common = []string{"config", "hostname-override", "mode", "cluster-cidr"}

// writeBrief writes the help of a verb with the first sentence of each flag.
func writeBrief(b *strings.Builder, program string, verb *kong.Node) {
	fmt.Fprintf(b, "Usage: %s %s\n\n%s\n", program, verb.Summary(), verb.Help)
	line := func(name string, v *kong.Value) {
		fmt.Fprintf(b, "  %-*s  %s\n", briefColumn-len("    "), name, withDefault(firstSentence(v.Help), v))
	}
	if len(verb.Positional) > 0 {
		b.WriteString("\nArguments:\n")
		for _, p := range verb.Positional {
			line(p.Summary(), p)
		}
	}
	b.WriteString("\nFlags:\n")
	more := 0
	for _, group := range verb.AllFlags(false) {
		for _, f := range group {
			switch kubeProxys := f.Tag.Has("config") || f.Tag.Has("sets"); {
			case kubeProxys && !slices.Contains(common, f.Name):
				more++
			case f.Hidden:
			case f.Short != 0:
				line(f.String(), f.Value)
			default:
				line("    "+f.String(), f.Value)
			}
		}
	}
	if more > 0 {
		fmt.Fprintf(b, "\n%d more flags of kube-proxy are accepted: --help=all lists them.\n", more)
	}
}

// firstSentence returns the first sentence of a flag's text.
func firstSentence(text string) string {
	first, _, more := strings.Cut(text, ". ")
	if more {
		return first + "."
	}
	return text
}

// flagDefaults are the defaults of kube-proxy's flags, by name.
var flagDefaults = sync.OnceValue(config.FlagDefaults)

// FlagText returns the help of a flag, with its default.
func FlagText(v *kong.Value) string { return withDefault(v.Help, v) }

// withDefault adds the default of a flag to its text, unless the text states one.
func withDefault(text string, v *kong.Value) string {
	if v.Flag == nil || strings.Contains(text, "default") {
		return text
	}
	def := v.Default
	if v.Tag != nil && (v.Tag.Has("config") || v.Tag.Has("sets")) {
		def = flagDefaults()[v.Flag.Name]
	}
	if def == "" {
		return text
	}
	return strings.TrimSuffix(text, ".") + " (default " + def + ")."
}

// Options returns the parser options for the help.
func Options(all bool, calls func(string) string) []kong.Option {
	return []kong.Option{
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Help(printHelp(all, calls)),
		kong.ValueFormatter(FlagText),
	}
}
