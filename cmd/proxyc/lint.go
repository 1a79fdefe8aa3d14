package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

type lintCmd struct {
	input
	oneNode
	namespaceChoice
	List          bool     `help:"List all checks."`
	Explain       string   `placeholder:"CODE" help:"Explain a code, such as PX418: the condition, its effect and the fix."`
	Output        string   `short:"o" enum:"text,json,sarif,github,markdown" default:"text" help:"Output: text, json, sarif (2.1.0), github (commands of its workflows), or markdown."`
	FailOn        string   `enum:"error,warning,info" default:"warning" help:"Lowest severity for exit code 1: error, warning or info."`
	Suppress      []string `placeholder:"FILE" sep:"none" help:"File with accepted findings. Each line is CODE, CODE OBJECT or CODE OBJECT: FIELD, with * as a wildcard, and the reason after a #. May be repeated. In an object, annotation proxyc.dev/lint-ignore lists codes."`
	NoAnnotations bool     `help:"Ignore the annotation proxyc.dev/lint-ignore of objects."`
	Baseline      string   `placeholder:"FILE" help:"File with earlier findings, as --write-baseline wrote it."`
	WriteBaseline string   `placeholder:"FILE" help:"Write the findings as a baseline, and print none."`
}

// Run prints the findings about the input. They are its output, so they go to standard output,
// including errors.
func (c *lintCmd) Run(e *env) error {
	if c.List {
		return diag.WriteChecks(e.stdout)
	}
	if c.Explain != "" {
		return diag.WriteCode(e.stdout, c.Explain)
	}
	var accepted lint.Suppressions
	suppress := c.Suppress
	if c.WriteBaseline != "" {
		if err := c.mayWrite(e); err != nil {
			return err
		}
	} else if c.Baseline != "" { // a written baseline contains all findings, including those of the previous one
		suppress = append(slices.Clone(suppress), c.Baseline)
	}
	for _, name := range suppress {
		text, err := e.inputs().ReadFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if errs := accepted.Read(name, string(text)); len(errs) > 0 {
			e.report(errs)
			return errReported
		}
	}
	c.noSnapshot, c.node, c.namespace = deref(c.Config) != "", c.Node, c.Namespace
	j := &review.Input{Snapshot: snapshot.New(), Each: true}
	j.Reader.Strict, j.Partial = true, true
	usable, err := c.read(e, j)
	if err != nil {
		return err
	}
	if unread := j.Unread(); unread != "" && len(j.Snapshot.Services()) == 0 {
		j.Diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoServices, Msg: "no Service is checked: " + unread + " are not read", Hint: "check their output: the findings PX124 name the commands"})
	}
	j.ReportUnread(diag.Info, review.CheckRendered, nil)
	if usable && j.Chosen {
		if err := j.NoSuchNode("--node", true); err != nil {
			return err
		}
	}
	if usable {
		e.doing("linting")
		j.Assume(e.standIns)
		j.Lint()
		if err := c.namespaceChoice.check(j.Diags, j.Snapshot); err != nil {
			return err
		}
	}
	if j.Resolved != nil { // findings about the configuration contain its file name
		j.Resolved.Locate(j.Diags)
	}
	written := j.Reader.Written()
	if c.NoAnnotations {
		written = nil
	}
	report := lint.Report{Version: build.Read().Version}
	report.Findings, report.Suppressed = accepted.Apply(c.of(j.Diags.Sorted()), written)
	unread := slices.DeleteFunc(slices.Clone(report.Findings), func(d diag.Diagnostic) bool { return !d.Code.Unreadable() })
	if c.WriteBaseline != "" && len(unread) > 0 {
		e.report(unread)
		return errReported
	} else if c.WriteBaseline != "" {
		return e.writeFile(c.WriteBaseline, func(w io.Writer) error {
			_, err := io.WriteString(w, lint.Baseline(report.Findings))
			return err
		})
	}
	least := severities()[c.FailOn]
	found := slices.ContainsFunc(report.Findings, func(d diag.Diagnostic) bool { return d.Severity <= least })
	people := c.Output == "text" || c.Output == "markdown"
	j.Complete(&report, people && !c.Each)
	if err := report.Write(e.stdout, c.Output); err != nil {
		return err
	}
	switch {
	case len(unread) > 0 || !usable: // not everything was checked
		return errReported
	case found:
		return errFindings
	}
	return nil
}

// mayWrite rejects replacing any other file by a baseline, such as the linted one.
func (c *lintCmd) mayWrite(e *env) error {
	if c.WriteBaseline == review.StandardInput {
		return errors.New("--write-baseline: must name a file, got -")
	}
	there, err := e.inputs().ReadFile(c.WriteBaseline)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (len(there) == 0 || lint.IsBaseline(string(there))) {
		return nil
	}
	return fmt.Errorf("--write-baseline: must be a new file or a baseline, got %s", c.WriteBaseline)
}

// severities are the values of --fail-on.
func severities() map[string]diag.Severity {
	return map[string]diag.Severity{"error": diag.Error, "warning": diag.Warning, "info": diag.Info}
}
