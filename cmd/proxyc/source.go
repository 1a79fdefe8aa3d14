package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// source is where a verb takes the rules of a node from: a configuration and a
// snapshot, an IR that was written, or the daemon.
type source struct {
	input
	IR     string `name:"ir" placeholder:"FILE" help:"Take the IR that compile -o ir-json wrote, in place of a configuration; with --snapshot, what no rule tells comes from there."`
	Socket string `name:"status-socket" placeholder:"PATH" help:"Take what the daemon with this --status-socket has in force, and the cluster as it knows it; --live does so where no --snapshot is given."`
}

var errSourceTwice = errors.New("--ir, --status-socket, --snapshot: the daemon has IR and snapshot of its own")

// check refuses flags that would configure what --ir and --status-socket have configured already. Those that
// only a daemon heeds are taken, as everywhere.
func (c *source) check(k *kong.Context) error {
	flag := "--ir"
	switch {
	case c.Socket != "":
		flag = "--status-socket"
	case c.IR == "":
		return nil
	}
	var idle []string
	for _, at := range k.Path {
		if f := at.Flag; f != nil && f.Group != nil && f.Group.Key == kubeProxyFlags && !f.Tag.Has("daemon") && !slices.Contains(idle, "--"+f.Name) {
			idle = append(idle, "--"+f.Name)
		}
	}
	if len(idle) == 0 {
		return nil
	}
	return fmt.Errorf("%s: has mode, node and configuration of its own: not together with %s", flag, strings.Join(idle, ", "))
}

// programs returns the Programs in force, and the rest of what is known.
func (c *source) programs(e *env) (*job, ir.Programs, error) {
	switch {
	case c.Socket != "" && (c.IR != "" || len(c.Snapshot) > 0):
		return nil, ir.Programs{}, errSourceTwice
	case c.Socket != "":
		return liveJob(c.Socket)
	case c.Live && c.IR == "" && len(c.Snapshot) == 0:
		return nil, ir.Programs{}, errors.New("--live: without -s it asks the daemon: name its --status-socket PATH")
	case c.IR != "":
		return c.written(e)
	}
	c.wholeFiles = true // an answer does not tell of what is missing
	j, err := c.load(e)
	if err != nil {
		return nil, ir.Programs{}, err
	}
	return j, j.compile(), nil
}

// written reads the Programs of --ir, whose node is the one that counts.
func (c *source) written(e *env) (*job, ir.Programs, error) {
	names := append(c.names(), c.IR)
	if err := oneStdin(names...); err != nil {
		return nil, ir.Programs{}, err
	}
	left := cmp.Or(int64(c.Limit), files.Unlimited)
	text, err := e.read(c.IR, &left)
	if err != nil {
		return nil, ir.Programs{}, fmt.Errorf("%s: %w", c.IR, err)
	}
	programs, err := ir.ReadJSON(bytes.NewReader(text))
	if err != nil {
		return nil, ir.Programs{}, fmt.Errorf("%s: must be what compile -o ir-json writes: %w", c.IR, notIR(text, err))
	}
	if programs.IPv4 == nil || programs.IPv6 == nil {
		return nil, ir.Programs{}, fmt.Errorf("%s: must hold the programs of IPv4 and IPv6", c.IR)
	}
	c.noSnapshot, c.anyNode = true, true
	j, err := c.load(e)
	if err != nil {
		return nil, ir.Programs{}, err
	}
	j.facts.NodeName, j.onlyHere = programs.IPv4.Node.Name, true
	return j, programs, nil
}

// notIR returns what a text is that cannot be read as IR, in place of an error about its fields.
func notIR(text []byte, err error) error {
	var head struct{ APIVersion, Kind string }
	switch wrong := json.Unmarshal(text, &head); {
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("is empty")
	case wrong != nil:
		return errors.New("is no JSON of that form")
	case head.Kind != ir.DocumentKind:
		return fmt.Errorf("kind must be %s, got %q", ir.DocumentKind, head.Kind)
	}
	return err
}

// liveJob asks a daemon for what it knows.
func liveJob(socket string) (*job, ir.Programs, error) {
	var programs ir.Programs
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	known, err := askKnown(ctx, socket)
	if err == nil {
		programs, err = liveIR(ctx, socket)
	}
	if err == nil && programs.IPv4 == nil {
		err = errors.New("nothing is in force yet")
	}
	if err != nil {
		return nil, programs, fmt.Errorf("--status-socket %s: %w", socket, err)
	}
	return &job{Resolved: &config.Resolved{Config: known.Config}, snap: known.Snapshot.Snapshot(), facts: known.Facts, errors: errorsOf(known.Findings)}, programs, nil
}

// askKnown asks a daemon at its status socket for what it knows.
func askKnown(ctx context.Context, socket string) (known daemon.Known, err error) {
	err = askDaemon(ctx, socket, daemon.KnownPath, func(r io.Reader) error { return json.NewDecoder(r).Decode(&known) })
	if known.Snapshot == nil {
		known.Snapshot = new(snapshot.Document)
	}
	return known, err
}

// askStatus asks a daemon at its status socket what it is doing.
func askStatus(ctx context.Context, socket string) (st daemon.Status, err error) {
	err = askDaemon(ctx, socket, daemon.StatusPath, func(r io.Reader) error { return json.NewDecoder(r).Decode(&st) })
	return st, err
}

// liveIR asks a daemon at its status socket for what is in force.
func liveIR(ctx context.Context, socket string) (programs ir.Programs, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err = askDaemon(ctx, socket, daemon.IRPath, func(r io.Reader) (err error) {
		programs, err = ir.ReadJSON(r)
		return err
	})
	return programs, err
}

// askDaemon reads one answer of a daemon at its status socket.
func askDaemon(ctx context.Context, socket, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	resp, err := unixClient(socket).Do(req)
	if err != nil {
		return fmt.Errorf("no daemon answers: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("is no status socket of a proxyc daemon of this version: it answers %s", resp.Status)
	}
	return read(resp.Body)
}
