package help

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/compiler/diag"
)

// looksLikeFile matches arguments that are probably files.
var looksLikeFile = regexp.MustCompile(`/|\.(ya?ml|json)(\.gz)?$`)

// Explain returns an error of kong with the most similar flags first, or with an example of what is
// missing. command is nil if it is unknown.
func Explain(err error, command *kong.Node) error {
	if command == nil {
		return err
	}
	text := err.Error()
	if name, is := strings.CutPrefix(text, "unexpected argument "); is && looksLikeFile.MatchString(name) {
		if f, _, _ := flagOf(command, "--snapshot"); f != nil {
			return fmt.Errorf("%s: pass a snapshot with -s, and a configuration with -c", err)
		}
	}
	if rest, is := strings.CutPrefix(text, "unknown flag "); is {
		return unknownFlag(command, rest)
	}
	missing, is := strings.CutPrefix(text, "missing flags: ")
	if !is {
		if missing, is = strings.CutPrefix(text, "expected "); !is {
			return err
		}
		missing = strings.ReplaceAll(missing, `"`, "")
		for _, arg := range command.Positional {
			if sentence, _, _ := strings.Cut(arg.Help, ". "); strings.HasPrefix(missing, arg.Summary()) {
				missing += ": " + strings.TrimSuffix(sentence, ".")
			}
		}
	}
	if examples := Verbs()[command.Path()].Examples; len(examples) > 0 {
		return fmt.Errorf("missing %s, as in: %s", missing, examples[0])
	}
	return err
}

// nodeFlags select the node: that of offline verbs, or else that of kube-proxy. nodeWords are names that
// users try.
var nodeFlags = []string{"--node", "--hostname-override"}

var nodeWords = []string{"--node", "--node-name", "--nodename", "--hostname"}

// suggestion matches a flag that kong suggests.
var suggestion = regexp.MustCompile(`"--[^"]+"`)

// unknownFlag returns the error about a flag. rest is its name and kong's suggestions.
func unknownFlag(command *kong.Node, rest string) error {
	name, _, _ := strings.Cut(rest, ",")
	var near []string
	if strings.HasPrefix(name, "--") { // one letter is near to any
		near = diag.NearestFirst(`"`+name+`"`, suggestion.FindAllString(rest, -1))
	}
	if slices.Contains(nodeWords, name) {
		known := slices.IndexFunc(nodeFlags, func(flag string) bool { f, _, _ := flagOf(command, flag); return f != nil })
		if known >= 0 {
			near = []string{`"` + nodeFlags[known] + `"`}
		}
	}
	const shown = 3
	switch near = near[:min(shown, len(near))]; len(near) {
	case 0:
		return errors.New("unknown flag " + name)
	case 1:
		return fmt.Errorf("unknown flag %s, did you mean %s?", name, near[0])
	}
	return fmt.Errorf("unknown flag %s, did you mean one of %s?", name, strings.Join(near, ", "))
}
