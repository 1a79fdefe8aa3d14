package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/report"
	"github.com/proxyc/proxyc/compiler/diag"
)

type reportCmd struct {
	input
	nodeChoice

	Against       []string `placeholder:"FILE" sep:"none" help:"Snapshot before the change, to show differences. May be repeated."`
	AgainstConfig string   `placeholder:"FILE" help:"Configuration before the change; by default the same."`
	Cluster       string   `placeholder:"NAME" help:"Name of the cluster, for the heading."`
	Output        string   `short:"o" default:"html" placeholder:"FORMAT" help:"Output: html, markdown, or a file with suffix .html or .md. The HTML page is self-contained."`
}

// Run writes a report about a cluster as one HTML page.
func (c *reportCmd) Run(e *env) error {
	ctx := context.Background()
	write, file := (*report.Report).WriteHTML, ""
	switch {
	case c.Output == "html":
	case c.Output == "markdown":
		write = (*report.Report).WriteMarkdown
	case strings.HasSuffix(c.Output, ".html"):
		file = c.Output
	case strings.HasSuffix(c.Output, ".md"):
		write, file = (*report.Report).WriteMarkdown, c.Output
	default:
		return fmt.Errorf("-o: must be html, markdown, or a file with suffix .html or .md, got %q", c.Output)
	}
	was, is, err := c.sides(e)
	if err != nil {
		return err
	}
	r, err := report.New(ctx, was, is, c.nodes())
	errs := r.Errors()
	wrong, all := diff.WrongObjects(errs)
	if err != nil || !all { // nothing is reported about incomplete input
		e.report(errs)
		return reportedIf(errs, err)
	}
	if r.Diff != nil {
		r.Diff.Wrong = wrong
	}
	from := &r.Source
	from.Cluster, from.Inputs, from.Before = cmp.Or(c.Cluster, c.Context), inputFiles(c.names()...), inputFiles(append([]string{c.AgainstConfig}, c.Against...)...)
	if len(from.Before) == 0 && len(c.Overlay) > 0 {
		before := c.withoutOverlay()
		from.Before = inputFiles(before.names()...)
	}
	from.StandIns = e.standIns.Names()
	dated := append(slices.Clone(from.Inputs), from.Before...)
	if c.online() {
		from.Inputs, dated = append(from.Inputs, "API server"), nil
	}
	if from.Date, err = e.date(dated); err != nil {
		return err
	}
	whole := func(w io.Writer) error { return review.Buffered(w, func(w io.Writer) error { return write(r, w) }) }
	if file != "" {
		err = e.writeFile(file, whole)
	} else {
		err = whole(e.stdout)
	}
	e.report(errs)
	return reportedIf(errs, err)
}

// inputFiles returns the names that are not empty.
func inputFiles(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
}

// date returns the date of a report: SOURCE_DATE_EPOCH, as in reproducible builds, or else that of the
// newest file. It does not depend on the time of the report.
func (e *env) date(names []string) (time.Time, error) {
	const name = "SOURCE_DATE_EPOCH"
	text := os.Getenv(name)
	if text == "" {
		return e.inputs().Newest(names), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: must be a number of seconds, got %q", name, text)
	}
	return time.Unix(seconds, 0), nil
}

// reportedIf returns the error of a command that printed errs, or err.
func reportedIf(errs diag.List, err error) error {
	if err == nil && len(errs) > 0 {
		return errReported
	}
	return err
}

// sides loads the reported input, and the previous one, which is nil without a comparison.
func (c *reportCmd) sides(e *env) (was, is *review.Input, err error) {
	names := append(append(c.names(), c.AgainstConfig), c.Against...)
	if err := oneStdin(names...); err != nil {
		return nil, nil, err
	}
	start, err := e.rereading(names, int64(c.Limit))
	if err != nil {
		return nil, nil, err
	}
	compared := len(c.Against)+len(c.Overlay) > 0 || c.AgainstConfig != ""
	c.asWritten, c.anyNode, c.node = true, true, c.one()
	if !compared {
		is, err = c.load(start())
		return nil, is, err
	}
	before := c.withoutOverlay()
	if len(c.Against) > 0 {
		before.Snapshot, before.Context = c.Against, ""
	}
	if c.AgainstConfig != "" {
		before.setConfig(c.AgainstConfig)
	}
	return e.sides(start, before, c.input)
}
