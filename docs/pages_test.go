package docs

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	reference, err := filepath.Glob("reference/*.md")
	if err != nil || len(reference) == 0 {
		t.Fatalf("no pages of reference: %v", err)
	}
	pages = append(pages, reference...)
	makefile := readFile(t, root+"/Makefile")
	go_ := newIndex(t)
	for _, page := range append(pages, root+"/README.md", "deploy/README.md", root+"/testdata/compile/README.md") {
		text := readFile(t, page)
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err == nil {
				continue
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
		"iptables": "iptables", "nftables": "nftables", "ipvs": "ipvs", "userspace": "userspace", "hns": "kernelspace"} {
		page = "reference/" + page + ".md"
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

const performancePage = "reference/performance.md"

// figures returns the rows of the comparison with kube-proxy: by the name of each, two figures for each mode.
func figures(t *testing.T) map[string][]string {
	t.Helper()
	rows := map[string][]string{}
	_, section, _ := strings.Cut(readFile(t, performancePage), "## Compared with kube-proxy\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.SplitSeq(section, "\n") {
		if cells := strings.Split(strings.Trim(line, "| "), " | "); len(cells) == 7 && strings.ContainsAny(cells[1], "0123456789") {
			rows[cells[0]] = cells[1:]
		}
	}
	if len(rows) < 6 {
		t.Fatalf("%s: only %d rows of figures", performancePage, len(rows))
	}
	return rows
}

// TestPerformanceIsLogged checks that each figure of the comparison with kube-proxy is in the results of a run.
func TestPerformanceIsLogged(t *testing.T) {
	log := strings.Split(readFile(t, "performance/runs.txt"), "\n")
	for what, row := range figures(t) {
		for _, figure := range row {
			logged := func(line string) bool {
				return strings.HasPrefix(line, "| "+what+" |") && strings.Contains(line, " "+figure+" |")
			}
			if !slices.ContainsFunc(log, logged) {
				t.Errorf("%s: %s: %s is in no run of performance/runs.txt", performancePage, what, figure)
			}
		}
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

// TestReadmeRatios checks the README's ratios of kube-proxy's times and memory to proxyc's against the
// figures of the page, in two digits.
func TestReadmeRatios(t *testing.T) {
	said := map[string][]string{}
	for line := range strings.SplitSeq(readFile(t, root+"/README.md"), "\n") {
		if cells := strings.Split(strings.Trim(line, "| "), " | "); len(cells) == 4 {
			said[cells[0]] = cells[1:]
		}
	}
	for what, of := range figures(t) {
		got := said[what]
		if got == nil {
			t.Errorf("README.md does not have %q", what)
			continue
		}
		for i := range 3 {
			ours, theirs := figure(t, of[2*i]), figure(t, of[2*i+1])
			ratio := theirs / ours
			if strings.HasSuffix(of[2*i], "/s") {
				ratio = 1 / ratio
			}
			if want, err := strconv.ParseFloat(fmt.Sprintf("%.1e", ratio), 64); err != nil || figure(t, got[i]) != want {
				t.Errorf("README.md: %s, column %d: %s, and %s beside %s are %v", what, i+1, got[i], of[2*i], of[2*i+1], want)
			}
		}
	}
}

// figure returns a number with a unit, in seconds where it is a time.
func figure(t *testing.T, text string) float64 {
	t.Helper()
	number, unit, _ := strings.Cut(strings.TrimSuffix(text, "/s"), " ")
	n, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}
	if unit == "ms" {
		n /= 1000
	}
	return n
}

// TestDrawing: the drawing is for light and dark pages and for who does not see it, shows
// no font or colour of a reader's other scheme, and names packages that there are.
func TestDrawing(t *testing.T) {
	var svg struct {
		Title string `xml:"title"`
		Desc  string `xml:"desc"`
		Style string `xml:"style"`
		Texts []struct {
			Class string `xml:"class,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(readFile(t, "way.svg")), &svg); err != nil {
		t.Fatal(err)
	}
	light, dark, _ := strings.Cut(svg.Style, "@media (prefers-color-scheme: dark)")
	for _, class := range []string{"text ", ".small", ".code", ".box", ".core", ".node", ".way", ".head"} {
		if !strings.Contains(light, class) || !strings.Contains(dark, class) {
			t.Errorf("way.svg: %s: has not a colour for each scheme", class)
		}
	}
	packages := 0
	for _, text := range svg.Texts {
		if text.Class != "code" {
			continue
		}
		for dir := range strings.FieldsSeq(text.Text) {
			packages++
			if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
				t.Errorf("way.svg: %v", err)
			}
		}
	}
	if packages < 6 || len(svg.Title) == 0 || len(svg.Desc) < 100 {
		t.Errorf("way.svg has %d packages, title %q, description %q", packages, svg.Title, svg.Desc)
	}
}

// TestMetricsAreListed checks that metrics.md has every metric of the daemon, and no other.
func TestMetricsAreListed(t *testing.T) {
	const page = "reference/metrics.md"
	name := regexp.MustCompile("[\"`]((?:proxyc|kubeproxy)_[a-z0-9_]*[a-z0-9])[\"`]")
	in := func(text string) map[string]bool {
		names := map[string]bool{}
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "proxyc_proxy_") { // names that the code composes
				names[m[1]] = true
			}
		}
		return names
	}
	files, err := filepath.Glob(root + "/apply/serve/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	var source strings.Builder
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			source.WriteString(readFile(t, file))
		}
	}
	if diff := cmp.Diff(in(source.String()), in(readFile(t, page))); diff != "" {
		t.Errorf("%s (-apply/serve +page):\n%s", page, diff)
	}
}
