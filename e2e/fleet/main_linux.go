// Fleet measures many nodes against one real API server: what they cost it at the start, at rest
// and while Services change, and how long it takes until the last node has a change. The nodes are
// simulated, in this process: each has proxyc's own client, with a connection of its own, its own copy of the
// cluster, its own compiler and its own reconciler, and a dataplane without a kernel. Beside them one
// real `proxyc watch` writes nftables, and tells the objective's histogram. It needs root.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
)

// options are a run's.
type options struct {
	nodes, services, endpoints int
	rate                       float64 // changes a second
	changes                    int
	rest                       time.Duration // without changes
	min                        time.Duration // minSyncPeriod
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 100, "nodes that are simulated")
	flag.IntVar(&o.services, "services", 2000, "Services")
	flag.IntVar(&o.endpoints, "endpoints", 5, "endpoints of each Service")
	flag.Float64Var(&o.rate, "rate", 20, "changes a second")
	flag.IntVar(&o.changes, "changes", 600, "changes in all")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long to look on while nothing changes")
	flag.DurationVar(&o.min, "min-sync-period", time.Second, "minSyncPeriod of all nodes")
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "proxyc-fleet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := kube.Proxyc(ctx, dir)
	if err != nil {
		return err
	}
	cluster, err := kube.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	r, err := measure(ctx, o, cluster, dir, binary)
	if err != nil {
		return err
	}
	to := json.NewEncoder(os.Stdout)
	to.SetIndent("", "  ")
	return to.Encode(r)
}
