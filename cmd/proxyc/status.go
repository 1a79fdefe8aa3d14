package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/loop"
	"github.com/proxyc/proxyc/ir"
)

// statusPath is where the metrics server tells the daemon's status.
const statusPath = "/proxyc/status"

// Status is what a daemon is doing.
type Status struct {
	Mode ir.Mode `json:"mode"`
	Node string  `json:"node"`
	// Synced tells that the kernel holds what is wanted: nothing waits, and the last sync succeeded.
	Synced bool `json:"synced"`
	// Generation counts the syncs that succeeded.
	Generation int       `json:"generation"`
	Pending    int       `json:"pending"` // Services whose changes no sync has taken yet
	LastSync   time.Time `json:"lastSync,omitzero"`
	LastKind   string    `json:"lastKind,omitempty"`
	// Operations are those of the last sync.
	Operations  apply.Count  `json:"operations"`
	Quarantined []refusal    `json:"quarantined,omitempty"`
	Broken      []breakage   `json:"broken,omitempty"`
	LastError   *statusError `json:"lastError,omitempty"` // stays after it is overcome
	LastDrift   *statusDrift `json:"lastDrift,omitempty"`
}

type refusal struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

// breakage is an object of whose newest version nothing counts.
type breakage struct {
	Kind   string `json:"kind"`   // "services"
	Object string `json:"object"` // "ns/web"
	Reason string `json:"reason"`
}

type statusError struct {
	At    time.Time `json:"at"`
	Error string    `json:"error"`
}

type statusDrift struct {
	At         time.Time   `json:"at"`
	Operations apply.Count `json:"operations"`
	First      []string    `json:"first"` // operations: "add ip proxyc chain services"
}

// state collects the Status.
type state struct {
	mu      sync.Mutex
	status  Status
	inForce func() ir.Programs // nil: not known yet
	plan    plan
}

func newState(mode ir.Mode, node string) *state {
	return &state{status: Status{Mode: mode, Node: node}}
}

// queued notes that a sync is wanted.
func (s *state) queued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Synced = false
}

func (s *state) synced(sync *loop.Sync) {
	p := newPlan(sync)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = p
	st := &s.status
	if st.Synced = sync.Err == nil; !st.Synced {
		st.LastError = &statusError{sync.Ended, sync.Err.Error()}
		return
	}
	st.Generation++
	st.LastSync, st.LastKind, st.Operations = sync.Ended, sync.Kind.String(), sync.Done.Operations
	st.Quarantined = nil
	for _, r := range sync.Done.Refused {
		st.Quarantined = append(st.Quarantined, refusal{r.Service.String(), r.Reason.Error()})
	}
	if total(sync.Done.Drift) > 0 {
		st.LastDrift = &statusDrift{At: sync.Ended, Operations: sync.Done.Drift}
		for _, op := range sync.Done.DriftFirst {
			st.LastDrift.First = append(st.LastDrift.First, op.Verb.String()+" "+op.Object)
		}
	}
}

// setBroken sets which objects of a kind are broken, and why.
func (s *state) setBroken(kind string, why map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(s.status.Broken), func(b breakage) bool { return b.Kind == kind })
	for _, object := range slices.Sorted(maps.Keys(why)) {
		now = append(now, breakage{kind, object, why[object]})
	}
	s.status.Broken = now
}

// setInForce sets what tells the Programs in force.
func (s *state) setInForce(f func() ir.Programs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce = f
}

func (s *state) serve(w http.ResponseWriter, pending int) {
	s.mu.Lock()
	st := s.status
	s.mu.Unlock()
	st.Pending = pending
	st.Synced = st.Synced && pending == 0
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(st) // an error is the client's, who went away
}

// programs gives the Programs in force; nil while nobody knows.
func (s *state) programs() ir.Programs {
	s.mu.Lock()
	inForce := s.inForce
	s.mu.Unlock()
	if inForce == nil {
		return ir.Programs{}
	}
	return inForce()
}

type statusCmd struct {
	Address string `default:"127.0.0.1:10249" placeholder:"ADDRESS" help:"Of the daemon: IP:PORT of its metrics server, or unix:PATH of its --status-socket."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

// statusTimeout is how long a daemon may take to answer.
const statusTimeout = 5 * time.Second

func (c *statusCmd) Run(e *env) error {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	host, client := c.Address, http.DefaultClient
	if path, ok := strings.CutPrefix(c.Address, unixPrefix); ok {
		host, client = "localhost", unixClient(path)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+statusPath, nil)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no daemon answers: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var st Status
	if err := json.Unmarshal(body, &st); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: is no proxyc daemon: it answers %s", c.Address, resp.Status)
	}
	if c.Output == "json" {
		_, err := e.stdout.Write(body)
		return err
	}
	return buffered(e.stdout, func(w io.Writer) error { return st.print(w) })
}

// unixPrefix stands before the path of a unix socket in an address.
const unixPrefix = "unix:"

// unixClient asks at a unix socket, whatever the host.
func unixClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
}

func (st *Status) print(w io.Writer) error {
	word := "no"
	if st.Synced {
		word = "yes"
	}
	fmt.Fprintf(w, "node         %s\nmode         %s\nsynced       %s\ngeneration   %d\npending      %d\n", st.Node, st.Mode, word, st.Generation, st.Pending)
	if !st.LastSync.IsZero() {
		fmt.Fprintf(w, "last sync    %s, %s: %s\n", st.LastSync.Format(time.RFC3339), st.LastKind, st.Operations)
	}
	for _, q := range st.Quarantined {
		fmt.Fprintf(w, "quarantined  Service %s: %s\n", q.Service, q.Reason)
	}
	for _, b := range st.Broken {
		fmt.Fprintf(w, "broken       %s %s: %s\n", b.Kind, b.Object, b.Reason)
	}
	if st.LastError != nil {
		fmt.Fprintf(w, "last error   %s: %s\n", st.LastError.At.Format(time.RFC3339), st.LastError.Error)
	}
	if st.LastDrift != nil {
		fmt.Fprintf(w, "last drift   %s: %s\n", st.LastDrift.At.Format(time.RFC3339), st.LastDrift.Operations)
		for _, op := range st.LastDrift.First {
			fmt.Fprintf(w, "             %s\n", op)
		}
	}
	return nil
}
