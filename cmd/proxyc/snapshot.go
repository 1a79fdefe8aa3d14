package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// clusterFlags choose an API server, as kubectl's do.
type clusterFlags struct {
	Kubeconfig string `placeholder:"FILE" help:"How to reach the API server; by default as kubectl: KUBECONFIG, ~/.kube/config, or the pod's own account."`
	Context    string `placeholder:"NAME" help:"The context of the kubeconfig; by default its current one."`
}

// cluster prepares to ask the API server.
func (c *clusterFlags) cluster(log *slog.Logger) (*watch.Cluster, error) {
	return watch.NewCluster(c.Kubeconfig, c.Context, "proxyc/"+build.Read().Version, log)
}

type snapshotCmd struct {
	clusterFlags
	Snapshot []string `short:"s" placeholder:"FILE" sep:"none" help:"Take files, in the forms that compile -s reads, in place of an API server. May be repeated."`
	Limit    byteSize `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"How much the files of --snapshot may have together, as 256Mi; 0: any amount."`
	Live     bool     `help:"Take what a daemon knows; --status-socket says which."`
	Socket   string   `name:"status-socket" placeholder:"PATH" help:"Take what the daemon with this --status-socket knows."`
	Out      string   `short:"o" name:"output" default:"-" placeholder:"FILE" help:"Where to: a file, compressed with gzip if its name ends in .gz; - for standard output."`
}

// Run writes a snapshot. Objects that are broken are errors, and do not keep the others
// from being written.
func (c *snapshotCmd) Run(e *env) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	objects, left, err := c.objects(ctx, e)
	if err != nil {
		return err
	}
	if err := e.writeOut(c.Out, objects.Write); err != nil {
		return err
	}
	if c.Out != standardInput {
		fmt.Fprintf(e.stderr, "%s: %s\n", c.Out, countsOf(objects))
	}
	return left
}

// objects returns what is to be written; left is the error about what is not among it.
func (c *snapshotCmd) objects(ctx context.Context, e *env) (objects *snapshot.Objects, left, err error) {
	live := c.Socket != ""
	switch {
	case c.Live && !live:
		return nil, nil, errors.New("--live: name the daemon's --status-socket PATH")
	case live && (len(c.Snapshot) > 0 || c.Kubeconfig+c.Context != ""), len(c.Snapshot) > 0 && c.Kubeconfig+c.Context != "":
		return nil, nil, errors.New("--snapshot, --status-socket, --kubeconfig and --context: give one source")
	case live:
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		known, err := askKnown(ctx, c.Socket)
		if err != nil {
			return nil, nil, fmt.Errorf("--status-socket %s: %w", c.Socket, err)
		}
		return known.Snapshot.Objects(), nil, nil
	case len(c.Snapshot) > 0:
		j := &job{snap: snapshot.New()}
		readable := e.readSnapshot(j, c.Snapshot, int64(c.Limit))
		if err := j.finish(e, nil); !readable {
			return nil, nil, errReported
		} else {
			left = err
		}
		return j.snap.Document().Objects(), left, nil
	}
	cluster, err := c.cluster(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	return cluster.List(ctx)
}

// countsOf tells how many objects there are of each kind, and of which version.
func countsOf(o *snapshot.Objects) string {
	var words []string
	for _, k := range []struct {
		kind string
		n    int
	}{{"Service", len(o.Services)}, {"EndpointSlice", len(o.Slices)}, {"Endpoints", len(o.Endpoints)}, {"Node", len(o.Nodes)}, {"ServiceCIDR", len(o.ServiceCIDRs)}} {
		version := o.Versions[k.kind]
		if k.n == 0 && version == "" {
			continue // the API server has none, or does not give them
		}
		word := fmt.Sprintf("%d %ss", k.n, strings.TrimSuffix(k.kind, "s"))
		if version != "" {
			word += " at resourceVersion " + version
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// writeOut writes standard output for "-", or a file whole or not at all, compressed if
// its name says so.
func (e *env) writeOut(name string, write func(io.Writer) error) error {
	if name == standardInput {
		return buffered(e.stdout, write)
	}
	return e.writeFile(name, func(w io.Writer) error {
		if !strings.HasSuffix(name, ".gz") {
			return write(w)
		}
		zip := gzip.NewWriter(w)
		if err := write(zip); err != nil {
			return err
		}
		return zip.Close()
	})
}
