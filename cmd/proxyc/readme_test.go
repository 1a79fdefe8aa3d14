package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// consoleBlock is a shell session in a Markdown file.
var consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// TestReadme runs the sessions of the README, and TestReview those of docs/review.md, with
// the files of testdata/review.
func TestReadme(t *testing.T) { playPage(t, "../../README.md") }

func TestReview(t *testing.T) {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CLONE", dir)
	playPage(t, "../../docs/review.md")
}

// playPage runs the sessions of a page, one after the other in one directory, and
// compares what they print. -update rewrites them.
func playPage(t *testing.T, name string) {
	was, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	is := consoleBlock.ReplaceAllFunc(was, func(block []byte) []byte {
		return session(t, dir, block)
	})
	if *update {
		must(t, os.WriteFile(name, is, 0o644))
		return
	}
	if diff := cmp.Diff(string(was), string(is)); diff != "" {
		t.Errorf("%s differs from what the program does (-want +got):\n%s", name, diff)
	}
}

// variable matches shell variables that a reader has to set.
var variable = regexp.MustCompile(`\$[A-Z_]+|\$\{[A-Z_]+\}`)

// session runs the commands of a block, the lines that begin with "$ ", and
// returns the block with what they print now.
func session(t *testing.T, dir string, block []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("```console\n")
	commands := 0
	for line := range strings.Lines(string(block)) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if !ok {
			continue
		}
		commands++
		if name := variable.FindString(command); name != "" { // empty, it would name another place, such as /
			t.Fatalf("%s: %s may not be set where somebody follows the page: write ${NAME:?}", command, name)
		}
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(cmd.Environ(), "LC_ALL=C")
		text, err := cmd.CombinedOutput()
		if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
			t.Fatalf("%s: %v", command, err)
		}
		out.WriteString(line)
		out.Write(text)
	}
	if commands == 0 {
		t.Errorf("a session without a command:\n%s", block)
	}
	out.WriteString("```")
	return out.Bytes()
}
