package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/replay"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
)

type replayCmd struct {
	configFlags
	File        string   `arg:"" help:"What record wrote, which gzip may have compressed; - for standard input."`
	Until       string   `placeholder:"TIME" help:"Stop behind the last change before a time, such as 2026-01-02T03:04:05Z, or 90s after all was known."`
	Packets     string   `placeholder:"FILE" help:"Packets and what is expected of them, as trace --packets takes them: stop at the first change behind which one meets another fate, and exit 1."`
	Prove       bool     `help:"Hold the rules of the Services that changed against what they mean, for every first packet; exit 1 where they differ."`
	Netns       string   `placeholder:"NAME" help:"Write the rules for real, in the network namespace of this name, as ip netns adds one; root."`
	Variant     string   `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Which iptables to use with --netns."`
	SnapshotOut string   `name:"snapshot-out" placeholder:"FILE" help:"Write the objects as they are at the end, as snapshot does."`
	NodeAddress []string `name:"node-address" placeholder:"IP@INTERFACE" help:"An address that the node has beside those of its Node object. May be repeated."`
	Limit       byteSize `name:"recording-limit" default:"1Gi" placeholder:"BYTES" help:"How much the recording may have; 0: any amount."`
	Output      string   `short:"o" default:"text" placeholder:"FORMAT" help:"What is shown of each change: text or wide (the flows that differ), stat, none, or the lines that differ in ir or in a text that the mode writes."`
	Entered     bool     `name:"entered" hidden:""` // inside the namespace
}

// Run plays a recording.
func (c *replayCmd) Run(e *env) (err error) {
	ctx, stop := untilSignal(&err)
	defer stop()
	if c.Netns != "" && !c.Entered {
		if err := needRoot("replay --netns"); err != nil {
			return err
		}
		return replay.Enter(c.Netns) // which runs this command again with --entered
	}
	if err := oneStdin(deref(c.Config), c.File, c.Packets); err != nil {
		return err
	}
	p, err := c.player(ctx, e)
	if err != nil {
		return err
	}
	defer p.Plane.Close()
	left := cmp.Or(int64(c.Limit), files.Unlimited)
	data, err := e.inputs().Read(c.File, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = fmt.Errorf("has more than the %d bytes of --recording-limit", int64(c.Limit))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	events, cut, err := watch.ReadRecording(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	if cut {
		fmt.Fprintf(e.stderr, "warning: %s: is cut off in line %d, which is left out\n", c.File, 1+bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n")))
	}
	well, err := p.Play(ctx, events)
	switch {
	case err != nil:
		return err
	case !well:
		return errFindings
	}
	if c.SnapshotOut != "" {
		return e.writeOut(c.SnapshotOut, p.Snapshot.Document().Objects().Write)
	}
	return nil
}

// player returns a player for the options.
func (c *replayCmd) player(ctx context.Context, e *env) (*replay.Player, error) {
	o := replay.Options{File: c.File, Prove: c.Prove, Output: c.Output, Out: e.stdout, Err: e.stderr, Report: e.report}
	if c.Until != "" {
		var err error
		if o.Until, err = time.Parse(time.RFC3339Nano, c.Until); err != nil {
			if o.Within, err = time.ParseDuration(c.Until); err != nil || o.Within <= 0 {
				return nil, fmt.Errorf("--until: must be a time such as 2026-01-02T03:04:05Z, or one like 90s after the beginning, got %q", c.Until)
			}
		}
	}
	var err error
	if c.Packets != "" {
		if o.Packets, err = trace.ReadPackets(e.inputs(), c.Packets, int64(c.Limit)); err != nil {
			return nil, err
		}
	}
	j := new(review.Input)
	if j.Resolved, err = c.resolve(e, &j.Diags); err != nil {
		return nil, err
	}
	e.report(j.Diags)
	j.Diags = nil
	if err := e.setNode(j); err != nil {
		return nil, err
	}
	if j.Facts.Named, err = parseNodeAddresses(c.NodeAddress); err != nil {
		return nil, err
	}
	o.Plane = new(apply.Memory)
	if c.Netns != "" {
		if o.Plane, err = daemon.Open(ctx, j.Config.ProxyMode(), apply.Options{IPTables: variantOf(c.Variant)}); err != nil {
			return nil, err
		}
	}
	return replay.New(j, o), nil
}
