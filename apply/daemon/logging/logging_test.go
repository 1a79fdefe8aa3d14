package logging

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// logged returns the output of a log with these settings on both streams.
func logged(c config.Logging, use func(*Logger)) (stdout, stderr string) {
	var out, errs applytest.Buffer
	use(New(&out, &errs, &c))
	return out.String(), errs.String()
}

// messages returns the messages in a text log.
func messages(text string) (all []string) {
	for line := range strings.Lines(text) {
		_, msg, _ := strings.Cut(line, `] "`)
		msg, _, _ = strings.Cut(msg, `"`)
		all = append(all, msg)
	}
	return all
}

func TestLogSplitStream(t *testing.T) {
	say := func(l *Logger) {
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
	if !strings.HasPrefix(stdout, `{"ts":`) || !strings.Contains(stderr, `"msg":"error","of":"a part"`) || strings.Contains(stdout, "error") {
		t.Errorf("json: stdout %q, stderr %q", stdout, stderr)
	}
}

// The text format is klog's, and the JSON format is kube-proxy's.
func TestLogFormats(t *testing.T) {
	say := func(l *Logger) {
		l.Info("info", "text", `a "b"`, "number", 3, "took", 1500*time.Millisecond, "at", ir.Name{Namespace: "ns", Name: "web"})
		l.Debug("debug")
		l.Warn("warning")
		l.With("of", "part").Error("error", "err", errors.New("why"))
		klog.Background().V(2).Info("from the API client", "n", 1)
		klog.Background().Error(errors.New("why"), "an error of the API client")
	}
	_, text := logged(config.Logging{Verbosity: 4}, say)
	header := regexp.MustCompile(`(?m)^([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} +(\d+) logging_test\.go:\d+\] `)
	for _, m := range header.FindAllStringSubmatch(text, -1) {
		if m[2] != strconv.Itoa(os.Getpid()) {
			t.Errorf("process %s", m[2])
		}
	}
	want := `I "info" text="a \"b\"" number=3 took="1.5s" at="ns/web"
I "debug"
W "warning"
E "error" of="part" err="why"
I "from the API client" n=1
E "an error of the API client" err="why"
`
	if diff := cmp.Diff(want, header.ReplaceAllString(text, "$1 ")); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	began := time.Now()
	_, text = logged(config.Logging{Format: "json", Verbosity: 4}, say)
	var got []map[string]any
	for line := range strings.Lines(text) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		ts, _ := o["ts"].(float64)
		if at := time.UnixMicro(int64(ts * 1000)); at.Before(began.Add(-time.Millisecond)) || at.After(time.Now()) {
			t.Errorf("ts: %v", o["ts"])
		}
		if file, _, _ := strings.Cut(o["caller"].(string), ":"); file != "logging/logging_test.go" {
			t.Errorf("caller: %v", o["caller"])
		}
		delete(o, "ts")
		delete(o, "caller")
		got = append(got, o)
	}
	if diff := cmp.Diff([]map[string]any{
		{"msg": "info", "v": 0., "text": `a "b"`, "number": 3., "took": "1.5s", "at": "ns/web"},
		{"msg": "debug", "v": 4.},
		{"msg": "warning", "v": 0., "level": "WARN"},
		{"msg": "error", "of": "part", "err": "why"},
		{"msg": "from the API client", "v": 2., "n": 1.},
		{"msg": "an error of the API client", "err": "why"},
	}, got); diff != "" {
		t.Errorf("json (-want +got):\n%s", diff)
	}
}

// Buffered messages are written every flushFrequency, when the buffer is full, and at the end.
func TestLogBuffer(t *testing.T) {
	var out, errs applytest.Buffer
	c := config.Logging{Options: config.LogOptions{Text: config.LogStreams{SplitStream: true, InfoBufferSize: "4Ki"}}}
	c.FlushFrequency.Duration.Duration = 10 * time.Millisecond
	l := New(&out, &errs, &c)
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
	go func() { ended <- l.Run(t.Context()) }()
	l.Info("third")
	applytest.Until(t, 2*time.Minute, "flushFrequency writes", func() bool { return strings.Contains(out.String(), "third") })
	t.Cleanup(func() { <-ended })
}

func TestLogVModule(t *testing.T) {
	debug := func(l *Logger) {
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

// The level can be changed during use.
func TestLogVerbosity(t *testing.T) {
	_, stderr := logged(config.Logging{}, func(l *Logger) {
		l.Debug("before")
		l.SetVerbosity(4)
		l.Debug("after")
	})
	if diff := cmp.Diff([]string{"after"}, messages(stderr)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
