// Package peer runs kube-proxy and `proxyc watch` one after the other on the same cluster, each
// on its own node, an empty network namespace. It measures both: what the kernel does with new
// connections, the costs of the programs and their children for the node, and their costs for the
// API server. With files as arguments it shows the results of earlier runs.
package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// options are what a run measures, and how often.
type options struct {
	cluster    cluster.Cluster
	modes      []string
	programs   []string
	minSync    time.Duration
	ownFirst   bool
	repeat     int // runs of each program in each mode; their medians count
	rounds     int
	atOnce     int           // changes in a burst
	seconds    time.Duration // of connecting
	still      time.Duration // of rest
	startLimit time.Duration
	limit      time.Duration // of any other part
}

// Run is the scenario.
func Run(ctx context.Context, to *scenario.Run, args []string) error {
	o, plots, err := parse(to, args)
	if err != nil {
		return err
	}
	if to.Flags.NArg() == 0 {
		r, err := run(ctx, to, o)
		if err != nil {
			return err
		}
		return show(to.Out, plots, []*report{r})
	}
	var reports []*report
	for _, name := range to.Flags.Args() {
		r, err := readReport(name)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	return show(to.Out, plots, reports)
}

// parse parses the flags. It returns what to measure, and a directory for plots.
func parse(to *scenario.Run, args []string) (o options, plots string, err error) {
	to.Measures()
	flags := to.Flags
	flags.IntVar(&o.cluster.Services, "services", 1000, "`number` of Services")
	flags.IntVar(&o.cluster.Endpoints, "endpoints", 5, "`number` of endpoints of each")
	mix := flags.String("mix", "real", "plain: ClusterIPs with one port; real: mixed kinds")
	modeNames := flags.String("modes", "nftables", "nftables, iptables-nft, iptables-legacy, ipvs (where the kernel has it), by comma")
	programNames := flags.String("programs", peerName+","+proxycName, "programs to measure, separated by commas")
	flags.DurationVar(&o.minSync, "min-sync", 1, "minSyncPeriod of both")
	order := flags.String("order", "peer-first", "peer-first or proxyc-first")
	flags.IntVar(&o.repeat, "repeat", 1, "`number` of runs, whose medians are shown")
	flags.IntVar(&o.rounds, "rounds", 20, "`number` of changes of each kind")
	flags.IntVar(&o.atOnce, "burst", 100, "`number` of changes at once")
	flags.DurationVar(&o.seconds, "load", 5*time.Second, "how long to connect as fast as possible")
	flags.DurationVar(&o.still, "rest", time.Minute, "how long to measure a program at rest")
	flags.DurationVar(&o.startLimit, "start-limit", 15*time.Minute, "how long a start may take")
	flags.DurationVar(&o.limit, "limit", 20*time.Minute, "how long any other part may take")
	flags.StringVar(&plots, "svg", "", "`directory` for plots")
	if err := flags.Parse(args); err != nil {
		return o, "", err
	}
	o.cluster.Plain, o.ownFirst, o.modes = *mix == "plain", *order == "proxyc-first", strings.Split(*modeNames, ",")
	o.programs = strings.Split(*programNames, ",")
	wrong := []error{oneOf("mix", *mix, "plain", "real"), oneOf("order", *order, "peer-first", "proxyc-first")}
	for _, m := range o.modes {
		wrong = append(wrong, oneOf("modes", m, slices.Sorted(maps.Keys(modes))...))
	}
	for _, p := range o.programs {
		wrong = append(wrong, oneOf("programs", p, peerName, proxycName))
	}
	if o.cluster.Services < 1 || o.cluster.Endpoints < 1 || o.repeat < 1 || o.rounds < 1 || o.atOnce < 1 {
		wrong = append(wrong, errors.New("-services, -endpoints, -repeat, -rounds and -burst: each must be at least 1"))
	}
	return o, plots, errors.Join(wrong...)
}

// oneOf returns an error unless a flag has one of its possible values.
func oneOf(name, value string, values ...string) error {
	if slices.Contains(values, value) {
		return nil
	}
	return fmt.Errorf("-%s: must be one of %s, got %q", name, strings.Join(values, ", "), value)
}
