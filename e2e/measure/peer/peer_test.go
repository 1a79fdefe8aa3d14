package peer

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// TestSmall makes a complete run with few Services and rounds. It checks that the report has
// everything for both programs.
func TestSmall(t *testing.T) {
	applytest.RequireRoot(t)
	file, plots := filepath.Join(t.TempDir(), "out.json"), t.TempDir()
	modes := []string{"iptables-legacy"}
	if applytest.All {
		modes = append(modes, "nftables")
	}
	err := scenario.Start("peer", t.Output(), t.Output(), func(r *scenario.Run) error {
		return Run(t.Context(), r, []string{"-services", "50", "-endpoints", "2", "-repeat", "2", "-rounds", "2", "-burst", "5", "-modes", strings.Join(modes, ","),
			"-load", "200ms", "-rest", "1s", "-limit", "1m", "-start-limit", "1m", "-json", file, "-svg", plots})
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 2*len(modes) {
		t.Fatalf("want 2 programs in %d modes, got %d results", len(modes), len(r.Results))
	}
	for _, found := range r.Results {
		t.Run(found.Mode+"/"+found.Program, func(t *testing.T) { checkResult(t, found) })
	}
	for _, w := range r.Wire {
		if w.Bytes <= 0 {
			t.Errorf("%s as %s: nothing was sent", w.What, w.Form)
		}
	}
	files, err := filepath.Glob(filepath.Join(plots, "*.svg"))
	if err != nil || len(files) != len(modes) {
		t.Fatalf("want a plot for each mode, got %q, %v", files, err)
	}
	for _, name := range files {
		checkXML(t, name)
	}
}

// TestPackets makes a complete run of scenario packets with few Services and rounds. Too few to
// compare times: the report must have every value.
func TestPackets(t *testing.T) {
	applytest.RequireRoot(t)
	file, table := filepath.Join(t.TempDir(), "out.json"), &strings.Builder{}
	err := scenario.Start("packets", table, t.Output(), func(r *scenario.Run) error {
		return RunPackets(t.Context(), r, []string{"-services", "20", "-rounds", "10", "-flood", "500ms", "-json", file})
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	var r PacketReport
	if err = errors.Join(err, json.Unmarshal(data, &r)); err != nil {
		t.Fatal(err)
	}
	// A program in a mode has a value for each kind of packet. One NAT rule refuses none.
	const inModes = 2 * 3
	if len(r.Nanos) != (1+inModes)*len(kindsOfPackets)-1 || len(r.Flood) != inModes {
		t.Errorf("values are missing: %s", data)
	}
	for key, value := range r.Nanos {
		if value <= 0 {
			t.Errorf("%s took %g ns", key, value)
		}
	}
	if got, want := strings.Count(table.String(), "\n"), 2+1+len(kindsOfPackets)+1; got != want {
		t.Errorf("want %d lines, got %d:\n%s", want, got, table)
	}
}

func checkResult(t *testing.T, found *result) {
	for _, e := range found.Errors {
		t.Error(e)
	}
	for _, m := range metrics {
		if _, ok := found.Values[m.key]; !ok {
			t.Errorf("%s (%s) is missing", m.key, m.what)
		}
	}
	for _, key := range []string{"start", "start.cpu", "endpoint.cpu", "memory.daemon", "connect.rate", "churn.rate", "api.start", "api.endpoint"} {
		if found.Values[key] <= 0 {
			t.Errorf("%s is %g", key, found.Values[key])
		}
	}
	for _, key := range []string{"endpoint", "added", "removed", "burst"} {
		if len(found.Samples[key]) != 4 {
			t.Errorf("%s: want 2 samples in each of 2 runs, got %v", key, found.Samples[key])
		}
	}
	streamed := func(r request) bool {
		return r.Verb == "watch" && r.Resource == "endpointslices" && r.Start > 0 && strings.Contains(r.Query, "sendInitialEvents=true")
	}
	if !slices.ContainsFunc(found.Requests, streamed) {
		t.Errorf("EndpointSlices were not streamed at start: %+v", found.Requests)
	}
}

func checkXML(t *testing.T, name string) {
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for d := xml.NewDecoder(file); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", filepath.Base(name), err)
		}
	}
}

// The longest wait includes all connections without an answer, but not the pause before the first.
func TestLongestWait(t *testing.T) {
	now := time.Unix(0, 0)
	answers := []answer{atHome, noReply, noReply, moved, atHome}
	connect := func() (got answer, err error) {
		now = now.Add(time.Millisecond)
		got, answers = answers[0], answers[1:]
		return got, nil
	}
	pause := func() error {
		now = now.Add(20 * time.Millisecond)
		if len(answers) == 0 {
			return context.Canceled
		}
		return nil
	}
	longest, err := longestWait(connect, pause, func() time.Time { return now })
	if want := (3 + 2*20) * time.Millisecond; longest != want || err != nil {
		t.Errorf("want %s, got %s and error %v", want, longest, err)
	}
}

// TestTable checks ratios, and values below the resolution.
func TestTable(t *testing.T) {
	r := &report{Options: map[string]any{"services": 1, "endpoints": 2, "mix": "real", "minSync": "1ns"}, Results: []*result{
		{Program: peerName, Mode: "nftables", Values: map[string]float64{"endpoint.p50": 2, "connect.rate": 10}, Errors: []string{"burst: a\nb"}},
		{Program: proxycName, Mode: "nftables", Values: map[string]float64{"endpoint.p50": -0.5, "connect.rate": 30, "start": 3}},
	}}
	table := pairs([]*report{r})[0].table()
	for _, want := range []string{
		"| one endpoint changed, median | 10000 | < 0.20 | 2000 | ms |",
		"| new connections per second, last Service | 3.00 | 30.0 | 10.0 | 1/s |",
		"| start to all Services in the kernel | ? | 3.00 | ? | s |",
		"- not measured: burst: a\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
}

func TestQuery(t *testing.T) {
	got := query("/api/v1/services?allowWatchBookmarks=true&fieldSelector=spec.clusterIP%21%3DNone&resourceVersion=7&timeoutSeconds=300&watch=true")
	if want := "fieldSelector=spec.clusterIP!=None allowWatchBookmarks=true"; got != want {
		t.Errorf("want %q, got %q", want, got)
	}
}
