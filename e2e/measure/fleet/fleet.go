// Package fleet measures many nodes on one real API server: their costs at the start, at rest and
// while Services change, and the time until the last node has a change. The nodes are simulated
// in this process. Each has proxyc's own client with its own connection, its own copy of the
// cluster, its own compiler and reconciler, and a dataplane without a kernel. In addition one
// real `proxyc watch` writes nftables, and provides the histogram of the objective.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// options are the options of a run.
type options struct {
	nodes, services, endpoints int
	rate                       float64 // changes a second
	changes                    int
	rest                       time.Duration // without changes
	min                        time.Duration // minSyncPeriod
}

// Run is the scenario.
func Run(ctx context.Context, to *scenario.Run, args []string) (err error) {
	var o options
	to.Measures()
	flags := to.Flags
	flags.IntVar(&o.nodes, "nodes", 100, "number of simulated nodes")
	flags.IntVar(&o.services, "services", 2000, "Services")
	flags.IntVar(&o.endpoints, "endpoints", 5, "endpoints of each Service")
	flags.Float64Var(&o.rate, "rate", 20, "changes a second")
	flags.IntVar(&o.changes, "changes", 600, "changes in all")
	flags.DurationVar(&o.rest, "rest", time.Minute, "how long to measure without changes")
	flags.DurationVar(&o.min, "min-sync-period", time.Second, "minSyncPeriod of all nodes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	binary, err := to.Proxyc(ctx)
	if err != nil {
		return err
	}
	cluster, err := kube.Start(ctx, to.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	r, err := measure(ctx, o, cluster, to.Dir, binary)
	if err != nil {
		return err
	}
	out := json.NewEncoder(to.Out)
	out.SetIndent("", "  ")
	return errors.Join(out.Encode(r), to.Save(r))
}
