package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// proseFile lists accepted exceptions: file, rule and how many.
const proseFile = "prose.txt"

const (
	maxSentence  = 35  // words
	maxParagraph = 6   // lines
	lineWidth    = 120 // characters of a line of a paragraph
)

// limits are the most words of pages, generated ones included.
var limits = map[string]int{
	"reference/nftables.md": 1000, "reference/iptables.md": 1000, "reference/ipvs.md": 1000, "reference/kernelspace.md": 1000,
	"reference/userspace.md": 1000, "reference/ir.md": 1000, "reference/performance.md": 1200,
	"architecture.md": 2500, "development.md": 2500, "dependencies.md": 1000, "conformance.md": 500,
}

var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$|^(?:    .*\n)+")
	oddWords  = regexp.MustCompile(`(?i)\b(tells?|told|minds|hears?|heard|mends?|puts back|whoever|whose-ever|anybody|nobody|somebody|others'|is let be|gives? way|for all that|by the clock|at once|anew)\b`)
	sentence  = regexp.MustCompile(`[.!?]\)?\s+\S`)
	wordLike  = regexp.MustCompile(`[0-9A-Za-z]`)
	// helpText is what a flag's or a verb's tag says.
	helpText = regexp.MustCompile(`help:"((?:[^"\\]|\\.)*)"`)
	anyCode  = regexp.MustCompile(`\b(?:PX\d{3}|(?:` + familyNames() + `)-\d+)\b`)
	// phrased is a code with its phrase: behind the code, or in front of a code in brackets.
	phrased = regexp.MustCompile(`\b(?:PX\d{3}|(?:` + familyNames() + `)-\d+)(?:\)?:| \(\w+\):)|\w[\w' -]+ \((?:PX\d{3}|(?:` + familyNames() + `)-\d+)\)`)
)

// TestProse counts long sentences, long paragraphs, words that programs do not do, and codes without
// a phrase, by file. A file may have as many as prose.txt accepts. -update lowers its numbers.
func TestProse(t *testing.T) {
	got, examples := map[string]int{}, map[string]string{}
	note := func(file, rule, what string) {
		key := strings.TrimPrefix(file, root+"/") + " " + rule
		got[key]++
		examples[key] += "\n\t" + what
	}
	for _, page := range proseFiles(t, "*.md") {
		text := readFile(t, page)
		n := countWords(text)
		name := strings.TrimPrefix(page, root+"/docs/")
		if most := limits[name]; most > 0 && n > most {
			t.Errorf("%s: %d words, at most %d", name, n, most)
		}
		checkPage(page, text, note)
	}
	for _, golden := range proseFiles(t, "*.txtar") {
		for _, m := range oddWords.FindAllString(readFile(t, golden), -1) {
			note(golden, "word", m)
		}
	}
	for _, file := range proseFiles(t, "*.go") {
		for _, help := range helpText.FindAllStringSubmatch(readFile(t, file), -1) {
			for _, m := range oddWords.FindAllString(help[1], -1) {
				note(file, "word", m+": "+help[1])
			}
		}
	}
	accepted := map[string]int{}
	for line := range strings.Lines(readFile(t, proseFile)) {
		var file, rule string
		var n int
		if _, err := fmt.Sscanf(line, "%s %s %d", &file, &rule, &n); err == nil && !strings.HasPrefix(line, "#") {
			accepted[file+" "+rule] = n
		}
	}
	if *update {
		var b strings.Builder
		b.WriteString("# Accepted exceptions of docs.TestProse: file, rule, how many. make golden lowers numbers; none may rise.\n")
		for _, key := range slices.Sorted(maps.Keys(accepted)) {
			if n := min(got[key], accepted[key]); n > 0 {
				fmt.Fprintf(&b, "%s %d\n", key, n)
			}
		}
		if err := os.WriteFile(proseFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if got[key] > accepted[key] {
			t.Errorf("%s: %d, accepted are %d:%s", key, got[key], accepted[key], examples[key])
		}
	}
}

// proseFiles returns the README and pages, scripts and cases of lint, or files with flags.
func proseFiles(t *testing.T, pattern string) (files []string) {
	t.Helper()
	dirs := map[string][]string{
		"*.md":    {root + "/docs"},
		"*.txtar": {root + "/testdata/script", root + "/testdata/lint"},
		"*.go":    {root + "/cmd/proxyc", root + "/compiler/config"},
	}[pattern]
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if ok, _ := filepath.Match(pattern, d.Name()); err == nil && ok && !strings.HasSuffix(path, "_test.go") {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if pattern == "*.md" {
		files = append(files, root+"/README.md")
	}
	return files
}

// countWords counts what has a letter or digit: the bars of tables are no words.
func countWords(text string) (n int) {
	for word := range strings.FieldsSeq(text) {
		if wordLike.MatchString(word) {
			n++
		}
	}
	return n
}

func checkPage(page, text string, note func(file, rule, what string)) {
	text = codeBlock.ReplaceAllString(text, "")
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		lines, prose := 0, ""
		flush := func() {
			if lines > maxParagraph {
				note(page, "paragraph", prose[:60])
			}
			checkSentences(page, prose, note)
			lines, prose = 0, ""
		}
		for line := range strings.SplitSeq(paragraph, "\n") {
			if strings.HasPrefix(line, "|") {
				cells := strings.Split(strings.Trim(line, "| "), " | ")
				for i, cell := range cells {
					checkSentences(page, cell, note)
					if i > 0 {
						checkCodes(page, cell, note)
					}
				}
				continue
			}
			if item := strings.TrimLeft(line, " "); strings.HasPrefix(item, "- ") || strings.HasPrefix(item, "#") || len(item) > 2 && item[1] == '.' && item[0] >= '0' && item[0] <= '9' {
				flush()
			}
			lines += (len(line) + lineWidth - 1) / lineWidth
			prose += line + "\n"
		}
		checkCodes(page, prose, note)
		flush()
	}
	for _, m := range oddWords.FindAllString(text, -1) {
		note(page, "word", m)
	}
}

func checkSentences(page, text string, note func(file, rule, what string)) {
	for text != "" {
		end := len(text)
		if at := sentence.FindStringIndex(text); at != nil {
			end = at[1] - 1
		}
		if n := countWords(text[:end]); n > maxSentence {
			note(page, "sentence", fmt.Sprintf("%d words: %s", n, strings.TrimSpace(text[:min(end, 80)])))
		}
		text = text[end:]
	}
}

func checkCodes(page, text string, note func(file, rule, what string)) {
	text = quoted.ReplaceAllString(text, "") // commands
	for _, m := range anyCode.FindAllString(phrased.ReplaceAllString(text, ""), -1) {
		note(page, "code", m)
	}
}

func TestProseIsUnderstood(t *testing.T) {
	for text, want := range map[string][]string{
		"The daemon retries (SNAP-27).":                     nil,
		"The daemon retries.":                               nil,
		"It is put right, see SNAP-27.":                     {"code SNAP-27"},
		"Node ports are matched last (PKT-18: as before).":  nil,
		"| PX418 | an endpoint is a Service address |":      nil,
		"| see | PX418 |":                                   {"code PX418"},
		"`lint --explain PX418` explains it.":               nil,
		"It tells nobody.":                                  {"word tells", "word nobody"},
		"    tells in an example\n":                         nil,
		strings.Repeat("word ", 36) + "end.":                {"sentence"},
		strings.Repeat("word ", 30) + "end. " + "One more.": nil,
		strings.Repeat("Short words here.\n", 7):            {"paragraph"},
		"- " + strings.Repeat("item.\n- ", 9):               nil,
	} {
		var got []string
		checkPage("page", text, func(_, rule, what string) {
			if rule == "code" || rule == "word" {
				rule += " " + what
			}
			got = append(got, rule)
		})
		if !slices.Equal(got, want) {
			t.Errorf("%q: want %q, got %q", text, want, got)
		}
	}
}
