package parse

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/iptables"
)

var errNotSaved = errors.New("is nothing that iptables-save prints")

// EachSaved calls tell with each line of iptables-save or ip6tables-save that
// contains a chain or rule, and its table. It returns an error for the first
// invalid line, or for a truncated text: each table ends with COMMIT.
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

// SavedWords splits a line of iptables-save into words, without the counters
// before a rule and without quotes. An empty comment "" is a word, too.
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

// SavedRule splits a rule of iptables-save or ip6tables-save into -A or -I, its
// chain and the rest. It normalizes the text of a rule that we can write, so that
// equal rules have equal texts.
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

// SavedTarget returns the target of a rule, or the chain of its jump or goto,
// from its words. It returns "" if there is none.
func SavedTarget(words []string) string {
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "--comment":
			i++ // may be any text, including -j
		case "-j", "-g":
			return words[i+1]
		}
	}
	return ""
}

// Mark parses VALUE or VALUE/MASK. mask is the mask of a value without one.
func Mark(text string, mask uint32) (m iptables.Mark, ok bool) {
	value, maskText, masked := strings.Cut(text, "/")
	v, err := strconv.ParseUint(value, 0, 32)
	m.Value, m.Mask = uint32(v), mask
	if err == nil && masked {
		v, err = strconv.ParseUint(maskText, 0, 32)
		m.Mask = uint32(v)
	}
	return m, err == nil
}

// Ports parses a port, or two with a word between them.
func Ports(text, between string) (r iptables.PortRange, ok bool) {
	first, last, ranged := strings.Cut(text, between)
	if !ranged {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	return iptables.PortRange{First: uint16(a), Last: uint16(b)}, err1 == nil && err2 == nil
}

// Protocol parses the name of a protocol, or its number, which the tools print for some.
func Protocol(text string) (p ir.Protocol, ok bool) {
	for _, known := range [...]ir.Protocol{ir.TCP, ir.UDP, ir.SCTP} {
		if text == strconv.Itoa(int(known)) {
			return known, true
		}
	}
	return ir.ParseProtocol(text)
}

// cutWord returns the first word of the rest of a line without quotes, and the
// text after it. whole is false if a quote is not closed. If there is no word,
// behind equals rest.
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
