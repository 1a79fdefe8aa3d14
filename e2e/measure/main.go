// Measure runs a scenario: it measures proxyc, alone or together with kube-proxy, or records the
// rules of releases of kube-proxy. Each scenario has its own flags. All require root.
//
//	go run ./measure SCENARIO -h
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/e2e/measure/fleet"
	"github.com/proxyc/proxyc/e2e/measure/growth"
	"github.com/proxyc/proxyc/e2e/measure/peer"
	"github.com/proxyc/proxyc/e2e/measure/releases"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

var scenarios = []struct {
	name, about string
	run         func(context.Context, *scenario.Run, []string) error
}{
	{"peer", "kube-proxy and proxyc side by side, or with files the reports of earlier runs", peer.Run},
	{"packets", "what the rules of kube-proxy and proxyc cost packets, in nanoseconds", peer.RunPackets},
	{"growth", "one daemon, in clusters of growing size", growth.Run},
	{"fleet", "many simulated nodes and a real one, against one API server", fleet.Run},
	{"releases", "record what releases of kube-proxy leave on a node", releases.Run},
	{growth.ClientName, "store the objects of an API server, for comparison in growth", growth.RunClient},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	name := "-h"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	for _, s := range scenarios {
		if s.name == name {
			return scenario.Start(name, os.Stdout, os.Stderr, func(r *scenario.Run) error { return s.run(ctx, r, args) })
		}
	}
	if slices.Contains([]string{"-h", "-help", "--help"}, name) {
		return usage(os.Stdout)
	}
	usage(os.Stderr)
	return fmt.Errorf("no scenario %q", name)
}

func usage(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "usage: measure SCENARIO [flags]")
	for _, s := range scenarios {
		fmt.Fprintf(w, "  %s\t%s\n", s.name, s.about)
	}
	return w.Flush()
}
