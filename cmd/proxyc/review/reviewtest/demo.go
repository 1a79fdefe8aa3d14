package reviewtest

import (
	"regexp"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/demo"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// Demo compiles the cluster of the demo for a mode.
func Demo(t testing.TB, mode ir.Mode) ir.Programs {
	t.Helper()
	file, name := "config.yaml", string(mode)
	flags := config.Flags{Config: &file, Mode: &name}
	resolved, findings := flags.Resolve(demo.Files.ReadFile, true)
	if findings.HasErrors() {
		t.Fatal(findings)
	}
	cluster, err := demo.Files.ReadFile("cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	snap, _ := Decode(cluster)
	programs, _ := Compile(t, resolved.Config, snap, compiler.Facts{NodeName: resolved.NodeName})
	return programs
}

// Edit replaces the first match of a pattern in the first text that has one. The pattern is matched
// against multiple lines. by can refer to the groups of the pattern.
func Edit(t *testing.T, texts []string, pattern, by string) {
	t.Helper()
	at := regexp.MustCompile(`(?m)` + pattern)
	i := slices.IndexFunc(texts, at.MatchString)
	if i < 0 {
		t.Fatalf("no text has anything like %s", pattern)
	}
	text := texts[i]
	where := at.FindStringSubmatchIndex(text)
	texts[i] = text[:where[0]] + string(at.ExpandString(nil, by, text, where)) + text[where[1]:]
}
