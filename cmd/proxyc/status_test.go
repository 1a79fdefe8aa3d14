package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/status"
)

// The verb prints what the daemon says, and ends with 1 unless all is well.
func TestStatusVerb(t *testing.T) {
	st := status.Status{Process: status.Process{Node: "node1"}, Syncs: status.Syncs{Synced: true}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != status.StatusPath {
			t.Errorf("asked for %s", r.URL.Path)
		}
		json.NewEncoder(w).Encode(st)
	}))
	defer server.Close()
	ask := func(want int) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		code := run(&env{args: []string{"status", "--address", strings.TrimPrefix(server.URL, "http://")}, stdout: &stdout, stderr: &stderr})
		if code != want || !strings.Contains(stdout.String(), "node         node1\n") {
			t.Errorf("exit code %d, want %d, output\n%s%s", code, want, &stdout, &stderr)
		}
	}
	ask(exitDone)
	st.APIServer = &status.APIServer{Lost: time.Now()}
	ask(exitFindings)
	st = status.Status{Process: status.Process{Node: "node1"}}
	ask(exitFindings)
}

func TestStatusNobody(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	address := strings.TrimPrefix(server.URL, "http://")
	for _, want := range []string{"is not a proxyc daemon", "no daemon answers"} {
		var stdout, stderr bytes.Buffer
		code := run(&env{args: []string{"status", "--address", address}, stdout: &stdout, stderr: &stderr})
		if code != exitBad || !strings.Contains(stderr.String(), want) {
			t.Errorf("exit code %d, %q, want %d and %q", code, stderr.String(), exitBad, want)
		}
		server.Close()
	}
}

func TestCalledAs(t *testing.T) {
	for file, want := range map[string]string{
		"kube-proxy":              "proxyc [watch]",
		"proxyc":                  "proxyc []",
		"proxyc.exe":              "proxyc []",
		"kubectl-proxyc":          "kubectl proxyc []",
		"kubectl-proxyc.exe":      "kubectl proxyc []",
		"kubectl_complete-proxyc": "proxyc [__complete --for-kubectl]",
	} {
		name, words := help.CalledAs(file)
		if got := fmt.Sprint(name, " ", words); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// If no daemon answers, the verb names the writer of the rules. It distinguishes a daemon that
// hangs from one that is not there.
func TestStatusSays(t *testing.T) {
	c := &statusCmd{Address: "127.0.0.1:10249"}
	for _, tc := range []struct {
		err          error
		writer, want string
	}{
		{errors.New("no daemon answers: connection refused"), "", "127.0.0.1:10249: no daemon answers: connection refused; if it uses another metricsBindAddress or a --status-socket, use --address or --status-socket"},
		{errors.New("the daemon hangs"), "process 7 (proxyc watch)", "127.0.0.1:10249: the daemon hangs; process 7 (proxyc watch) writes this node's rules"},
	} {
		if got := c.noAnswer(tc.err, tc.writer).Error(); got != tc.want {
			t.Errorf("%v, %q:\ngot  %s\nwant %s", tc.err, tc.writer, got, tc.want)
		}
	}
}
