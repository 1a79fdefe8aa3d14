package watch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// lines collects a recording while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	came chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.came <- struct{}{} }()
	return l.text.Write(p)
}

// recorded waits for n events and returns them.
func (l *lines) recorded(t *testing.T, n int) []Recorded {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		l.mu.Lock()
		events, cut, err := ReadRecording(l.text.Bytes())
		l.mu.Unlock()
		if len(events) >= n && (err != nil || cut) {
			t.Fatal(err, cut)
		}
		if len(events) >= n {
			return events
		}
		select {
		case <-l.came:
		case <-limit:
			t.Fatalf("%d events, want %d: %v", len(events), n, events)
		}
	}
}

func words(events []Recorded) (out []string) {
	for _, e := range events {
		out = append(out, e.String())
	}
	return out
}

// record records a server until stop is called.
func record(t *testing.T, server *fakeAPI) (out *lines, stop func()) {
	t.Helper()
	c, err := newCluster(server.config(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out = &lines{came: make(chan struct{}, 100)}
	ended := make(chan error)
	go func() { _, err := c.Record(ctx, out, time.Now, func(int) {}); ended <- err }()
	return out, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A recording contains the initial objects and each relevant change, including those found only by
// a relist. Playing it restores the same objects.
func TestRecord(t *testing.T) {
	server := newFakeAPI(t)
	svc := service("web", "10.0.0.1")
	other := service("other", "10.0.0.2")
	server.objects["services"] = []any{svc, other}
	out, stop := record(t, server)
	if got := out.recorded(t, 3); got[2].Type != Synced {
		t.Errorf("first: %q", words(got))
	}
	same := svc.DeepCopy()
	same.Annotations = map[string]string{"unknown": "x"}
	server.Send("services", "MODIFIED", same)
	changed := svc.DeepCopy()
	changed.Spec.ClusterIP = "10.0.0.3"
	server.Send("services", "MODIFIED", changed)
	out.recorded(t, 4)
	server.End("services", changed, service("third", "10.0.0.4"))
	got := out.recorded(t, 6)
	stop()
	want := "ADDED Service ns/other|ADDED Service ns/web|SYNCED|MODIFIED Service ns/web|ADDED Service ns/third|DELETED Service ns/other"
	if text := strings.Join(words(got), "|"); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	store := NewStore(time.Now)
	for i := range got {
		if diags := store.Play(&got[i]); diags.HasErrors() {
			t.Error(diags)
		}
	}
	var names []string
	store.View(func(s *snapshot.Snapshot) {
		for _, svc := range s.Services() {
			names = append(names, svc.Name.String()+" "+svc.ClusterIP)
		}
	})
	if text := strings.Join(names, ", "); text != "ns/third 10.0.0.4, ns/web 10.0.0.3" {
		t.Errorf("played: %s", text)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestRecordEndsWhereNothingCanBeWritten(t *testing.T) {
	server := newFakeAPI(t)
	c, err := newCluster(server.config(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Record(t.Context(), full{}, time.Now, func(int) {}); err == nil || err.Error() != "disk full" {
		t.Error(err)
	}
}

// A truncated recording is read up to its last complete line. Other files are rejected with a line
// number.
func TestReadRecording(t *testing.T) {
	const good = `{"at":"2026-01-02T03:04:05Z","type":"SYNCED"}` + "\n"
	of := func(event, object string) string {
		return `{"at":"2026-01-02T03:04:05Z","type":"` + event + `","object":` + object + "}\n"
	}
	for _, c := range []struct {
		text   string
		events int
		cut    bool
		err    string
	}{
		{good + good, 2, false, ""},
		{good + good[:20], 1, true, ""},
		{good + good[:len(good)-1], 1, true, ""},
		{good + good[:20] + "\n", 1, true, ""}, // an editor added the newline
		{good[:20], 0, true, "has no event"},
		{good + strings.Replace(good, "SYNCED", "SYNCD", 1), 1, false,
			`line 2: must be an event in the format of proxyc record: type: must be ADDED, MODIFIED, DELETED, SYNCED, got "SYNCD"`},
		{good + "x\n", 1, false, "line 2: must be an event in the format of proxyc record: is not JSON"},
		{strings.Replace(good, "}", "}x", 1) + good, 1, false, "line 1: must be an event in the format of proxyc record: unexpected data after the object"},
		{strings.Replace(good, "}", "} {}", 1) + good, 1, false, "line 1: must be an event in the format of proxyc record: unexpected data after the object"},
		{strings.Replace(good, "\n", " \r\n", 1) + good, 2, false, ""},
		{good + of("DELETED", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"b"}}`), 2, false, ""},
		{good + of("DELETED", `{"apiVersion":"v1","kind":"Servize","metadata":{"name":"a","namespace":"b"}}`), 1, false,
			`line 2: must be an event in the format of proxyc record: object.kind: must be Service, EndpointSlice, Node, ServiceCIDR, got "Servize"`},
		{good + of("ADDED", `[]`), 1, false,
			`line 2: must be an event in the format of proxyc record: object.kind: must be Service, EndpointSlice, Node, ServiceCIDR, got ""`},
		{good + of("DELETED", `{"apiVersion":"v1","kind":"Node","metadata":{}}`), 1, false, "line 2: must be an event in the format of proxyc record: object.metadata.name: must be set"},
		{"", 0, false, "has no event"},
		{good + "x\n" + strings.Replace(good, "SYNCED", "NONE", 1), 1, false, "line 2: must be an event in the format of proxyc record: is not JSON\n" +
			`line 3: must be an event in the format of proxyc record: type: must be ADDED, MODIFIED, DELETED, SYNCED, got "NONE"`},
	} {
		events, cut, err := ReadRecording([]byte(c.text))
		text := ""
		if err != nil {
			text = err.Error()
		}
		if len(events) != c.events || cut != c.cut || text != c.err {
			t.Errorf("%q: %d events, cut %t, %v", c.text, len(events), cut, err)
		}
	}
}
