package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"io"
	"log/slog"
	"net/netip"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/redact"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

// clusterFlags select an API server, like kubectl's.
type clusterFlags struct {
	Kubeconfig string `placeholder:"FILE" help:"Kubeconfig file; by default as for kubectl. The order is KUBECONFIG, ~/.kube/config, then the account of the pod."`
	Context    string `placeholder:"NAME" help:"Context of the kubeconfig; by default the current one."`
}

// cluster returns a client for the API server.
func (c *clusterFlags) cluster(log *slog.Logger) (*watch.Cluster, error) {
	return watch.NewCluster(c.Kubeconfig, c.Context, "proxyc/"+build.Read().Version, log)
}

type snapshotCmd struct {
	clusterFlags
	Snapshot  []string   `short:"s" placeholder:"FILE" sep:"none" help:"Read files instead of an API server, as for compile -s. May be repeated."`
	Limit     help.Bytes `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"Limit of the size of all snapshot files; 0: no limit."`
	Live      bool       `help:"Read the objects of the daemon that writes this node's rules."`
	Socket    string     `name:"status-socket" placeholder:"PATH" help:"Read the objects of the daemon at this socket."`
	Out       string     `short:"o" name:"output" writes:"" default:"-" placeholder:"FILE" help:"Output file, compressed if it ends in .gz; - for standard output."`
	Redact    bool       `help:"Replace names, labels and addresses by stand-ins. Stand-ins reveal only equality, order, and which address is in which range."`
	StandIns  string     `name:"stand-ins" writes:"" placeholder:"FILE" help:"Write each stand-in with its original (with --redact). Keep this file private."`
	Config    string     `short:"c" placeholder:"FILE" help:"Configuration to redact with the snapshot, for --config-out. A daemon supplies its own."`
	ConfigOut string     `name:"config-out" writes:"" placeholder:"FILE" help:"Output file of the effective configuration."`
}

// content is the content of a snapshot.
type content struct {
	objects *snapshot.Objects
	config  *config.Config // nil if unknown
	facts   compiler.Facts // of the daemon's node, if any
	left    error          // about invalid objects
}

// Run writes a snapshot. Invalid objects are errors, but the others are written.
func (c *snapshotCmd) Run(e *env) (err error) {
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	if c.Live {
		c.Socket = cmp.Or(c.Socket, host.DaemonSocket())
	}
	if err := c.check(); err != nil {
		return err
	}
	t, err := c.read(ctx, e)
	if err != nil {
		return err
	}
	if c.Redact {
		if err := c.redact(e, t); err != nil {
			return err
		}
	}
	if c.ConfigOut != "" {
		data, err := config.WriteConfig(t.config)
		if err == nil {
			err = e.writeOut(c.ConfigOut, func(w io.Writer) error { _, err := w.Write(data); return err })
		}
		if err != nil {
			return err
		}
	}
	if err := e.writeOut(c.Out, t.objects.Write); err != nil {
		return err
	}
	if c.Out != review.StandardInput {
		fmt.Fprintf(e.stderr, "%s: %s\n", c.Out, t.objects.Counts())
	}
	if flags := review.NodeAddressFlags(&t.facts); flags != "" {
		fmt.Fprintf(e.stderr, "flags for the node: %s\n", flags)
	}
	return t.left
}

// check rejects incompatible flags.
func (c *snapshotCmd) check() error {
	live, kubeconfig := c.Socket != "", c.Kubeconfig+c.Context != ""
	switch {
	case c.Live && !live:
		return errors.New("--live: no daemon with a status socket writes this node's rules")
	case live && (len(c.Snapshot) > 0 || kubeconfig), len(c.Snapshot) > 0 && kubeconfig:
		return errors.New("--snapshot, --status-socket, --kubeconfig and --context: use only one source")
	case c.StandIns != "" && !c.Redact:
		return errors.New("--stand-ins: requires --redact")
	case live && c.Config != "":
		return errors.New("--config: cannot be combined with --status-socket: the daemon has its own configuration")
	case c.ConfigOut != "" && c.Config == "" && !live:
		return errors.New("--config-out: requires --config or --status-socket")
	}
	return c.checkOutputs()
}

// checkOutputs rejects equal destinations, in particular for the originals and the redacted
// objects.
func (c *snapshotCmd) checkOutputs() error {
	flags := map[string]string{c.Out: "--output"}
	for _, one := range []struct{ flag, file string }{{"--config-out", c.ConfigOut}, {"--stand-ins", c.StandIns}} {
		if before := flags[one.file]; before != "" {
			return fmt.Errorf("%s: must differ from the file of %s, got %s", one.flag, before, one.file)
		}
		if one.file != "" {
			flags[one.file] = one.flag
		}
	}
	return nil
}

// read reads the objects.
func (c *snapshotCmd) read(ctx context.Context, e *env) (*content, error) {
	t := new(content)
	if c.Config != "" {
		flags := configFlags{Flags: config.Flags{Config: &c.Config}}
		resolved, err := flags.resolve(e)
		if err != nil {
			return nil, err
		}
		t.config = resolved.Config
	}
	switch {
	case c.Socket != "":
		known, err := review.FetchKnown(ctx, c.Socket)
		if err != nil {
			return nil, fmt.Errorf("--status-socket %s: %w", c.Socket, err)
		}
		if nodes := known.Snapshot.Nodes; len(nodes) == 1 && nodes[0].Name == known.Facts.NodeName {
			nodes[0].Only = true
		}
		t.objects, t.config, t.facts = known.Snapshot.Objects(), known.Config, known.Facts
		return t, nil
	case len(c.Snapshot) > 0:
		j := &review.Input{Snapshot: snapshot.New()}
		readable := e.readSnapshot(j, c.Snapshot, int64(c.Limit))
		if readable { // a snapshot is complete
			j.ReportUnread(diag.Error, review.RenderFirst, nil)
		}
		if t.left = e.finish(j, nil); !readable || wholeFile(j.Diags) {
			return nil, errReported
		}
		if service := j.Reader.Unsliced(); service != "" { // nor this, since selectors are omitted
			return nil, fmt.Errorf("-s: the snapshot %s: add its EndpointSlices", manifest.NoSlices(service))
		}
		t.objects = j.Snapshot.Document().Objects()
		return t, nil
	}
	cluster, err := c.cluster(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	t.objects, err = cluster.List(ctx)
	return t, err
}

// redact replaces names and addresses in the objects.
func (c *snapshotCmd) redact(e *env, t *content) error {
	var addrs []netip.Prefix
	var links []string
	for _, i := range t.facts.Interfaces {
		addrs, links = append(addrs, i.Addrs...), append(links, i.Name)
	}
	r := redact.New(t.objects, t.config, t.facts.NodeName, links, addrs...)
	r.Objects(t.objects)
	if t.config != nil {
		t.config = r.Config(t.config)
	}
	r.Facts(&t.facts)
	if c.StandIns == "" {
		return nil
	}
	return e.writeOut(c.StandIns, r.WriteAll)
}

// writeOut writes to standard output for "-", or writes a file atomically, compressed depending on
// its name. Only the owner may read the file, since it may contain objects of a cluster that other
// users may not list.
func (e *env) writeOut(name string, write func(io.Writer) error) error {
	if name == review.StandardInput {
		return review.Buffered(e.stdout, write)
	}
	return disk.Write(e.files, name, disk.OwnerOnly, disk.Zipped(name, write))
}
