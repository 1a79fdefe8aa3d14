package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// statusPath is where the metrics server tells the daemon's status.
const statusPath = "/proxyc/status"

// Status is what a daemon is doing.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	Mode    ir.Mode   `json:"mode"`
	Node    string    `json:"node"`
	// Synced tells that the kernel holds what is wanted: nothing waits, and the last sync succeeded.
	Synced bool   `json:"synced"`
	Reason string `json:"reason,omitempty"` // why /readyz is not 200
	// Generation counts the syncs that succeeded.
	Generation int           `json:"generation"`
	Pending    int           `json:"pending"` // Services whose changes no sync has taken yet
	Objects    statusObjects `json:"objects"`
	// APIServer is not there where the source are files.
	APIServer *statusAPI  `json:"apiServer,omitempty"`
	Config    *statusFile `json:"config,omitempty"`   // --config, as it is in force
	Snapshot  *statusFile `json:"snapshot,omitempty"` // --snapshot
	BootFile  *statusFile `json:"bootFile,omitempty"` // --boot-from
	// Kept are files of which an older version counts, since the newest was refused.
	Kept     []statusKept `json:"kept,omitempty"`
	LastSync time.Time    `json:"lastSync,omitzero"`
	LastKind string       `json:"lastKind,omitempty"`
	// Operations are those of the last sync.
	Operations  apply.Count `json:"operations"`
	Quarantined []refusal   `json:"quarantined,omitempty"`
	Broken      []breakage  `json:"broken,omitempty"`
	// Findings are the first of what is wrong or doubtful in objects, of FindingsTotal.
	Findings      []finding    `json:"findings,omitempty"`
	FindingsTotal int          `json:"findingsTotal,omitempty"`
	LastError     *statusError `json:"lastError,omitempty"` // stays after it is overcome
	LastDrift     *statusDrift `json:"lastDrift,omitempty"`
	// MayDrop are rules of others that see packets before ours and may drop some.
	MayDrop []string `json:"mayDrop,omitempty"`
}

// statusObjects counts what is known of the cluster.
type statusObjects struct {
	Services       int `json:"services"`
	EndpointSlices int `json:"endpointSlices"`
	Nodes          int `json:"nodes"`
}

// statusAPI is what is heard of an API server.
type statusAPI struct {
	Server string `json:"server"`
	// Lost is since when it cannot be heard; zero: it can.
	Lost      time.Time     `json:"lost,omitzero"`
	Cause     string        `json:"cause,omitempty"` // "services: connection refused"
	Resources []watch.Heard `json:"resources"`
}

type statusFile struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified,omitzero"` // zero: it is not there
}

type statusKept struct {
	Path   string    `json:"path"`
	Since  time.Time `json:"since"` // the first refusal after a version that was taken
	Reason string    `json:"reason"`
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
	now     func() time.Time
	status  Status
	inForce func() ir.Programs // nil: not known yet
	plan    plan
}

func newState(mode ir.Mode, node string, now func() time.Time) *state {
	return &state{now: now, status: Status{Mode: mode, Node: node}}
}

// queued notes that a sync is wanted.
func (s *state) queued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Synced = false
}

func (s *state) synced(sync *reconcile.Sync) {
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

// setKept sets why the newest version of a file is not what counts; "": it does.
func (s *state) setKept(path, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.now()
	now := slices.DeleteFunc(slices.Clone(s.status.Kept), func(k statusKept) bool {
		if k.Path == path {
			since = k.Since
		}
		return k.Path == path
	})
	if why != "" {
		now = append(now, statusKept{path, since, why})
	}
	s.status.Kept = now
}

// told gives the Status, as far as the state has it.
func (s *state) told(pending int) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Now, st.Pending = s.now(), pending
	st.Synced = st.Synced && pending == 0
	return st
}

// status is all that there is to tell.
func (d *daemon) status() Status {
	st := d.state.told(d.store.Pending())
	st.Version, st.PID, st.Started = version(), os.Getpid(), d.cmd.started
	st.Reason = d.health.Ready().Reason
	d.store.View(func(s *snapshot.Snapshot) {
		st.Objects.Services, st.Objects.EndpointSlices, st.Objects.Nodes = s.Count()
	})
	st.Findings, st.FindingsTotal = d.follower.findings.first(shownFindings)
	if d.contact != nil {
		st.APIServer = &statusAPI{Server: d.contact.Server(), Resources: d.contact.Resources()}
		if lost := d.contact.Silence(); !lost.Since.IsZero() {
			st.APIServer.Lost, st.APIServer.Cause = lost.Since, lost.Resource+": "+lost.Cause
		}
	}
	st.Config = d.configFile
	if d.cmd.Snapshot != "" {
		st.Snapshot = statFile(d.env, d.cmd.Snapshot)
	}
	if d.cmd.BootFrom != "" {
		st.BootFile = statFile(d.env, d.cmd.BootFrom)
	}
	return st
}

// statFile tells of a file as it is now.
func statFile(e *env, path string) *statusFile {
	f := &statusFile{Path: path}
	if info, err := e.files.Stat(path); err == nil {
		f.Modified = info.ModTime()
	}
	return f
}

func serveStatus(w http.ResponseWriter, st Status) {
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
		_, err = e.stdout.Write(body)
	} else {
		err = buffered(e.stdout, func(w io.Writer) error { return st.print(w) })
	}
	if err == nil && !st.wellInformed() {
		return errFindings
	}
	return err
}

// wellInformed reports whether the kernel holds what is wanted, and the daemon
// hears what that is.
func (st *Status) wellInformed() bool {
	return st.Synced && (st.APIServer == nil || st.APIServer.Lost.IsZero())
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
	switch {
	case st.Synced:
		word = "yes"
	case st.Reason != "":
		word += ": " + st.Reason
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("node", "%s", st.Node)
	line("mode", "%s", st.Mode)
	line("version", "%s, process %d, up %s", st.Version, st.PID, age(st.Now, st.Started))
	line("synced", "%s", word)
	if st.Synced && st.Reason != "" {
		line("not ready", "%s", st.Reason)
	}
	line("generation", "%d", st.Generation)
	line("pending", "%d", st.Pending)
	line("objects", "%d Services, %d EndpointSlices, %d Nodes", st.Objects.Services, st.Objects.EndpointSlices, st.Objects.Nodes)
	st.printAPI(line)
	st.printFiles(line)
	if !st.LastSync.IsZero() {
		line("last sync", "%s, %s: %s", st.LastSync.Format(time.RFC3339), st.LastKind, st.Operations)
	}
	for _, q := range st.Quarantined {
		line("quarantined", "Service %s: %s", q.Service, q.Reason)
	}
	for _, b := range st.Broken {
		line("broken", "%s %s: %s", b.Kind, b.Object, b.Reason)
	}
	for _, f := range st.Findings {
		line("finding", "%s: %s", f.Severity, f.text())
	}
	if more := st.FindingsTotal - len(st.Findings); more > 0 {
		line("", "and %d more: proxyc lint tells all", more)
	}
	if st.LastError != nil {
		line("last error", "%s, %s ago: %s", st.LastError.At.Format(time.RFC3339), age(st.Now, st.LastError.At), st.LastError.Error)
	}
	if st.LastDrift != nil {
		line("last drift", "%s: %s", st.LastDrift.At.Format(time.RFC3339), st.LastDrift.Operations)
		for _, op := range st.LastDrift.First {
			line("", "%s", op)
		}
	}
	for _, rule := range st.MayDrop {
		line("may drop", "foreign rules that may drop: %s", rule)
	}
	return nil
}

// printAPI prints what is heard of the API server.
func (st *Status) printAPI(line func(name, format string, args ...any)) {
	api := st.APIServer
	if api == nil {
		return
	}
	line("API server", "%s", api.Server)
	if !api.Lost.IsZero() {
		line("cut off", "since %s, %s ago: %s", api.Lost.Format(time.RFC3339), age(st.Now, api.Lost), api.Cause)
	}
	var heard []string
	for _, r := range api.Resources {
		ago := "never"
		if !r.Last.IsZero() {
			ago = age(st.Now, r.Last).String() + " ago"
		}
		heard = append(heard, r.Resource+" "+ago)
	}
	line("heard", "%s", strings.Join(heard, ", "))
}

// printFiles prints which files count, and which do not.
func (st *Status) printFiles(line func(name, format string, args ...any)) {
	for _, f := range []struct {
		name string
		*statusFile
	}{{"config", st.Config}, {"snapshot", st.Snapshot}, {"boot file", st.BootFile}} {
		switch {
		case f.statusFile == nil:
		case f.Modified.IsZero():
			line(f.name, "%s, not there", f.Path)
		default:
			line(f.name, "%s of %s", f.Path, f.Modified.Format(time.RFC3339))
		}
	}
	for _, k := range st.Kept {
		line("kept", "an older version of %s, since %s ago the newest is refused: %s", k.Path, age(st.Now, k.Since), k.Reason)
	}
}

// age is how long ago something was, in whole seconds.
func age(now, then time.Time) time.Duration { return now.Sub(then).Round(time.Second) }
