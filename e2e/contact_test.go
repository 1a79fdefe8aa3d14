package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// contact is the part of `proxyc status -o json` about the API server.
type contact struct {
	Synced    bool
	Reason    string
	APIServer struct {
		Server    string
		Lost      time.Time
		Cause     string
		Resources []struct {
			Resource string
			Last     time.Time
		}
	}
}

// status returns the status of the daemon on the node, and the exit code of `proxyc status`.
func (n *node) status(t *testing.T) (c contact, code int) {
	t.Helper()
	out, err := n.Run(n.Command(t.Context(), proxyc, "status", "-o", "json"))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	if json.Unmarshal(out, &c) != nil {
		t.Fatalf("status: %v: %s", err, out)
	}
	return c, code
}

// TestContact checks that a daemon that has lost contact with the API server logs this once, is
// not ready, and stays alive. It does so whether connections are refused or the server vanishes
// silently. With continuous contact it logs nothing.
func TestContact(t *testing.T) {
	parallel(t)
	if applytest.All {
		quiet := newNode(t)
		p := quiet.watch(t.Context(), t)
		began := time.Now()
		defer func() { quiet.bookmarks(t, p, began) }()
	}
	n := newNode(t)
	p := n.watch(t.Context(), t, "--unready-after", "3s")
	probe := func(path string, want int) func() error {
		return func() error {
			code, body, err := p.Get(t.Context(), "http://127.0.0.1:10256"+path)
			if err == nil && code != want {
				err = fmt.Errorf("%s: %d %s, want %d", path, code, body, want)
			}
			return err
		}
	}
	in := func(want bool) func() error {
		return func() error {
			c, code := n.status(t)
			if c.APIServer.Lost.IsZero() != want || (code == 0) != want || !c.Synced {
				return fmt.Errorf("exit code %d, %+v", code, c)
			}
			return nil
		}
	}
	eventually(t, 10*time.Second, "contact", in(true))
	c, _ := n.status(t)
	if len(c.APIServer.Resources) != 4 || !strings.Contains(c.APIServer.Server, n.gate.Addr()) {
		t.Errorf("status: %+v", c)
	}
	for _, r := range c.APIServer.Resources {
		if r.Last.IsZero() {
			t.Errorf("nothing was heard of %s", r.Resource)
		}
	}
	for i, way := range []struct {
		name       string
		begin, end func()
		cause      string
		limit      time.Duration // of the detection
	}{
		{"refused", n.gate.Shut, n.gate.Open, "", 10 * time.Second},
		// client-go sends a ping after 30 s, and waits 15 s for an answer.
		{"vanished", n.gate.Freeze, func() { n.gate.Cut(); n.gate.Thaw() }, "connection lost", 60 * time.Second},
	} {
		way.begin()
		t.Logf("%s: noticed after %s", way.name, eventually(t, way.limit, way.name, in(false)))
		if c, _ := n.status(t); !strings.Contains(c.APIServer.Cause, way.cause) || c.APIServer.Cause == "" {
			t.Errorf("%s: cause %q", way.name, c.APIServer.Cause)
		}
		eventually(t, 10*time.Second, "not ready", probe("/readyz", 503))
		if _, body, err := p.Get(t.Context(), "http://127.0.0.1:10256/readyz"); err != nil || !strings.Contains(string(body), n.gate.Addr()) {
			t.Errorf("%s: /readyz does not name the server: %s, %v", way.name, body, err)
		}
		if err := probe("/livez", 200)(); err != nil {
			t.Error(err)
		}
		way.end()
		t.Logf("%s: back after %s", way.name, eventually(t, catchUp, "contact again", in(true)))
		eventually(t, 10*time.Second, "ready", probe("/readyz", 200))
		text, err := os.ReadFile(p.Log)
		if err != nil {
			t.Fatal(err)
		}
		log := string(text)
		lost, back := strings.Count(log, "contact with the API server is lost"), strings.Count(log, "contact with the API server is restored")
		if lost != i+1 || back != i+1 || strings.Contains(log, "Failed to watch") || strings.Contains(log, "watch ended") {
			t.Errorf("%s: logged %d times that contact is lost, %d times that it is back:\n%s", way.name, lost, back, log)
		}
	}
}

// bookmarks waits for bookmarks. If nothing changes in a cluster, the server still sends one
// about each minute, which counts as contact.
func (n *node) bookmarks(t *testing.T, p *kube.Proxy, began time.Time) {
	t.Helper()
	eventually(t, 4*time.Minute, "bookmarks", func() error {
		c, _ := n.status(t)
		for _, r := range c.APIServer.Resources {
			if r.Last.Before(began.Add(10 * time.Second)) { // the initial objects are older
				return fmt.Errorf("%s: last heard of after %s", r.Resource, r.Last.Sub(began))
			}
		}
		return nil
	})
	_, page, err := p.Get(t.Context(), "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		for _, want := range []string{`proxyc_api_contact{resource="` + resource + `"} 1`, `proxyc_api_last_event_timestamp_seconds{resource="` + resource + `"} `} {
			if !strings.Contains(page, want) {
				t.Errorf("no %s", want)
			}
		}
	}
}
