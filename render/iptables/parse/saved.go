package parse

import (
	"errors"
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

var errNotSaved = errors.New("is nothing that iptables-save prints")

// EachSaved calls tell with each chain and rule that iptables-save or ip6tables-save printed, as
// the line has it, and the table in which it stands. It returns an error that names the
// first line that is none of theirs, or says that the text was cut off: each table ends with COMMIT.
func EachSaved(text string, tell func(table, line string)) error {
	open, n := "", 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		name, begins := strings.CutPrefix(line, "*")
		var err error
		switch {
		case line == "" || line[0] == '#':
		case begins && open != "":
			err = noCommit(open)
		case begins:
			open = name
		case open == "":
			err = errNotSaved
		case line == "COMMIT":
			open = ""
		case line[0] == ':', strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "), counters.MatchString(line):
			tell(open, line)
		default:
			err = errNotSaved
		}
		if err != nil {
			return fmt.Errorf("line %d: %q: %w", n, line, err)
		}
	}
	if open != "" {
		return fmt.Errorf("cut off: %w", noCommit(open))
	}
	return nil
}

func noCommit(table string) error { return fmt.Errorf("table %s has no COMMIT at its end", table) }

// SavedWords splits a line that iptables-save printed into its words: without the counters
// before a rule, and without the quotes about some. A comment "" is a word, too.
func SavedWords(line string) (words []string) {
	rest := strings.TrimSpace(line)
	if strings.HasPrefix(rest, "[") {
		rest = counters.ReplaceAllString(rest, "")
	}
	for {
		word, after, _ := cutWord(rest)
		if after == rest {
			return words
		}
		words, rest = append(words, word), after
	}
}

// SavedRule splits a rule that iptables-save or ip6tables-save printed into -A or -I, its chain and
// the rest. A rule of a kind that we write is returned as we write it, so that equal rules have
// equal texts.
func SavedRule(f ir.Family, line string) (option, chain, text string) {
	if line[0] == '[' {
		line = counters.ReplaceAllString(line, "")
	}
	option, rest, _ := strings.Cut(line, " ")
	chain, text, _ = strings.Cut(rest, " ")
	text = strings.TrimSpace(text)
	if r := parseRule(f, text); r.Raw == "" {
		text = string(r.Append(nil, f))
	}
	return option, chain, text
}

// SavedTarget returns the target of a rule, or the chain that it jumps or goes to, of its
// words; empty: it has none.
func SavedTarget(words []string) string {
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "--comment":
			i++ // may be anything, -j too
		case "-j", "-g":
			return words[i+1]
		}
	}
	return ""
}

// cutWord returns the first word of the rest of a line, without the quotes that the tools
// put around some, and what comes behind it. It is not whole if its quote has no end. Where
// there is no word, behind is rest.
func cutWord(rest string) (word, behind string, whole bool) {
	from := strings.TrimLeft(rest, " ")
	if from == "" {
		return "", rest, true
	}
	if from[0] != '"' {
		word, behind, _ = strings.Cut(from, " ")
		return word, behind, true
	}
	for i := 1; i < len(from); i++ {
		switch from[i] {
		case '\\':
			i++
		case '"':
			return unescape(from[1:i]), from[i+1:], true
		}
	}
	return from, "", false
}

func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b = append(b, s[i])
	}
	return string(b)
}
