package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

type lintCmd struct {
	input
	oneNode
	namespaceChoice
	Release       config.Release `placeholder:"1.N" help:"Check for this release of kube-proxy: feature gates, defaults and fields. By default those of 1.37, and gates of other releases are no errors."`
	List          bool           `help:"List all checks."`
	Explain       string         `placeholder:"CODE" help:"Explain a code, such as PX418: the condition, its effect and the fix."`
	Output        string         `short:"o" enum:"text,json,sarif,github,markdown" default:"text" help:"Output: text, json, sarif (2.1.0), github (commands of its workflows), or markdown."`
	FailOn        string         `enum:"error,warning,info" default:"warning" help:"Lowest severity for exit code 1: error, warning or info."`
	Suppress      []string       `placeholder:"FILE" sep:"none" help:"File with accepted findings. Each line is CODE, CODE OBJECT or CODE OBJECT: FIELD, with * as a wildcard, and the reason after a #. May be repeated. In an object, annotation proxyc.dev/lint-ignore lists codes."`
	NoAnnotations bool           `help:"Ignore the annotation proxyc.dev/lint-ignore of objects."`
	Baseline      string         `placeholder:"FILE" help:"File with earlier findings, as --write-baseline wrote it."`
	WriteBaseline string         `placeholder:"FILE" help:"Write the findings as a baseline, and print none."`
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
	suppress := c.Suppress
	if c.WriteBaseline != "" {
		if err := c.mayWrite(e); err != nil {
			return err
		}
	} else if c.Baseline != "" { // a written baseline contains all findings, including those of the previous one
		suppress = append(slices.Clone(suppress), c.Baseline)
	}
	accepted, err := e.inputs().Suppressions(suppress)
	if err != nil {
		return err
	}
	j, usable, err := c.lint(e)
	if err != nil {
		return err
	}
	written := j.Reader.Written()
	if c.NoAnnotations {
		written = nil
	}
	accepted.Roots = j.Roots
	report := lint.Report{Version: build.Read().Version, Roots: j.Roots}
	report.Findings, report.Suppressed = accepted.Apply(c.of(j.Diags.Sorted()), written)
	unread := slices.DeleteFunc(slices.Clone(report.Findings), func(d diag.Diagnostic) bool { return !d.Code.Unreadable() })
	if c.WriteBaseline != "" && len(unread) > 0 {
		e.report(unread)
		return errReported
	} else if c.WriteBaseline != "" {
		return e.writeFile(c.WriteBaseline, func(w io.Writer) error {
			_, err := io.WriteString(w, lint.Baseline(report.Findings, report.Roots))
			return err
		})
	}
	least := map[string]diag.Severity{"error": diag.Error, "warning": diag.Warning, "info": diag.Info}[c.FailOn]
	found := slices.ContainsFunc(report.Findings, func(d diag.Diagnostic) bool { return d.Severity <= least })
	people := c.Output == "text" || c.Output == "markdown"
	j.Complete(&report, people && !c.Each)
	if err := report.Write(e.stdout, c.Output); err != nil {
		return err
	}
	if c.Release != 0 {
		fmt.Fprintf(e.stderr, "checked for release %s of kube-proxy\n", c.Release)
	}
	if !usable {
		return errReported
	}
	return compared(!found, len(unread)) // those were not checked
}

// lint reads the input and adds its findings, and reports whether it could be compiled.
func (c *lintCmd) lint(e *env) (j *review.Input, usable bool, err error) {
	c.release, c.noSnapshot, c.node, c.namespace = c.Release, deref(c.Config) != "", c.Node, c.Namespace
	j = &review.Input{Snapshot: snapshot.New(), Each: true, Partial: true}
	j.Reader.Strict = true
	if usable, err = c.read(e, j); err != nil {
		return nil, false, err
	}
	if unread := j.Unread(); unread != "" && len(j.Snapshot.Services()) == 0 {
		j.Diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoServices, Msg: "no Service is checked: " + unread + " are not read", Hint: "check their output: the findings PX124 name the commands"})
	}
	j.ReportUnread(diag.Info, review.CheckRendered, nil)
	if usable && j.Chosen {
		err = j.NoSuchNode("--node", true)
	}
	if usable && err == nil {
		e.doing("linting")
		j.Assume(e.standIns)
		j.Lint()
		err = c.namespaceChoice.check(j.Diags, j.Snapshot)
	}
	if j.Resolved != nil { // findings about the configuration contain its file name
		j.Resolved.Locate(j.Diags)
	}
	return j, usable, err
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
