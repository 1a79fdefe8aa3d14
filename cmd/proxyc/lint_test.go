package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/compiler/diag"
)

const lintCases = "../../testdata/lint"

// A lintCase is a file of testdata/lint: the input in which a check finds something
// (trigger…), and one in which it nearly does (nearly…). What begins with neither is for
// both. Lines of the comment give flags:
//
//	flags: --mode ipvs
//	trigger: --strict
//	link: trigger/x.yaml /dev/null
type lintCase struct {
	name    string
	archive *txtar.Archive
	dir     string
	flags   map[string][]string // "flags", "trigger", "nearly"
	have    map[string]bool
}

func readLintCase(t *testing.T, code diag.Code) *lintCase {
	t.Helper()
	c := &lintCase{name: filepath.Join(lintCases, string(code)+".txtar"), dir: t.TempDir(), flags: map[string][]string{}, have: map[string]bool{}}
	archive, err := txtar.ParseFile(c.name)
	if err != nil {
		t.Fatalf("each check has a case: %v", err)
	}
	c.archive = archive
	if c.name, err = filepath.Abs(c.name); err != nil {
		t.Fatal(err)
	}
	write := func(name string, put func(path string) error) {
		path := filepath.Join(c.dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, put(path))
		first, _, _ := strings.Cut(name, "/")
		c.have[first] = true
	}
	for _, f := range archive.Files {
		write(f.Name, func(path string) error { return os.WriteFile(path, f.Data, 0o644) })
	}
	for line := range strings.Lines(string(archive.Comment)) {
		key, rest, ok := strings.Cut(strings.TrimSpace(line), ": ")
		switch words := strings.Fields(rest); {
		case !ok || strings.HasPrefix(key, "#"):
		case key == "link":
			write(words[0], func(path string) error { return os.Symlink(words[1], path) })
		default:
			c.flags[key] = words
		}
	}
	return c
}

// args is the command line for "trigger" or "nearly".
func (c *lintCase) args(side string, more ...string) []string {
	args := slices.Concat([]string{"lint"}, c.flags["flags"], c.flags[side], more)
	for _, name := range []string{side + "-config.yaml", "config.yaml"} {
		if c.have[name] {
			args = append(args, "-c", name)
			break
		}
	}
	for _, name := range []string{"both.yaml", side + ".yaml", side} {
		if c.have[name] {
			args = append(args, "-s", name)
		}
	}
	return args
}

// findings runs one side, and returns the lines of what has the code.
func (c *lintCase) findings(t *testing.T, side string, code diag.Code) (lines []string, severities []string) {
	t.Helper()
	t.Chdir(c.dir)
	e := testEnv(t, disk.OS{}, c.args(side, "-o", "json")...)
	var stdout, stderr bytes.Buffer
	e.stdout, e.stderr = &stdout, &stderr
	run(e)
	var report struct {
		Findings []struct{ Code, Severity, Object, Field, File, Message, Why, Do string }
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("%s: %v\n%s%s", side, err, &stdout, &stderr)
	}
	for _, f := range report.Findings {
		if f.Code == "" || f.Why == "" || f.Do == "" {
			t.Errorf("%s: a finding without code, why or what to do: %+v", side, f)
		}
		if f.Code == string(code) {
			severities = append(severities, f.Severity)
		}
	}
	e = testEnv(t, disk.OS{}, c.args(side, "--all-findings")...)
	stdout.Reset()
	e.stdout, e.stderr = &stdout, &stderr
	run(e)
	for line := range strings.Lines(stdout.String()) {
		if strings.HasSuffix(line, " ["+string(code)+"]\n") {
			lines = append(lines, line)
		}
	}
	if len(lines) != len(severities) {
		t.Errorf("%s: %d findings as JSON, %d as text", side, len(severities), len(lines))
	}
	return lines, severities
}

// want returns what the trigger leads to, as it is recorded.
func (c *lintCase) want() string {
	for _, f := range c.archive.Files {
		if f.Name == "want" {
			return string(f.Data)
		}
	}
	return ""
}

// Each check has a case in which it finds something, of its usual severity, and one
// that differs little in which it does not.
func TestLintChecks(t *testing.T) {
	for _, g := range diag.Groups() {
		for _, check := range g.Checks {
			t.Run(string(check.Code), func(t *testing.T) {
				c := readLintCase(t, check.Code)
				lines, severities := c.findings(t, "trigger", check.Code)
				if len(lines) == 0 || !slices.Contains(severities, check.Severity.String()) {
					t.Fatalf("finds nothing, or nothing of severity %s: %v", check.Severity, severities)
				}
				if nearly, _ := c.findings(t, "nearly", check.Code); len(nearly) > 0 {
					t.Errorf("what is nearly wrong is found wrong:\n%s", strings.Join(nearly, ""))
				}
				if differ := c.differ(); differ > 8 {
					t.Errorf("trigger and nearly differ in %d lines: that is not near", differ)
				}
				if *update {
					c.record(t, strings.Join(lines, ""))
				} else if d := cmp.Diff(c.want(), strings.Join(lines, "")); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
	}
}

// differ returns how many lines one side has and the other has not.
func (c *lintCase) differ() int {
	lines := map[string]int{}
	for _, f := range c.archive.Files {
		name, by := f.Name, 1
		if rest, ok := strings.CutPrefix(name, "trigger"); ok {
			name = rest
		} else if rest, ok := strings.CutPrefix(name, "nearly"); ok {
			name, by = rest, -1
		} else {
			continue
		}
		for line := range strings.Lines(string(f.Data)) {
			lines[name+": "+line] += by
		}
	}
	n := 0
	for _, count := range lines {
		n += max(count, -count)
	}
	return n
}

func (c *lintCase) record(t *testing.T, want string) {
	t.Helper()
	c.archive.Files = slices.DeleteFunc(c.archive.Files, func(f txtar.File) bool { return f.Name == "want" })
	c.archive.Files = append(c.archive.Files, txtar.File{Name: "want", Data: []byte(want)})
	must(t, os.WriteFile(c.name, txtar.Format(c.archive), 0o644))
}

// No case is without a check, and the table is in order.
func TestLintTable(t *testing.T) {
	checks := diag.ByCode()
	files, err := filepath.Glob(lintCases + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if code := strings.TrimSuffix(filepath.Base(file), ".txtar"); checks[diag.Code(code)].Code == "" {
			t.Errorf("%s: there is no such check", file)
		}
	}
	var last diag.Code
	for _, g := range diag.Groups() {
		for _, c := range g.Checks {
			if c.Code <= last || c.Severity == 0 || c.Title == "" || !strings.HasSuffix(c.Why, ".") || !strings.HasSuffix(c.Do, ".") {
				t.Errorf("%s: out of order, or incomplete", c.Code)
			}
			last = c.Code
		}
	}
	source, err := os.ReadFile("../../compiler/diag/codes.go")
	must(t, err)
	constants := regexp.MustCompile(`Code = "(PX\d+)"`).FindAllStringSubmatch(string(source), -1)
	for _, c := range constants {
		if checks[diag.Code(c[1])].Code == "" {
			t.Errorf("%s: has no description in checks.txt", c[1])
		}
	}
	if len(checks) != len(constants) {
		t.Errorf("%d checks, of %d constants", len(checks), len(constants))
	}
}

const codesHead = `# Codes of findings

Every finding of ` + "`proxyc lint`" + ` has a code. ` + "`proxyc lint --explain PX418`" + ` also prints its effect.

A single finding can have another severity. An error means that the named piece is ignored. Without a fix in the table, the message has it. [Review](../review.md#lint) describes how to accept findings.

This page is generated from ` + "`compiler/diag/checks.txt`" + ` (` + "`go test ./cmd/proxyc -run TestLintCodes -update`" + `).
`

// docs/reference/codes.md has the description of each check.
func TestLintCodes(t *testing.T) {
	const name = "../../docs/reference/codes.md"
	var b strings.Builder
	b.WriteString(codesHead)
	cell := strings.NewReplacer("|", `\|`).Replace
	for _, g := range diag.Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n| code | condition | fix |\n|---|---|---|\n", g.Title)
		for _, c := range g.Checks {
			fix := cell(c.Do)
			if strings.Contains(fix, "the message") {
				fix = ""
			}
			fmt.Fprintf(&b, "| %s, %s | %s | %s |\n", c.Code, c.Severity, cell(c.Title), fix)
		}
	}
	if *update {
		must(t, os.WriteFile(name, []byte(b.String()), 0o644))
		return
	}
	was, err := os.ReadFile(name)
	must(t, err)
	if d := cmp.Diff(string(was), b.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}
