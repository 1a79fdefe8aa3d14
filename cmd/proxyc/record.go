package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

type recordCmd struct {
	clusterFlags
	Out string `short:"o" name:"output" default:"-" placeholder:"FILE" help:"Output: a new file; - for standard output."`
}

// Run records until a signal arrives.
func (c *recordCmd) Run(e *env) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cluster, err := c.cluster(slog.New(slog.NewTextHandler(e.stderr, nil)))
	if err != nil {
		return err
	}
	var to io.WriteCloser = nopCloser{e.stdout}
	if c.Out != review.StandardInput {
		if to, err = e.files.Create(c.Out); err != nil {
			return err
		}
	}
	lines := &counted{Writer: to}
	err = cluster.Record(ctx, lines, time.Now, func() { fmt.Fprintf(e.stderr, "recording: %d objects so far\n", lines.n.Load()-1) })
	if closing := to.Close(); err == nil {
		err = closing
	}
	if err == nil {
		fmt.Fprintf(e.stderr, "recorded %d lines\n", lines.n.Load())
	}
	return err
}

// counted counts the written bytes.
type counted struct {
	io.Writer
	n atomic.Int64
}

func (c *counted) Write(line []byte) (int, error) {
	c.n.Add(1)
	return c.Writer.Write(line)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
