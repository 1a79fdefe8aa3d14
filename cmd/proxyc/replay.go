package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/replay"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
)

type replayCmd struct {
	configFlags
	oneNode
	File        string     `arg:"" help:"Recording, compressed with gzip or not; - for standard input."`
	Until       string     `placeholder:"TIME" help:"Stop after the last change before a time. It is a time such as 2026-01-02T03:04:05Z, or a duration such as 90s after the initial objects."`
	Packets     string     `placeholder:"FILE" help:"Packets with expected results, as for trace --packets. Stop at the first change after which a result differs, and exit 1."`
	Prove       bool       `help:"Prove the rules of changed Services for every first packet. Exit 1 if they differ."`
	Netns       string     `placeholder:"NAME" help:"Write the rules in a network namespace of ip netns; requires root."`
	Variant     string     `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Variant of iptables to use with --netns."`
	SnapshotOut string     `name:"snapshot-out" writes:"" placeholder:"FILE" help:"Write the objects at the end, in the form of snapshot."`
	NodeAddress []string   `name:"node-address" placeholder:"IP@INTERFACE" help:"Add an address to those of the Node object. May be repeated."`
	Limit       help.Bytes `name:"recording-limit" default:"1Gi" placeholder:"BYTES" help:"Limit of the size of the recording; 0: no limit."`
	Output      string     `short:"o" default:"text" placeholder:"FORMAT" help:"Output for each change: text, wide, stat, none, ir, or a text of the mode. Formats text and wide show the flows that differ. Formats ir and those of the mode show the lines that differ."`
	Entered     bool       `name:"entered" hidden:""` // inside the namespace
}

// Run plays a recording.
func (c *replayCmd) Run(e *env) (err error) {
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	if c.Netns != "" && !c.Entered {
		if err := needRoot("replay --netns"); err != nil {
			return err
		}
		return replay.Enter(c.Netns) // which runs this command again with --entered
	}
	p, err := c.player(ctx, e)
	if err != nil {
		return err
	}
	defer p.Plane.Close()
	left := cmp.Or(int64(c.Limit), files.Unlimited)
	data, err := e.inputs().Read(c.File, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = fmt.Errorf("is larger than --recording-limit, which is %d bytes", int64(c.Limit))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	events, cut, err := watch.ReadRecording(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	if cut {
		fmt.Fprintf(e.stderr, "warning: %s: ends within line %d, which is skipped\n", c.File, 1+bytes.Count(bytes.TrimRight(data, "\n"), []byte("\n")))
	}
	well, err := p.Play(ctx, events)
	if err == nil && well && c.SnapshotOut != "" {
		err = e.writeOut(c.SnapshotOut, p.Snapshot.Document().Objects().Write)
	}
	if err != nil {
		return err
	}
	return compared(well && !p.Invalid, 0)
}

// player returns a player for the options.
func (c *replayCmd) player(ctx context.Context, e *env) (*replay.Player, error) {
	o := replay.Options{File: c.File, Prove: c.Prove, Output: c.Output, Out: e.stdout, Err: e.stderr, Report: e.report}
	if c.Until != "" {
		var err error
		if o.Until, err = time.Parse(time.RFC3339Nano, c.Until); err != nil {
			if o.Within, err = time.ParseDuration(c.Until); err != nil || o.Within <= 0 {
				return nil, fmt.Errorf("--until: must be a time such as 2026-01-02T03:04:05Z, or a duration such as 90s, got %q", c.Until)
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
	if j.Resolved, err = c.resolve(e); err != nil {
		return nil, err
	}
	if err := e.setNode(j, c.Node); err != nil {
		return nil, err
	}
	if j.Facts.Named, err = review.ParseNodeAddresses(c.NodeAddress); err != nil {
		return nil, err
	}
	o.Plane = new(apply.Memory)
	if c.Netns != "" {
		if o.Plane, err = host.Open(ctx, j.Config.ProxyMode(), apply.Options{IPTables: c.Variant}); err != nil {
			return nil, err
		}
	}
	return replay.New(j, o), nil
}
