package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/ir/flow"
)

type diffCmd struct {
	input
	nodeChoice
	namespaceChoice
	comparingTime

	NewConfig   string   `short:"C" placeholder:"FILE" help:"New configuration; by default the same."`
	NewSnapshot []string `short:"S" sep:"none" placeholder:"FILE" help:"New snapshot; by default the same."`
	NewMode     *string  `placeholder:"MODE" help:"New mode; by default the same."`
	FailOn      []string `enum:"opens,lost,client-address,spread,other,backends,danger" placeholder:"EFFECT" help:"Effects that cause exit code 1; by default all: opens, lost, client-address, spread, other, backends. Separate several by commas. Or danger, as in report."`
	Ignore      []string `enum:"opens,lost,client-address,spread,other,backends" placeholder:"EFFECT" help:"Effects to ignore, in the same form. They are only counted. Effect backends is that of new and removed pods."`
	NewAccess   bool     `help:"Show only access that opens: who can reach what. Exit code 1 if there is any."`
	Output      string   `short:"o" default:"text" placeholder:"FORMAT" help:"Output: text, wide, json, markdown, stat, ir, or a text of the mode. Format wide lists each Service separately, with a trace for each change. Formats ir and those of the mode, as for compile, show the lines that differ."`
}

// Run compiles both sides, and prints the flows or lines that differ.
func (c *diffCmd) Run(e *env) error {
	if c.NewConfig == "" && len(c.NewSnapshot)+len(c.Overlay) == 0 && c.NewMode == nil {
		return errors.New("nothing to compare with: use --new-config, --new-snapshot, --new-mode or --overlay")
	}
	write, byFlow := diff.Form(c.Output)
	only := func(given bool, flags string) error {
		if byFlow || !given {
			return nil
		}
		return fmt.Errorf("-o: must be one of %s with %s, got %q", strings.Join(diff.FormNames(), ", "), flags, c.Output)
	}
	if err := cmp.Or(only(c.chosen() && c.one() == "", "--node and --all-nodes"), only(c.Namespace != "", "--namespace"),
		only(len(c.FailOn)+len(c.Ignore) > 0, "--fail-on and --ignore")); err != nil {
		return err
	}
	fails, ignore := diff.FailOn(c.FailOn), diff.EffectsIn(c.Ignore)
	if c.NewAccess {
		if c.Output != "text" && c.Output != "json" || len(c.FailOn)+len(c.Ignore) > 0 {
			return errors.New("--new-access: requires -o text or json, and cannot be combined with --fail-on and --ignore")
		}
		fails, ignore = func(d *diff.Diff) bool { return d.Has([]flow.Effect{flow.Opens}) }, flow.Effects()[flow.Opens+1:]
		if c.Output == "text" {
			write = func(w io.Writer, d *diff.Diff) error { return d.WriteAccess(w) }
		}
	}
	c.anyNode, c.node, c.namespace = byFlow, c.one(), c.Namespace
	c.onlyReal = !byFlow && c.Output != "ir" && c.Output != "ir-json" // rules contain no stand-ins
	was, is, err := c.sides(e)
	if err != nil {
		return err
	}
	if err := c.namespaceChoice.check(nil, was.Snapshot, is.Snapshot); err != nil {
		return err
	}
	if byFlow {
		return c.flows(e, was, is, fails, ignore, write)
	}
	text, err := diff.Lines(was.Compile(), is.Compile(), c.Output)
	wrong, err := finishBoth(e, was, is, err)
	if err != nil {
		return err
	}
	if _, err := e.stdout.Write(text); err != nil {
		return err
	}
	return compared(len(text)+len(is.NotRead)+len(review.OtherVersions(was, is, diff.All)) == 0, wrong)
}

// flows prints the flows that differ. Effects in ignore are omitted.
func (c *diffCmd) flows(e *env, was, is *review.Input, fails func(*diff.Diff) bool, ignore []flow.Effect, write func(io.Writer, *diff.Diff) error) error {
	ctx, cancel := c.limit(e.comparing(context.Background()))
	defer cancel()
	found, err := diff.Compare(ctx, was, is, c.nodes(), c.has, flow.CompareOf)
	wrong, err := finishBoth(e, was, is, err)
	if err != nil {
		return err
	}
	found.Wrong = wrong
	if ignore != nil {
		found.Ignore(ignore)
	}
	if err := review.Buffered(e.stdout, func(w io.Writer) error { return write(w, found) }); err != nil {
		return err
	}
	return compared(!fails(found), wrong)
}

// compared returns the error of a comparison: whether there are differences that matter, and how
// many objects have errors.
func compared(same bool, wrong int) error {
	switch {
	case wrong > 0:
		return errReported
	case same:
		return nil
	}
	return errFindings
}

// sides loads both sides.
func (c *diffCmd) sides(e *env) (was, is *review.Input, err error) {
	other := c.input
	if c.NewConfig != "" {
		other.setConfig(c.NewConfig)
	}
	if len(c.NewSnapshot) > 0 {
		other.Snapshot, other.Context = c.NewSnapshot, ""
	}
	if c.NewMode != nil {
		other.Mode, other.modeFlag = c.NewMode, "--new-mode"
	}
	return e.sides(c.withoutOverlay(), other)
}

// finishBoth prints the findings of both sides, each with the positions in its own files. It
// returns the number of objects with errors. Those are compared as on a node, without their invalid
// parts, or as in the snapshot if the API server rejects their change. Otherwise the author of one
// object could block the comparison of all others. A side that could not be read completely is not
// compared, which the error states.
func finishBoth(e *env, was, is *review.Input, err error) (wrong int, _ error) {
	both := &review.Input{Diags: review.FindingsOfBoth(was, is), Each: was.Each} // without positions in the files of one side
	wrong, all := diff.WrongObjects(both.Diags)
	if finished := e.finish(both, err); err != nil || !all {
		return 0, finished
	}
	return wrong, nil
}
