package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/demo"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

type demoCmd struct {
	Mode  string         `default:"nftables" placeholder:"MODE" help:"Proxy mode."`
	Write help.Directory `placeholder:"DIR" help:"Write the demo's configuration and cluster into a directory."`
	Force bool           `help:"Overwrite existing files (with --write)."`
	Live  bool           `help:"Run a small cluster in separate network namespaces. It has real rules and connections, an endpoint that fails, and a foreign rule. It requires root and Linux, and leaves nothing behind."`
	Part  string         `hidden:"" enum:",node" default:"" help:"Which process of --live this is."`
}

// demoPackets are the packets that the demo traces.
var demoPackets = []struct{ shows, from, to string }{
	{"A pod connects to a Service.", "pod:shop/web-110", "10.96.0.10:80/tcp"},
	{"A client from outside connects to a load balancer with externalTrafficPolicy Local.", "198.51.100.7", "203.0.113.31:443/tcp"},
	{"The same client from an address outside loadBalancerSourceRanges.", "192.0.2.200", "203.0.113.31:443/tcp"},
	{"A pod connects to a Service without endpoints.", "pod:shop/web-110", "[fd00:10:96::80]:80/tcp"},
}

func (c *demoCmd) Run(e *env) error {
	switch {
	case c.Part != "":
		return c.play(e)
	case c.Live && c.Write != "":
		return errors.New("--live, --write: cannot be combined")
	case c.Live:
		return c.live(e)
	case c.Write != "":
		return c.write(e)
	}
	j, err := c.job(e)
	if err != nil {
		return err
	}
	programs := j.Compile()
	return e.finish(j, review.Buffered(e.stdout, func(w io.Writer) error {
		if err := demo.WriteRules(w, j.Facts.NodeName, c.Mode, programs); err != nil {
			return err
		}
		tracer := trace.NewTracer(j, programs)
		for _, p := range demoPackets {
			t, err := tracer.Trace(p.from, p.to)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "\n# %s\n", p.shows)
			if err := t.WriteText(w); err != nil {
				return err
			}
		}
		return nil
	}))
}

// job loads the demo's files like a user's. Findings name them demo/FILE, which distinguishes them
// from files in the working directory.
func (c *demoCmd) job(e *env) (*review.Input, error) {
	j := &review.Input{Snapshot: snapshot.New()}
	in := configFlags{}
	in.setConfig("demo/config.yaml")
	in.Mode = &c.Mode
	var diags diag.List
	read := func(name string) ([]byte, error) { return demo.Files.ReadFile(path.Base(name)) }
	resolved, findings := in.Resolve(read, true)
	if diags.Add(findings...); findings.HasErrors() {
		e.report(diags)
		return nil, errReported
	}
	cluster, err := read("demo/cluster.yaml")
	if err != nil {
		return nil, err
	}
	j.Diags = append(diags, manifest.Decode(j.Snapshot, "demo/cluster.yaml", cluster)...)
	j.Resolved = resolved
	return j, e.setNode(j, "")
}

func (c *demoCmd) write(e *env) error {
	dir := string(c.Write)
	names := []string{filepath.Join(dir, "config.yaml"), filepath.Join(dir, "cluster.yaml")}
	for _, name := range names {
		if _, err := e.files.Stat(name); err == nil && !c.Force {
			return fmt.Errorf("--write: %s already exists: use --force to overwrite it", name)
		}
	}
	if err := e.files.MkdirAll(dir); err != nil {
		return err
	}
	for _, name := range names {
		data, err := demo.Files.ReadFile(filepath.Base(name))
		if err != nil {
			return err
		}
		if err := e.writeFile(name, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(e.stdout, "wrote %s; now try:\n  proxyc compile -c %s -s %s\n", strings.Join(names, " and "), names[0], names[1])
	return err
}

// live runs the node in its own namespaces.
func (c *demoCmd) live(e *env) (err error) {
	if demo.Unsupported != nil {
		return demo.Unsupported
	}
	if !slices.Contains([]string{"nftables", "iptables"}, c.Mode) {
		return fmt.Errorf("--live: mode must be nftables or iptables, got %q", c.Mode)
	}
	if err := needRoot("demo --live"); err != nil {
		return err
	}
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	code, err := demo.Run(ctx, e.stdout, e.stderr, c.Mode)
	switch code {
	case exitFindings:
		return errFindings
	case exitBad:
		return errReported // printed by the node
	}
	return err
}

// play runs the node of the live demo.
func (c *demoCmd) play(e *env) error {
	err := demo.Node(context.Background(), e.stdout, e.stderr, c.Mode)
	if errors.Is(err, demo.ErrDiffers) {
		return errFindings // already printed
	}
	return err
}
