package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"text/tabwriter"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

type lintCmd struct {
	input
	namespaceChoice
	List          bool     `help:"List all checks."`
	Output        string   `short:"o" enum:"text,json,sarif,github,markdown" default:"text" help:"Output: text, json, sarif (2.1.0), github (commands of its workflows), or markdown."`
	FailOn        string   `enum:"error,warning,info" default:"info" help:"The least severity that makes the exit code 1: error, warning or info. Errors make it 2."`
	Suppress      []string `placeholder:"FILE" sep:"none" help:"Findings that are accepted, one a line: CODE, CODE OBJECT or CODE OBJECT: FIELD, with * for any signs, and the reason behind a #. May be repeated. In an object, annotation proxyc.dev/lint-ignore names codes."`
	NoAnnotations bool     `help:"Take no notice of annotation proxyc.dev/lint-ignore, by which who writes an object suppresses findings about it."`
	Baseline      string   `placeholder:"FILE" help:"Findings that were there already, as --write-baseline wrote them."`
	WriteBaseline string   `placeholder:"FILE" help:"Write what is found as a baseline, and nothing else."`
}

// Run prints what is wrong or doubtful. Findings are its output, and so go to standard
// output, also those that are errors.
func (c *lintCmd) Run(e *env) error {
	if c.List {
		return listChecks(e.stdout)
	}
	var accepted lint.Suppressions
	suppress := c.Suppress
	if c.WriteBaseline != "" {
		if err := c.mayWrite(e); err != nil {
			return err
		}
	} else if c.Baseline != "" { // one that is written has all, also what stands in that before it
		suppress = append(slices.Clone(suppress), c.Baseline)
	}
	for _, name := range suppress {
		text, err := e.readFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if errs := accepted.Read(name, string(text)); len(errs) > 0 {
			e.report(errs)
			return errReported
		}
	}
	c.anyNode, c.noSnapshot = true, deref(c.Config) != ""
	j := &job{snap: snapshot.New(), each: true}
	j.files.Strict = true
	usable, err := c.read(e, j)
	if err != nil {
		return err
	}
	if usable {
		e.doing("linting")
		j.lint()
		if err := c.namespaceChoice.check(j.diags, j.snap); err != nil {
			return err
		}
	}
	if j.Resolved != nil { // the configuration's findings are named by its file
		j.Resolved.Locate(j.diags)
	}
	written := j.files.Written()
	if c.NoAnnotations {
		written = nil
	}
	report := lint.Report{Version: build.Read().Version}
	report.Findings, report.Suppressed = accepted.Apply(c.of(j.diags.Sorted()), written)
	if unread := slices.DeleteFunc(slices.Clone(report.Findings), func(d diag.Diagnostic) bool { return !d.Code.Unread() }); c.WriteBaseline != "" && len(unread) > 0 {
		e.report(unread)
		return errReported
	} else if c.WriteBaseline != "" {
		return e.writeFile(c.WriteBaseline, func(w io.Writer) error {
			_, err := io.WriteString(w, lint.Baseline(report.Findings))
			return err
		})
	}
	fails := func(least diag.Severity) bool {
		return slices.ContainsFunc(report.Findings, func(d diag.Diagnostic) bool { return d.Severity <= least })
	}
	bad, found := fails(diag.Error), fails(severities()[c.FailOn])
	people := c.Output == "text" || c.Output == "markdown"
	j.complete(&report, people && !c.Each)
	if err := report.Write(e.stdout, c.Output); err != nil {
		return err
	}
	switch {
	case bad:
		return errReported
	case found:
		return errFindings
	}
	return nil
}

// complete adds to a report where things stand, and puts it in that order. With fewer, one finding
// stands for many that say the same.
func (j *job) complete(r *lint.Report, fewer bool) {
	if fewer {
		r.Findings = r.Findings.Fewer(diag.MostAlike)
	}
	j.locate(r.Findings)
	r.Findings.Sort()
	for i := range r.Suppressed {
		one := diag.List{r.Suppressed[i].Diagnostic}
		j.locate(one)
		r.Suppressed[i].Diagnostic = one[0]
	}
}

// mayWrite refuses to write a baseline over anything else, such as what is linted.
func (c *lintCmd) mayWrite(e *env) error {
	if c.WriteBaseline == standardInput {
		return errors.New("--write-baseline: must name a file, got -")
	}
	there, err := e.readFile(c.WriteBaseline)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (len(there) == 0 || lint.IsBaseline(string(there))) {
		return nil
	}
	return fmt.Errorf("--write-baseline: must be a new file or a baseline, which %s is not", c.WriteBaseline)
}

// lint adds what there is to say about a cluster. Who names no node means all of
// them: the first one stands for them, and nobody misses one that is not there.
func (j *job) lint() {
	unnamed := j.ofHost && j.snap.Node(j.facts.NodeName) == nil
	if nodes := j.snap.Nodes(); unnamed && len(nodes) > 0 {
		j.facts.NodeName, unnamed = nodes[0].Name, false
	}
	pending := lint.Complete(j.snap, j.files.Written())
	j.compile()
	for _, slice := range slices.Concat(j.snap.Orphans(), j.snap.Unlabelled()) { // at which no Service looks
		j.diags.Add(compiler.Faults(slice)...)
	}
	j.diags = pending.Mend(j.diags)
	j.diags = slices.DeleteFunc(j.diags, func(d diag.Diagnostic) bool { return (unnamed || j.noSnapshot) && d.Code == diag.NodeUnknown })
	j.diags.Add(j.Advice()...)
	j.diags.Add(lint.Check(lint.Input{Config: j.Resolved, Snapshot: j.snap, Compiled: j.diags, Written: j.files.Written(), Pending: pending})...)
}

// severities are those of --fail-on.
func severities() map[string]diag.Severity {
	return map[string]diag.Severity{"error": diag.Error, "warning": diag.Warning, "info": diag.Info}
}

func listChecks(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, g := range diag.Groups() {
		for _, c := range g.Checks {
			fmt.Fprintf(t, "%s\t%s\t%s\n", c.Code, c.Severity, c.Title)
		}
	}
	return t.Flush()
}
