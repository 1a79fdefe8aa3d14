// Bench runs kube-proxy and `proxyc watch` one after the other on the same
// cluster, each on a node of its own, a network namespace with nothing in it,
// and measures both: what the kernel does with new connections, what the
// programs and their children cost the node, and what they cost the API
// server. With files as arguments it shows what earlier runs have found. It
// needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
)

// options are what a run measures, and how often.
type options struct {
	cluster    cluster.Cluster
	modes      []string
	programs   []string
	minSync    time.Duration
	ownFirst   bool
	rounds     int
	atOnce     int           // changes in a burst
	seconds    time.Duration // of connecting
	still      time.Duration // of rest
	startLimit time.Duration
	limit      time.Duration // of any other part
	proxyc     string        // binary; empty: built
}

// background is for what lasts as long as the program.
var background = context.Background()

func main() {
	ctx, stop := signal.NotifyContext(background, os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.cluster.Services, "services", 1000, "`number` of Services")
	flags.IntVar(&o.cluster.Endpoints, "endpoints", 5, "`number` of endpoints of each")
	mix := flags.String("mix", "real", "plain: ClusterIPs with one port; real: mixed kinds")
	modeNames := flags.String("modes", "nftables", "nftables, iptables-nft, iptables-legacy, ipvs (where the kernel has it), by comma")
	programNames := flags.String("programs", peerName+","+proxycName, "which to measure, by comma")
	flags.DurationVar(&o.minSync, "min-sync", 1, "minSyncPeriod of both")
	order := flags.String("order", "peer-first", "peer-first or proxyc-first")
	flags.IntVar(&o.rounds, "rounds", 20, "`number` of changes of each kind")
	flags.IntVar(&o.atOnce, "burst", 100, "`number` of changes at once")
	flags.DurationVar(&o.seconds, "load", 5*time.Second, "how long to connect as fast as possible")
	flags.DurationVar(&o.still, "rest", time.Minute, "how long to look at a program at rest")
	flags.DurationVar(&o.startLimit, "start-limit", 15*time.Minute, "how long a start may take")
	flags.DurationVar(&o.limit, "limit", 20*time.Minute, "how long any other part may take")
	flags.StringVar(&o.proxyc, "proxyc", "", "`file` of the program; built when empty")
	file := flags.String("json", "", "`file` for the results, written after each part")
	plots := flags.String("svg", "", "`directory` for plots")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.cluster.Plain, o.ownFirst, o.modes = *mix == "plain", *order == "proxyc-first", strings.Split(*modeNames, ",")
	o.programs = strings.Split(*programNames, ",")
	if err := errors.Join(oneOf("mix", *mix, "plain", "real"), oneOf("order", *order, "peer-first", "proxyc-first")); err != nil {
		return err
	}
	for _, m := range o.modes {
		if err := oneOf("modes", m, slices.Sorted(maps.Keys(modes))...); err != nil {
			return err
		}
	}
	for _, p := range o.programs {
		if err := oneOf("programs", p, peerName, proxycName); err != nil {
			return err
		}
	}
	if o.cluster.Services < 1 || o.cluster.Endpoints < 1 || o.rounds < 1 || o.atOnce < 1 {
		return errors.New("-services, -endpoints, -rounds and -burst: each must be at least 1")
	}
	var reports []*report
	if flags.NArg() > 0 {
		for _, name := range flags.Args() {
			r, err := readReport(name)
			if err != nil {
				return err
			}
			reports = append(reports, r)
		}
	} else {
		r, err := run(ctx, o, *file)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	return show(os.Stdout, *plots, reports)
}

// oneOf is an error where a flag has none of the values that it may have.
func oneOf(name, value string, values ...string) error {
	if slices.Contains(values, value) {
		return nil
	}
	return fmt.Errorf("-%s: must be one of %s, got %q", name, strings.Join(values, ", "), value)
}
