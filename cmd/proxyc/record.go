package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

type recordCmd struct {
	clusterFlags
	Out string `short:"o" name:"output" writes:"" default:"-" placeholder:"FILE" help:"Output: a new file; - for standard output."`
}

// Run records until a signal arrives.
func (c *recordCmd) Run(e *env) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cluster, err := c.cluster(slog.New(slog.NewTextHandler(e.stderr, nil)))
	if err != nil {
		return err
	}
	to, closing := e.stdout, func() error { return nil }
	if c.Out != review.StandardInput {
		file, err := e.files.Create(c.Out)
		if err != nil {
			return err
		}
		to, closing = file, file.Close
	}
	lines, err := cluster.Record(ctx, to, time.Now, func(lines int) { fmt.Fprintf(e.stderr, "recording: %d objects so far\n", lines-1) })
	if err = cmp.Or(err, closing()); err == nil {
		fmt.Fprintf(e.stderr, "recorded %d lines\n", lines)
	}
	return err
}
