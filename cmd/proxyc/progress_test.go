package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/cmd/proxyc/disk"
)

// cleared is the sequence that clears the progress line.
const cleared = "\r\x1b[K"

// After one second, a terminal shows what the verb waits for. The line is cleared before other
// output. Outputs that are not terminals have no such line.
func TestProgress(t *testing.T) {
	const config = "testdata/review/config.yaml"
	for _, verb := range []struct {
		args []string
		says []string
	}{
		{[]string{"diff", "-c", "../../" + config, "-s", "../../testdata/review/old", "-S", "../../testdata/review/new", "--all-nodes"}, []string{"reading the cluster", "compiling", "comparing packets"}},
		{[]string{"prove", "-c", "../../" + config, "-s", "../../testdata/review/old", "--hostname-override", "node1", "ir", "mode:nftables"}, []string{"reading the cluster", "compiling", "comparing packets"}},
		{[]string{"lint", "-c", "../../" + config, "-s", "../../testdata/review/old"}, []string{"reading the cluster", "linting"}},
		{[]string{"migrate", "-c", "../../" + config, "-s", "../../testdata/review/old", "--from", "iptables", "--to", "nftables", "--all-nodes"}, []string{"reading the cluster", "compiling", "comparing packets"}},
		{[]string{"compile", "-c", "../../" + config, "-s", "../../testdata/review/old", "--hostname-override", "node1"}, []string{"reading the cluster", "compiling"}},
	} {
		run := func(terminal bool) (string, []string) {
			var all bytes.Buffer
			var lines []string
			stopped := false
			e := testEnv(t, disk.OS{}, verb.args...)
			e.terminal = terminal
			e.stdout, e.stderr = &all, &all
			e.regularly = func(after, every time.Duration, f func()) func() {
				if after != time.Second {
					t.Errorf("%s: reported after %s, want a second", verb.args[0], after)
				}
				f()
				return func() { stopped = true }
			}
			if code := run(e); code == exitBad {
				t.Fatalf("%v: %s", verb.args, all.String())
			}
			if terminal && !stopped {
				t.Errorf("%s: the line is written for ever", verb.args[0])
			}
			text := all.String()
			for {
				at := strings.Index(text, cleared+"proxyc: ")
				if at < 0 {
					break
				}
				end := strings.Index(text[at+len(cleared):], cleared)
				if at > 0 || end < 0 {
					t.Fatalf("%s: a line is not taken away, or comes behind output: %q", verb.args[0], all.String())
				}
				lines = append(lines, text[:len(cleared)+end])
				text = text[len(cleared)+end:]
			}
			return strings.TrimPrefix(text, cleared), lines
		}
		quiet, none := run(false)
		out, lines := run(true)
		if len(none) > 0 || quiet != out {
			t.Errorf("%s: another output without a terminal, or a line there: %q", verb.args[0], none)
		}
		if got := strings.Join(lines, "\n"); !oneAfterOther(got, verb.says) {
			t.Errorf("%s: got %q, want %q in it", verb.args[0], got, verb.says)
		}
	}
}

func oneAfterOther(text string, parts []string) bool {
	for _, part := range parts {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at:]
	}
	return true
}

// The line shows the counts when it is next written.
func TestProgressCounts(t *testing.T) {
	var out bytes.Buffer
	var show func()
	e, _, end := (&env{stdout: io.Discard, stderr: &out, terminal: true, regularly: func(_, _ time.Duration, f func()) func() { show = f; return func() {} }}).forPeople()
	ctx := e.comparing(t.Context())
	if ctx == t.Context() || out.Len() > 0 {
		t.Fatalf("reported at once: %q", out.String())
	}
	e.progress.Count(0, 40)
	e.progress.Count(3, 0)
	show()
	end()
	show()
	want := cleared + "proxyc: comparing packets, destinations: 3 of 40 ..." + cleared
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
