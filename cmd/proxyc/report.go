package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/report"
)

type reportCmd struct {
	input
	nodeChoice

	Against       []string `placeholder:"FILE" sep:"none" help:"Snapshot before the change, to show differences. May be repeated."`
	AgainstConfig string   `placeholder:"FILE" help:"Configuration before the change; by default the same."`
	Cluster       string   `placeholder:"NAME" help:"Name of the cluster, for the heading."`
	Contracts     []string `short:"f" sep:"none" placeholder:"FILE" help:"Contracts that must hold, as for assert. May be repeated."`
	Packets       string   `placeholder:"FILE" help:"Packets with expected results, as for trace."`
	Suppress      []string `placeholder:"FILE" sep:"none" help:"Accepted findings, as for lint, and accepted changes: opens or lost, then Service NAMESPACE/NAME, or unknown, then what is not known. May be repeated."`
	FailOn        string   `enum:"none,danger" default:"none" help:"What causes exit code 1: none, or danger: a contract or packet that fails, an existing destination that opens or is lost, one that opens to clients outside of the cluster, or what is not known: changed files that are not read, output of other tools, policies, ports on Nodes, and settings for clients of load balancers. Removed Services inside of the cluster, and other objects that are not compared, are only listed."`
	Output        []string `short:"o" default:"html" sep:"none" placeholder:"FORMAT" help:"Output: html, markdown, or a file with suffix .html, .md or .sarif. With --against, Markdown is a comment for a pull request. May be repeated."`
}

// Run writes a report about a cluster as one HTML page.
func (c *reportCmd) Run(e *env) error {
	ctx := context.Background()
	if err := c.check(e); err != nil {
		return err
	}
	checks, err := report.ReadChecks(e.inputs(), c.Contracts, c.Packets, c.Suppress, int64(c.Limit))
	if err != nil {
		return err
	}
	was, is, err := c.sides(e)
	if err != nil {
		return err
	}
	r, err := report.New(ctx, was, is, c.nodes(), checks)
	errs := r.Errors()
	if wrong, all := diff.WrongObjects(errs); err != nil || !all { // nothing is reported about incomplete input
		e.report(errs)
		return cmp.Or(err, compared(true, len(errs)))
	} else if r.Diff != nil {
		r.Diff.Wrong = wrong
	}
	from := &r.Page
	from.Cluster, from.Inputs, from.Before = cmp.Or(c.Cluster, c.Context), c.names(), given(c.AgainstConfig, c.Against)
	if len(from.Before) == 0 && len(c.Overlay) > 0 {
		before := c.withoutOverlay()
		from.Before = before.names()
	}
	from.StandIns = e.standIns.Names()
	dated := append(slices.Clone(from.Inputs), from.Before...)
	if c.online() {
		from.Inputs, dated = append(from.Inputs, "API server"), nil
	}
	if from.Date, err = e.inputs().Date(dated); err != nil {
		return err
	}
	err = c.write(e, r)
	e.report(errs)
	if failures, _ := r.Failures(); err == nil && len(errs) == 0 && len(failures) > 0 && c.FailOn == "danger" {
		return errFindings
	}
	return cmp.Or(err, compared(true, len(errs)))
}

// check rejects unknown formats, HTML for a terminal, and a second use of standard input.
func (c *reportCmd) check(e *env) error {
	for _, output := range c.Output {
		if output == "html" && e.screen {
			return errors.New("-o: a terminal cannot show HTML: name a file, as in -o report.html, or use -o markdown")
		}
		if write, _ := report.Form(output); write == nil {
			return fmt.Errorf("-o: must be html, markdown, or a file with suffix .html, .md or .sarif, got %q", output)
		}
	}
	return nil
}

// write writes all outputs.
func (c *reportCmd) write(e *env, r *report.Report) (err error) {
	for _, output := range c.Output {
		write, file := report.Form(output)
		whole := func(w io.Writer) error { return review.Buffered(w, func(w io.Writer) error { return write(r, w) }) }
		if file {
			err = errors.Join(err, e.writeFile(output, whole))
		} else {
			err = errors.Join(err, whole(e.stdout))
		}
	}
	return err
}

// sides loads the reported input, and the previous one, which is nil without a comparison.
func (c *reportCmd) sides(e *env) (was, is *review.Input, err error) {
	compared := len(c.Against)+len(c.Overlay) > 0 || c.AgainstConfig != ""
	c.asWritten, c.anyNode, c.node = true, true, c.one()
	if !compared {
		is, err = c.load(e)
		return nil, is, err
	}
	before := c.withoutOverlay()
	if len(c.Against) > 0 {
		before.Snapshot, before.Context = c.Against, ""
	}
	if c.AgainstConfig != "" {
		before.setConfig(c.AgainstConfig)
	}
	return e.sides(before, c.input)
}
