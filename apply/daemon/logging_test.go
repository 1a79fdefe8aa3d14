package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler/config"
)

// logged gives what a log with these settings writes to both streams.
func logged(c config.Logging, use func(*logger)) (stdout, stderr string) {
	var out, errs applytest.Buffer
	use(newLogger(&out, &errs, &c))
	return out.String(), errs.String()
}

// messages are the messages in a text log.
func messages(text string) (all []string) {
	for line := range strings.Lines(text) {
		_, msg, _ := strings.Cut(line, "msg=")
		all = append(all, strings.Fields(msg)[0])
	}
	return all
}

func TestLogSplitStream(t *testing.T) {
	say := func(l *logger) {
		l.Info("info")
		l.Warn("warning")
		l.With("of", "a part").Error("error")
		l.Debug("debug")
	}
	stdout, stderr := logged(config.Logging{}, say)
	if diff := cmp.Diff([][]string{nil, {"info", "warning", "error"}}, [][]string{messages(stdout), messages(stderr)}); diff != "" {
		t.Errorf("in one stream (-want +got):\n%s", diff)
	}
	split := config.LogStreams{SplitStream: true}
	stdout, stderr = logged(config.Logging{Options: config.LogOptions{Text: split}}, say)
	if diff := cmp.Diff([][]string{{"info", "warning"}, {"error"}}, [][]string{messages(stdout), messages(stderr)}); diff != "" {
		t.Errorf("in two streams (-want +got):\n%s", diff)
	}
	stdout, stderr = logged(config.Logging{Format: "json", Options: config.LogOptions{JSON: split}}, say)
	if !strings.HasPrefix(stdout, `{"time":`) || !strings.Contains(stderr, `"msg":"error","of":"a part"`) || strings.Contains(stdout, "error") {
		t.Errorf("json: stdout %q, stderr %q", stdout, stderr)
	}
}

// What is buffered is written every flushFrequency, when the buffer is full, and at the end.
func TestLogBuffer(t *testing.T) {
	var out, errs applytest.Buffer
	c := config.Logging{Options: config.LogOptions{Text: config.LogStreams{SplitStream: true, InfoBufferSize: "4Ki"}}}
	c.FlushFrequency.Duration.Duration = 10 * time.Millisecond
	l := newLogger(&out, &errs, &c)
	l.Info("first")
	if got := out.String(); got != "" {
		t.Fatalf("written at once: %q", got)
	}
	l.Error("error")
	if got := errs.String(); got == "" {
		t.Error("an error waits")
	}
	l.Info("second", "text", strings.Repeat("x", 4096))
	if got := out.String(); !strings.Contains(got, "first") {
		t.Errorf("the buffer is full, and there is %q", got)
	}
	ended := make(chan error, 1)
	go func() { ended <- l.flush(t.Context()) }()
	l.Info("third")
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(out.String(), "third") {
		if time.Now().After(deadline) {
			t.Fatal("flushFrequency does not write")
		}
		time.Sleep(time.Millisecond)
	}
	t.Cleanup(func() { <-ended })
}

func TestLogVModule(t *testing.T) {
	debug := func(l *logger) {
		l.Debug("debug")
		l.Log(t.Context(), verbosity(6), "trace")
		l.Info("info")
	}
	for _, tt := range []struct {
		name    string
		modules []config.VModule
		verbose uint32
		want    []string
	}{
		{"none", nil, 0, []string{"info"}},
		{"this file", []config.VModule{{FilePattern: "logging_test", Verbosity: 4}}, 0, []string{"debug", "info"}},
		{"by pattern", []config.VModule{{FilePattern: "logg*", Verbosity: 6}}, 0, []string{"debug", "trace", "info"}},
		{"another file", []config.VModule{{FilePattern: "watch", Verbosity: 6}}, 0, []string{"info"}},
		{"the first that matches", []config.VModule{{FilePattern: "logging_test", Verbosity: 1}, {FilePattern: "*", Verbosity: 6}}, 0, []string{"info"}},
		{"never less than -v", []config.VModule{{FilePattern: "logging_test", Verbosity: 1}}, 4, []string{"debug", "info"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, stderr := logged(config.Logging{VModule: tt.modules, Verbosity: tt.verbose}, debug)
			if diff := cmp.Diff(tt.want, messages(stderr)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The level can be changed while the log is in use.
func TestLogVerbosity(t *testing.T) {
	_, stderr := logged(config.Logging{}, func(l *logger) {
		l.Debug("before")
		setVerbosity(l.level, 4)
		l.Debug("after")
	})
	if diff := cmp.Diff([]string{"after"}, messages(stderr)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
