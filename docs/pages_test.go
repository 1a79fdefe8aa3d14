package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A page names pieces of the repository as `apply/serve.Metrics` or
// `testdata/compile`, and targets of the Makefile as `make check`.
var (
	named  = regexp.MustCompile("`((?:apply|cmd|compiler|docs|e2e|ir|render|testdata)(?:[./][\\w./-]*)?)`")
	target = regexp.MustCompile("`make ([a-z-]+)`")
	link   = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
)

// TestPagesNameWhatExists checks that packages, files, functions, targets and
// pages that the pages and the README name are there.
func TestPagesNameWhatExists(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	makefile := readFile(t, root+"/Makefile")
	go_ := newIndex(t)
	for _, page := range append(pages, root+"/README.md", "deploy/README.md", root+"/testdata/compile/README.md") {
		text := readFile(t, page)
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err == nil || page == keyPage {
				continue // that page has kube-proxy's packages, too, and a test of its own
			}
			if problem := go_.missing(root, m[1]); problem != "" {
				t.Errorf("%s: %s", page, problem)
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: make %s: is no target", page, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: link: %v", page, err)
			}
		}
	}
}

// TestPagesOfModesThatAreNotApplied: a mode without an applier is not said to
// be written, and one with an applier is not said to be refused.
func TestPagesOfModesThatAreNotApplied(t *testing.T) {
	go_ := newIndex(t)
	for mode, page := range map[string]string{
		"iptables": "iptables.md", "nftables": "nftables.md", "ipvs": "ipvs.md", "userspace": "userspace.md", "hns": "hns.md"} {
		text := readFile(t, page)
		applied := go_.missing(root, "apply/"+mode+".Open") == ""
		if refused := strings.Contains(text, "`apply` and `watch` refuse the mode"); refused == applied {
			t.Errorf("%s: says that apply and watch refuse the mode: %t; there is an applier: %t", page, refused, applied)
		}
		if !applied && strings.Contains(text, "daemon") {
			t.Errorf("%s: speaks of a daemon, which does not write the mode", page)
		}
	}
}

// TestPerformanceIsLogged: each figure of the comparison with kube-proxy is one
// of the runs in the laboratory book.
func TestPerformanceIsLogged(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "performance.md"), "## Beside kube-proxy")
	section, _, _ = strings.Cut(section, "\n## ")
	log := strings.Split(readFile(t, "performance-log.md"), "\n")
	figures := 0
	for row := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 7 {
			continue
		}
		for _, figure := range cells[1:] {
			logged := func(line string) bool {
				return strings.HasPrefix(line, "| "+cells[0]+" |") && strings.Contains(line, " "+figure+" |")
			}
			if figures++; !slices.ContainsFunc(log, logged) {
				t.Errorf("performance.md: %s: %s is in no run of performance-log.md", cells[0], figure)
			}
		}
	}
	if figures < 20 {
		t.Errorf("only %d figures found", figures)
	}
}

// TestModulesAreNamed: who wants to change proxyc finds each module beside the
// first one in development.md, and make setup fetches what it needs.
func TestModulesAreNamed(t *testing.T) {
	modules, err := filepath.Glob(root + "/e2e/*/go.mod")
	if err != nil || len(modules) == 0 {
		t.Fatalf("no modules: %v", err)
	}
	page, makefile := readFile(t, "development.md"), readFile(t, root+"/Makefile")
	for _, m := range modules {
		name := "e2e/" + filepath.Base(filepath.Dir(m))
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("development.md does not name the module %s", name)
		}
		if !strings.Contains(makefile, "cd "+name+" && $(GO) mod download\n") {
			t.Errorf("make setup does not fetch the modules of %s", name)
		}
	}
}
