package review

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Live reads a daemon's input.
func Live(socket string) (*Input, ir.Programs, error) {
	var programs ir.Programs
	ctx := context.Background()
	known, err := FetchKnown(ctx, socket)
	if err == nil {
		programs, err = FetchIR(ctx, socket)
	}
	if err == nil && programs.IPv4 == nil {
		err = errors.New("no rules are applied yet")
	}
	if err != nil {
		return nil, programs, fmt.Errorf("--status-socket %s: %w", socket, err)
	}
	return &Input{Live: true, Resolved: &config.Resolved{Config: known.Config}, Snapshot: known.Snapshot.Snapshot(), Facts: known.Facts, errors: errorsOf(known.Findings)}, programs, nil
}

// FetchKnown reads a daemon's input from its status socket.
func FetchKnown(ctx context.Context, socket string) (known status.Known, err error) {
	known, err = fetch[status.Known](ctx, socket, status.KnownPath)
	if known.Snapshot == nil {
		known.Snapshot = new(snapshot.Document)
	}
	return known, err
}

// FetchStatus reads a daemon's status from its status socket, or from the IP:PORT of its metrics server.
func FetchStatus(ctx context.Context, socket string) (status.Status, error) {
	return fetch[status.Status](ctx, socket, status.StatusPath)
}

// FetchTraffic reads the traffic that a daemon counted from its status socket.
func FetchTraffic(ctx context.Context, socket string) (status.Traffic, error) {
	return fetch[status.Traffic](ctx, socket, status.TrafficPath)
}

// fetch reads a JSON document from a daemon's status socket.
func fetch[T any](ctx context.Context, socket, path string) (v T, err error) {
	err = askDaemon(ctx, socket, path, func(r io.Reader) error { return json.NewDecoder(r).Decode(&v) })
	return v, err
}

// ReadFacts adds what this machine contributes to its rules, as for the daemon that writes them.
func (j *Input) ReadFacts(interfaces func() ([]compiler.Interface, error)) (err error) {
	if j.Facts.Interfaces, err = interfaces(); err != nil {
		return err
	}
	writer := host.Writer()
	j.Facts.Files = writer == "" || strings.Contains(writer, " -s") || strings.Contains(writer, " --snapshot") // else it has an API server
	j.Facts.TCPBeLiberal = host.Liberal()
	return host.Facts(j.Config, &j.Facts)
}

// Daemon is what a daemon reports about its node; zero without a daemon.
type Daemon struct {
	status.Status
	InForce ir.Programs
}

// FetchDaemon asks the daemon at a status socket; "" for none.
func FetchDaemon(ctx context.Context, socket string) (d Daemon) {
	if socket != "" {
		d.Status, _ = FetchStatus(ctx, socket) // what is unknown is not printed
		d.InForce, _ = FetchIR(ctx, socket)
	}
	return d
}

// FetchIR reads a daemon's applied Programs from its status socket.
func FetchIR(ctx context.Context, socket string) (programs ir.Programs, err error) {
	err = askDaemon(ctx, socket, status.IRPath, func(r io.Reader) (err error) {
		programs, err = ir.ReadJSON(r)
		return err
	})
	return programs, err
}

// silent contains when the daemon at a socket did not answer: a command that asks several times waits once.
var silent sync.Map

// askDaemon sends a request to a daemon's status socket, and reads the response.
func askDaemon(ctx context.Context, socket, path string, read func(io.Reader) error) error {
	hangs := fmt.Errorf("the daemon does not answer within %s, so it is stopped or hangs", AnswerTimeout)
	if at, known := silent.Load(socket); known && time.Since(at.(time.Time)) < AnswerTimeout {
		return hangs
	}
	server, client := "localhost", unixClient(socket)
	if _, port, err := net.SplitHostPort(socket); err == nil && port != "" && !strings.Contains(socket, "/") {
		server, client = socket, http.DefaultClient
	}
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(AnswerTimeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		silent.Store(socket, time.Now())
		return hangs
	}
	late.Reset(10 * AnswerTimeout) // for the objects of a large cluster
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("no daemon answers: %w", failed.Err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("is not a proxyc daemon of this version: it answers %s", resp.Status)
	}
	if err := read(resp.Body); err != nil && context.Cause(ctx) == context.DeadlineExceeded {
		return errors.New("the daemon began to answer, and then stopped or hung")
	} else if err != nil {
		return fmt.Errorf("is not a proxyc daemon of this version: %w", err)
	}
	return nil
}

// AnswerTimeout is how long a daemon may take to begin a response.
const AnswerTimeout = 3 * time.Second

// unixClient returns a client that connects to a unix socket, for any host.
func unixClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
			if errors.Is(err, syscall.ECONNREFUSED) {
				err = errors.New("no daemon listens: one that was killed left the socket")
			}
			return conn, err
		}}}
}

// WarnUnused warns of the files and objects whose newest version the daemon that writes this node's rules
// does not use: its rules then differ from those of the files.
func WarnUnused(w io.Writer, cfg *config.Config) {
	writer := host.Writer()
	if writer == "" {
		return
	}
	st, _ := FetchStatus(context.Background(), cmp.Or(host.DaemonSocket(), cfg.MetricsBindAddress)) // another configuration has another address
	for _, f := range st.InvalidFiles {
		st.Invalid = append(st.Invalid, status.Problem{Object: f.Path, Reason: f.Reason})
	}
	for _, p := range st.Invalid {
		fmt.Fprintf(w, "warning: the newest version of %s\n", diag.OneLine(fmt.Sprintf("%s is not in force: %s; compare with the status socket of %s", p.Object, p.Reason, writer)))
	}
}
