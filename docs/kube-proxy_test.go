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
	"sigs.k8s.io/yaml"
)

const (
	root            = ".."
	keyFile         = "kube-proxy.yaml"
	differencesPage = "reference/differences.md"
	goldenDir       = root + "/testdata/compile"
	caseDir         = root + "/testdata/conformance/cases"
)

var update = flag.Bool("update", false, "write what can be known into the pages")

// families are those of the codes, in the order of the file, with what they are about.
var families = []struct{ name, title string }{
	{"CFG", "Configuration"},
	{"SNAP", "Services, EndpointSlices and Nodes"},
	{"TOP", "Choice of endpoints"},
	{"PKT", "Packets"},
	{"DET", "Detection of pods"},
	{"IPT", "Mode iptables"},
	{"NFT", "Mode nftables"},
	{"IPV", "Mode ipvs"},
	{"WIN", "Mode kernelspace"},
	{"USR", "Mode userspace"},
	{"DMN", "Daemon"},
}

// code is the name of a behaviour of kube-proxy: SNAP-27.
type code struct {
	family string
	n      int
}

func (c code) String() string { return c.family + "-" + strconv.Itoa(c.n) }

// key is the file of behaviours; its comment describes the fields.
type key struct {
	Version    string       `json:"kube-proxy"`
	Behaviours []*behaviour `json:"behaviours"`
}

type behaviour struct {
	Code      string `json:"code"`
	Phrase    string `json:"phrase"`
	Improved  string `json:"improved"`
	LeftOut   string `json:"left out"`
	KubeProxy string `json:"kube-proxy"`
	Proxyc    string `json:"proxyc"`
	Tests     string `json:"tests"`
	Open      string `json:"open"`
}

func (b *behaviour) code(t *testing.T) code {
	t.Helper()
	family, number, _ := strings.Cut(b.Code, "-")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("%s: %s: %v", keyFile, b.Code, err)
	}
	return code{family, n}
}

func readKey(t *testing.T) (k key) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(readFile(t, keyFile)), &k); err != nil {
		t.Fatalf("%s: %v", keyFile, err)
	}
	return k
}

// TestKeyForm checks that each entry has a phrase, a source, and code and tests, or the reason why there are none.
func TestKeyForm(t *testing.T) {
	rank := map[string]int{}
	for i, f := range families {
		rank[f.name] = i + 1
	}
	var last code
	for _, b := range readKey(t).Behaviours {
		bad := func(problem string) { t.Errorf("%s: %s: %s", keyFile, b.Code, problem) }
		c := b.code(t)
		if rank[c.family] == 0 || rank[c.family] < rank[last.family] || c.family == last.family && c.n <= last.n {
			bad("is of no family, or out of order")
		}
		last = c
		if b.Phrase == "" || len(strings.Fields(b.Phrase)) > 20 {
			bad("needs a phrase of at most 20 words")
		}
		if b.Improved != "" && b.LeftOut != "" {
			bad("must not be both improved and left out")
		}
		if b.KubeProxy == "" {
			bad("needs its source in kube-proxy")
		}
		if b.Proxyc == "" && b.LeftOut == "" {
			bad("needs the declarations that implement it")
		}
		if (b.Tests == "") == (b.Open == "") {
			bad("needs tests, or the reason why there are none")
		}
	}
}

// TestDifferences renders the improved behaviours as a page.
func TestDifferences(t *testing.T) {
	k := readKey(t)
	var b strings.Builder
	fmt.Fprintf(&b, `# Differences from kube-proxy

proxyc handles packets, objects and commands as kube-proxy %s does, except for these intentional differences. Mode userspace is compared with kube-proxy 1.25.

Generated from `+"`docs/kube-proxy.yaml`"+`, which lists all %d behaviours with codes, sources and tests. [Changes of kube-proxy 1.38](kube-proxy-1.38.tsv).
`, k.Version, len(k.Behaviours))
	for _, f := range families {
		fmt.Fprintf(&b, "\n## %s\n\n| kube-proxy | proxyc |\n|---|---|\n", f.title)
		rows := 0
		for _, of := range k.Behaviours {
			if of.code(t).family != f.name || of.Improved == "" {
				continue
			}
			fmt.Fprintf(&b, "| %s (%s) | %s |\n", of.Phrase, of.Code, of.Improved)
			rows++
		}
		if rows == 0 {
			out := strings.TrimSuffix(b.String(), "| kube-proxy | proxyc |\n|---|---|\n")
			b.Reset()
			b.WriteString(out + "No differences.\n")
		}
	}
	if *update {
		if err := os.WriteFile(differencesPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(readFile(t, differencesPage), b.String()); diff != "" {
		t.Errorf("%s: make golden writes it (-page +%s):\n%s", differencesPage, keyFile, diff)
	}
}

// A code in a text, and what may stand between two that make a range. What
// comes before keeps names of chains (KUBE-SVC-…) out.
var (
	cited     = regexp.MustCompile(`(?:^|[^\w-])((` + familyNames() + `)-(\d+))`)
	rangeTo   = regexp.MustCompile(`^ to ((?:` + familyNames() + `)-(\d+))`)
	shorthand = regexp.MustCompile(`^(?:[-–/]\w|…| ?and \d| to -?\d)`)
	elsewhere = regexp.MustCompile(`(?i)\binventory\b|\bsections? \d+\.\d|§`)
)

func familyNames() string {
	var names []string
	for _, f := range families {
		names = append(names, f.name)
	}
	return strings.Join(names, "|")
}

// TestCitations checks that the file has every code that a comment, a golden or a page
// cites, all within a range included.
func TestCitations(t *testing.T) {
	known := map[code]bool{}
	for _, b := range readKey(t).Behaviours {
		known[b.code(t)] = true
	}
	for _, path := range sources(t) {
		text := readFile(t, path)
		for i, line := range strings.Split(text, "\n") {
			for _, problem := range citations(line, known) {
				t.Errorf("%s:%d: %s", path, i+1, problem)
			}
			if m := elsewhere.FindString(line); m != "" && strings.HasSuffix(path, ".go") && filepath.Base(path) != "kube-proxy_test.go" {
				t.Errorf("%s:%d: must cite a code of docs/%s, got %q", path, i+1, keyFile, m)
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
				problems = append(problems, fmt.Sprintf("%s: is not in docs/%s", c, keyFile))
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
		"IPV-3":                          {"IPV-3: is not in docs/kube-proxy.yaml"},
		"rules IPV-2 to IPV-4":           {"IPV-3: is not in docs/kube-proxy.yaml"},
		"rules IPV-2 to IPV-1":           {"IPV-2 to IPV-1 is no range"},
		"rules IPV-1 to 4":               {`IPV-1: must be one code, or CODE to CODE, got "IPV-1 to "`},
		"rules IPV-1-4":                  {`IPV-1: must be one code, or CODE to CODE, got "IPV-1-4"`},
		"IPV-1/2":                        {`IPV-1: must be one code, or CODE to CODE, got "IPV-1/2"`},
		"(IPV-1): \"IPV-5 in a string\"": {"IPV-5: is not in docs/kube-proxy.yaml"},
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
			// The cases that a range cannot be distinguished from are this test's own.
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
	for _, b := range readKey(t).Behaviours {
		bad := func(format string, args ...any) {
			t.Errorf("%s: %s: %s", keyFile, b.Code, fmt.Sprintf(format, args...))
		}
		for _, name := range quoted.FindAllStringSubmatch(b.Proxyc, -1) {
			if problem := go_.missing(root, name[1]); problem != "" {
				bad("proxyc: %s", problem)
			}
		}
		if b.Tests == "" {
			continue
		}
		for test := range strings.SplitSeq(b.Tests, ", ") {
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
	text := readFile(t, keyFile)
	for _, b := range readKey(t).Behaviours {
		var others []string
		for test := range strings.SplitSeq(b.Tests, ", ") {
			if strings.ContainsAny(test, "`/") {
				others = append(others, test)
			}
		}
		want := strings.Join(append(shown[b.Code], others...), ", ")
		if want == b.Tests {
			continue
		}
		before, entry, _ := strings.Cut(text, "- code: "+b.Code+"\n")
		entry, after, _ := strings.Cut(entry, "\n- ")
		if was := "  tests: '" + b.Tests + "'"; *update && want != "" && strings.Contains(entry, was) {
			text = before + "- code: " + b.Code + "\n" + strings.Replace(entry, was, "  tests: '"+want+"'", 1) + "\n- " + after
			continue
		}
		t.Errorf("%s: %s: by the goldens' covers lines must have\n  tests: '%s'\n(make golden writes it), got\n  tests: '%s'",
			keyFile, b.Code, want, b.Tests)
	}
	if *update {
		if err := os.WriteFile(keyFile, []byte(text), 0o644); err != nil {
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
	k := readKey(t)
	if version := strings.TrimPrefix(filepath.Base(dir), "kubernetes@v"); k.Version != version {
		t.Errorf("%s: kube-proxy must be %s, as in e2e/go.mod, got %s", keyFile, version, k.Version)
	}
	go_ := newIndex(t)
	found := 0
	for _, b := range k.Behaviours {
		for _, m := range quoted.FindAllStringSubmatch(b.KubeProxy, -1) {
			found++
			if problem := go_.missing(dir, m[1]); problem != "" {
				t.Errorf("%s: %s: kube-proxy: %s", keyFile, b.Code, problem)
			}
		}
	}
	if found == 0 {
		t.Errorf("%s: names no function of kube-proxy", keyFile)
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
