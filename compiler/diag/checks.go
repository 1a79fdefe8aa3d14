package diag

import (
	_ "embed"
	"strings"
)

// Check describes a check. The text is the only description of a code: lint --explain, lint --list,
// reports and docs/reference/codes.md print it.
type Check struct {
	Code     Code
	Severity Severity // usual severity; a single finding may have another one
	Title    string   // the condition
	Why      string   // the effect
	Do       string   // the fix
}

// Group is a titled list of checks.
type Group struct {
	Title  string
	Checks []Check
}

// checksText has a paragraph for each group ("# title") and for each check ("CODE severity: title",
// and a line each for effect and fix).
//
//go:embed checks.txt
var checksText string

// Groups returns all checks in the order of their codes.
func Groups() []Group {
	var groups []Group
	severities := map[string]Severity{Error.String(): Error, Warning.String(): Warning, Info.String(): Info}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(checksText), "\n\n") {
		if title, ok := strings.CutPrefix(paragraph, "# "); ok {
			groups = append(groups, Group{Title: title})
			continue
		}
		head, text, _ := strings.Cut(paragraph, "\n")
		head, title, _ := strings.Cut(head, ": ")
		code, severity, _ := strings.Cut(head, " ")
		why, do, _ := strings.Cut(text, "\n")
		group := &groups[len(groups)-1]
		group.Checks = append(group.Checks, Check{Code(code), severities[severity], title, why, do})
	}
	return groups
}

// ByCode returns all checks by code.
func ByCode() map[Code]Check {
	all := map[Code]Check{}
	for _, g := range Groups() {
		for _, c := range g.Checks {
			all[c.Code] = c
		}
	}
	return all
}
