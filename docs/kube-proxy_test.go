// Package docs has the tests of what these pages say: that codes, files,
// functions and tests that they name exist, and that tables are true.
package docs

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	root      = ".."
	keyPage   = "kube-proxy.md"
	goldenDir = root + "/testdata/compile"
	caseDir   = root + "/testdata/conformance/cases"
)

var update = flag.Bool("update", false, "write what can be known into the pages")

// families are those of the codes, in the order of the page.
var families = []string{"CFG", "SNAP", "TOP", "PKT", "DET", "IPT", "NFT", "IPV", "WIN", "USR", "DMN"}

// code is the name of a behaviour of kube-proxy: SNAP-27.
type code struct {
	family string
	n      int
}

func (c code) String() string { return c.family + "-" + strconv.Itoa(c.n) }

// behaviour is one entry of the page.
type behaviour struct {
	code
	line   int
	text   string
	fields map[string]string // by "kept", "kube-proxy", "tests" …
}

var (
	headline  = regexp.MustCompile(`^### (` + strings.Join(families, "|") + `)-(\d+)$`)
	fieldLine = regexp.MustCompile(`^- (kept|improved|left out|kube-proxy|proxyc|tests|open)(?:: (.+))?$`)
)

// readKey reads the page's entries, and reports what is not of their form.
func readKey(t *testing.T) []*behaviour {
	t.Helper()
	var all []*behaviour
	var b *behaviour
	for i, line := range strings.Split(readFile(t, keyPage), "\n") {
		bad := func(format string, args ...any) {
			t.Errorf("%s:%d: %s", keyPage, i+1, fmt.Sprintf(format, args...))
		}
		switch h, f := headline.FindStringSubmatch(line), fieldLine.FindStringSubmatch(line); {
		case h != nil:
			n, _ := strconv.Atoi(h[2]) // digits only
			b = &behaviour{code: code{h[1], n}, line: i + 1, fields: map[string]string{}}
			all = append(all, b)
		case strings.HasPrefix(line, "### "):
			bad("must be ### and a code of %v, got %q", families, line)
		case strings.HasPrefix(line, "## "):
			b = nil
		case b == nil || line == "":
		case f != nil:
			if _, twice := b.fields[f[1]]; twice {
				bad("%s: %s: twice", b, f[1])
			}
			b.fields[f[1]] = f[2]
		case strings.HasPrefix(line, "- "):
			bad("%s: unknown line %q", b, line)
		default:
			b.text += line
		}
	}
	return all
}

// TestKeyForm holds each entry of the page to its form: one verdict, a source,
// and code and tests, or the reason why there are none.
func TestKeyForm(t *testing.T) {
	var last code
	for _, b := range readKey(t) {
		bad := func(format string, args ...any) {
			t.Errorf("%s:%d: %s: %s", keyPage, b.line, b, fmt.Sprintf(format, args...))
		}
		was, is := slices.Index(families, last.family), slices.Index(families, b.family)
		if is < was || is == was && b.n <= last.n {
			bad("must come before %s, and once", last)
		}
		last = b.code
		has := func(name string) bool { _, ok := b.fields[name]; return ok }
		if b.text == "" {
			bad("must say what kube-proxy does")
		}
		verdicts := 0
		for _, v := range []string{"kept", "improved", "left out"} {
			if has(v) {
				verdicts++
				if (v == "kept") != (b.fields[v] == "") {
					bad("%s: must have a reason unless kept, got %q", v, b.fields[v])
				}
			}
		}
		if verdicts != 1 {
			bad("must be one of kept, improved, left out")
		}
		if !has("kube-proxy") {
			bad("must say where it comes from")
		}
		if !has("proxyc") && !has("left out") {
			bad("must say what makes it")
		}
		if has("tests") == has("open") {
			bad("must have tests, or else be open for a reason")
		}
		for name, value := range b.fields {
			if name != "kept" && value == "" {
				bad("%s: must not be empty", name)
			}
		}
	}
}

// A code in a text, and what may stand between two that make a range. What
// comes before keeps names of chains (KUBE-SVC-…) out.
var (
	cited     = regexp.MustCompile(`(?:^|[^\w-])((` + strings.Join(families, "|") + `)-(\d+))`)
	rangeTo   = regexp.MustCompile(`^ to ((?:` + strings.Join(families, "|") + `)-(\d+))`)
	shorthand = regexp.MustCompile(`^(?:[-–/]\w|…| ?and \d| to -?\d)`)
	elsewhere = regexp.MustCompile(`(?i)\binventory\b|\bsections? \d+\.\d|§`)
)

// TestCitations checks that every code which a comment, a golden or a page
// cites is one of the page, all within a range included.
func TestCitations(t *testing.T) {
	known := map[code]bool{}
	for _, b := range readKey(t) {
		known[b.code] = true
	}
	for _, path := range sources(t) {
		text := readFile(t, path)
		for i, line := range strings.Split(text, "\n") {
			for _, problem := range citations(line, known) {
				t.Errorf("%s:%d: %s", path, i+1, problem)
			}
			if m := elsewhere.FindString(line); m != "" && strings.HasSuffix(path, ".go") && filepath.Base(path) != "kube-proxy_test.go" {
				t.Errorf("%s:%d: must cite a code of docs/%s, got %q", path, i+1, keyPage, m)
			}
		}
	}
}

// citations returns what is wrong with the codes that a line cites.
func citations(line string, known map[code]bool) (problems []string) {
	for _, m := range cited.FindAllStringSubmatchIndex(line, -1) {
		first, _ := strconv.Atoi(line[m[6]:m[7]])
		family, name, rest := line[m[4]:m[5]], line[m[2]:m[3]], line[m[3]:]
		last := first
		if to := rangeTo.FindStringSubmatch(rest); to != nil {
			if last, _ = strconv.Atoi(to[2]); !strings.HasPrefix(to[1], family+"-") || last <= first {
				problems = append(problems, fmt.Sprintf("%s to %s is no range", name, to[1]))
			}
		} else if shorthand.MatchString(rest) {
			problems = append(problems, fmt.Sprintf("%s: must be one code, or CODE to CODE, got %q", name, name+rest[:min(4, len(rest))]))
		}
		for n := first; n <= last; n++ {
			if c := (code{family, n}); !known[c] {
				problems = append(problems, fmt.Sprintf("%s: is not in docs/%s", c, keyPage))
			}
		}
	}
	return problems
}

func TestCitationsAreUnderstood(t *testing.T) {
	known := map[code]bool{{"IPV", 1}: true, {"IPV", 2}: true, {"IPV", 4}: true}
	for line, want := range map[string][]string{
		"// as IPV-1 has it (IPV-2).":    nil,
		"rules IPV-1 to IPV-2":           nil,
		"# covers: IPV-1 IPV-4":          nil,
		"-A KUBE-IPV-9 and KUBE-SVC-2":   nil,
		"IPV-3":                          {"IPV-3: is not in docs/kube-proxy.md"},
		"rules IPV-2 to IPV-4":           {"IPV-3: is not in docs/kube-proxy.md"},
		"rules IPV-2 to IPV-1":           {"IPV-2 to IPV-1 is no range"},
		"rules IPV-1 to 4":               {`IPV-1: must be one code, or CODE to CODE, got "IPV-1 to "`},
		"rules IPV-1-4":                  {`IPV-1: must be one code, or CODE to CODE, got "IPV-1-4"`},
		"IPV-1/2":                        {`IPV-1: must be one code, or CODE to CODE, got "IPV-1/2"`},
		"(IPV-1): \"IPV-5 in a string\"": {"IPV-5: is not in docs/kube-proxy.md"},
	} {
		if diff := cmp.Diff(want, citations(line, known)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}

// sources are the files in which codes may stand.
func sources(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "fuzz" || name == "bin"):
			return filepath.SkipDir
		case d.IsDir():
		case slices.Contains([]string{".go", ".md", ".txtar", ".yaml"}, filepath.Ext(name)) || name == "Makefile":
			// The cases that a range cannot be told from are this test's own.
			if name != "kube-proxy_test.go" {
				files = append(files, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 100 {
		t.Fatalf("only %d files found", len(files))
	}
	return files
}

// TestKeyIsTrue checks that what entries name exists; goldens are the next test's.
func TestKeyIsTrue(t *testing.T) {
	go_ := newIndex(t)
	for _, b := range readKey(t) {
		bad := func(format string, args ...any) {
			t.Errorf("%s:%d: %s: %s", keyPage, b.line, b, fmt.Sprintf(format, args...))
		}
		for _, name := range quoted.FindAllStringSubmatch(b.fields["proxyc"], -1) {
			if problem := go_.missing(root, name[1]); problem != "" {
				bad("proxyc: %s", problem)
			}
		}
		if b.fields["tests"] == "" {
			continue
		}
		for test := range strings.SplitSeq(b.fields["tests"], ", ") {
			name := strings.Trim(test, "`")
			switch kind, rest, _ := strings.Cut(test, "/"); {
			case name != test:
				if problem := go_.missing(root, name); problem != "" {
					bad("tests: %s", problem)
				} else if !strings.HasPrefix(name[strings.LastIndex(name, ".")+1:], "Test") {
					bad("tests: %s: is no test", name)
				}
			case kind == "conformance":
				if _, err := os.Stat(filepath.Join(caseDir, rest+".yaml")); err != nil {
					bad("tests: %v", err)
				}
			}
		}
	}
}

// TestKeyNamesGoldens checks that each entry names the goldens whose covers
// lines have its code, before its other tests. -update writes them there.
func TestKeyNamesGoldens(t *testing.T) {
	goldens, err := filepath.Glob(goldenDir + "/*.txtar")
	if err != nil || len(goldens) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	shown := map[string][]string{} // goldens by code, in order
	for _, path := range goldens {
		for _, code := range covers(readFile(t, path)) {
			shown[code] = append(shown[code], strings.TrimSuffix(filepath.Base(path), ".txtar"))
		}
	}
	lines := strings.Split(readFile(t, keyPage), "\n")
	for _, b := range readKey(t) {
		var others []string
		for test := range strings.SplitSeq(b.fields["tests"], ", ") {
			if strings.ContainsAny(test, "`/") {
				others = append(others, test)
			}
		}
		want := strings.Join(append(shown[b.String()], others...), ", ")
		if want == b.fields["tests"] {
			continue
		}
		at := slices.IndexFunc(lines[b.line:], func(l string) bool { return strings.HasPrefix(l, "- tests: ") || l == "" })
		if *update && lines[b.line+at] != "" && want != "" {
			lines[b.line+at] = "- tests: " + want
			continue
		}
		t.Errorf("%s:%d: %s: by the goldens' covers lines must have\n- tests: %s\n(make golden writes it), got\n- tests: %s",
			keyPage, b.line, b, want, b.fields["tests"])
	}
	if *update {
		if err := os.WriteFile(keyPage, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	coverage = regexp.MustCompile(`(?m)^# covers: (.*)$`)
)

// covers returns the codes of a golden's head.
func covers(golden string) (codes []string) {
	head, _, _ := strings.Cut(golden, "\n-- ")
	for _, m := range coverage.FindAllStringSubmatch(head, -1) {
		codes = append(codes, strings.Fields(m[1])...)
	}
	return codes
}

// TestKeyNamesKubeProxy checks that the functions of kube-proxy exist, in the
// version that e2e builds.
func TestKeyNamesKubeProxy(t *testing.T) {
	dir := moduleDir(t, "k8s.io/kubernetes")
	if version := strings.TrimPrefix(filepath.Base(dir), "kubernetes@v"); !strings.Contains(readFile(t, keyPage), `"kube-proxy" is `+version) {
		t.Errorf("%s: must say that kube-proxy is %s, as in e2e/go.mod", keyPage, version)
	}
	go_ := newIndex(t)
	found := 0
	for _, b := range readKey(t) {
		for _, m := range quoted.FindAllStringSubmatch(b.fields["kube-proxy"], -1) {
			found++
			if problem := go_.missing(dir, m[1]); problem != "" {
				t.Errorf("%s:%d: %s: kube-proxy: %s", keyPage, b.line, b, problem)
			}
		}
	}
	if found == 0 {
		t.Errorf("%s: names no function of kube-proxy", keyPage)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.ToValidUTF8(data, nil))
}
