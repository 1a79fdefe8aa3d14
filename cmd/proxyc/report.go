package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/cmd/proxyc/page"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

type reportCmd struct {
	input
	nodeChoice

	Against       []string `placeholder:"FILE" sep:"none" help:"The snapshot before the change, to tell what differs. May be repeated."`
	AgainstConfig string   `placeholder:"FILE" help:"The configuration before the change; by default the same."`
	Cluster       string   `placeholder:"NAME" help:"The name of the cluster, for the heading."`
	Output        string   `short:"o" default:"html" placeholder:"FORMAT" help:"Output: html, a page that needs nothing else; markdown, for a pull request; or a file to write, whose name ends in .html or .md."`
}

// Run writes what there is to say about a cluster as one page.
func (c *reportCmd) Run(e *env) error {
	ctx := context.Background()
	write, file := (*clusterReport).writeHTML, ""
	switch {
	case c.Output == "html":
	case c.Output == "markdown":
		write = (*clusterReport).writeMarkdown
	case strings.HasSuffix(c.Output, ".html"):
		file = c.Output
	case strings.HasSuffix(c.Output, ".md"):
		write, file = (*clusterReport).writeMarkdown, c.Output
	default:
		return fmt.Errorf("-o: must be html, markdown, or a file whose name ends in .html or .md, got %q", c.Output)
	}
	was, is, err := c.sides(e)
	if err != nil {
		return err
	}
	r, err := c.report(ctx, was, is)
	errs := r.errors()
	wrong, all := wrongObjects(errs)
	if err != nil || !all { // of what could not be read nothing is said
		e.report(errs)
		return reportedIf(errs, err)
	}
	if r.diff != nil {
		r.diff.Wrong = wrong
	}
	r.cluster, r.inputs, r.before = c.Cluster, inputFiles(c.names()...), inputFiles(append([]string{c.AgainstConfig}, c.Against...)...)
	r.date = e.newest(append(slices.Clone(r.inputs), r.before...))
	whole := func(w io.Writer) error { return buffered(w, func(w io.Writer) error { return write(r, w) }) }
	if file != "" {
		err = e.writeFile(file, whole)
	} else {
		err = whole(e.stdout)
	}
	e.report(errs)
	return reportedIf(errs, err)
}

// inputFiles returns the names of files that are not empty.
func inputFiles(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
}

// newest returns when the newest of files, or of those in directories, was written; zero if that is not known,
// as of standard input.
func (e *env) newest(names []string) (at time.Time) {
	for _, name := range names {
		if name == standardInput {
			return time.Time{}
		}
		all, err := e.expand(name, new(diag.List))
		if err != nil {
			continue // reported where it is read
		}
		for _, f := range all {
			if info, err := e.files.Stat(f.Name); err == nil && info.ModTime().After(at) {
				at = info.ModTime()
			}
		}
	}
	return at
}

// reportedIf returns the error with which a verb ends that printed errors, if any.
func reportedIf(errs diag.List, err error) error {
	if err == nil && len(errs) > 0 {
		return errReported
	}
	return err
}

// sides reads what is reported, and what was before it, which is nil where nothing is
// compared.
func (c *reportCmd) sides(e *env) (was, is *job, err error) {
	names := append(append(c.names(), c.AgainstConfig), c.Against...)
	if err := oneStdin(names...); err != nil {
		return nil, nil, err
	}
	start, err := e.rereading(names, int64(c.Limit))
	if err != nil {
		return nil, nil, err
	}
	compared := len(c.Against) > 0 || c.AgainstConfig != ""
	c.asWritten, c.anyNode, c.wholeFiles = true, true, true
	if is, err = c.load(start()); err != nil || !compared {
		return nil, is, err
	}
	before := c.input
	if len(c.Against) > 0 {
		before.Snapshot = c.Against
	}
	if c.AgainstConfig != "" {
		before.setConfig(c.AgainstConfig)
	}
	was, err = before.load(start())
	return was, is, err
}

// clusterReport is what there is to say about a cluster.
type clusterReport struct {
	was, is  *job
	overview page.Overview
	without  []page.Without
	findings lint.Report
	fresh    *lint.Report // findings that the side before has not; nil: there is none
	diff     *flowDiff    // nil: there is no side before
	nodes    []page.Node
	cluster  string
	inputs   []string // files
	before   []string // files of the side before
	date     time.Time
}

// errors are the findings that are errors, of both sides.
func (r *clusterReport) errors() (errs diag.List) {
	for _, j := range [...]*job{r.was, r.is} {
		if j != nil {
			errs = append(errs, slices.DeleteFunc(j.findings(), func(d diag.Diagnostic) bool { return d.Severity != diag.Error })...)
		}
	}
	return errs
}

// report makes the report of the nodes that are chosen: of the one that the configuration names, or else
// of the first of the snapshot, which stands for all.
func (c *reportCmd) report(ctx context.Context, was, is *job) (*clusterReport, error) {
	r := &clusterReport{was: was, is: is}
	r.find()
	chosen := c.nodeChoice
	if !chosen.chosen() && is.snap.Node(is.facts.NodeName) != nil {
		chosen.Node = []string{is.facts.NodeName}
	}
	for _, svc := range is.snap.Services() {
		if why := compiler.Skipped(svc); why != "" {
			r.without = append(r.without, page.Without{Name: svc.Name.String(), Why: why})
		}
	}
	if was != nil {
		was.facts.NodeName = is.facts.NodeName
		var err error
		if r.diff, err = compareNodes(ctx, was, is, chosen, flow.Compare); err != nil {
			return r, err
		}
	}
	return r, r.addNodes(ctx, chosen)
}

// find adds what lint finds, and which of it is new. Annotations are heeded before one finding stands for
// many: it would take the others' with it.
func (r *clusterReport) find() {
	found := func(j *job) lint.Report {
		var none lint.Suppressions
		j.lint()
		one := lint.Report{Version: build.Read().Version}
		one.Findings, one.Suppressed = none.Apply(j.diags.Sorted(), j.files.Written())
		return one
	}
	if r.was != nil {
		before := found(r.was)
		r.findings = found(r.is)
		fresh := r.findings.Since(before)
		r.fresh = &fresh
		r.is.complete(r.fresh, !r.is.each)
	} else {
		r.findings = found(r.is)
	}
	r.is.complete(&r.findings, !r.is.each)
}

// addNodes adds what is said of each of the nodes.
func (r *clusterReport) addNodes(ctx context.Context, chosen nodeChoice) error {
	facts := []compiler.Facts{r.is.facts}
	if chosen.chosen() {
		nodes, err := nodesOf(r.is, r.is, chosen, factsByWhat{})
		if err != nil {
			return err
		}
		facts = nodes[1]
	}
	next, stop := r.is.compileEach(facts)
	defer stop()
	for i := range facts {
		programs, name := next(), facts[i].NodeName
		d := page.NodeData{Name: name, Programs: programs, Here: podsHere(r.is, name), Pods: podsOf(r.is), Interface: podInterface(&programs.IPv4.Node)}
		var merged flow.Merger
		for _, p := range ir.Present(programs) {
			services, err := flow.Reach(ctx, flow.Network{Here: d.Here, Pods: d.Pods}, p)
			if err != nil {
				return err
			}
			merged.Add(name, services)
		}
		d.Reach = merged.Services()
		node, err := page.NewNode(d)
		if err != nil {
			return err
		}
		r.nodes = append(r.nodes, node)
		if i == 0 {
			r.overview = page.NewOverview(programs)
			r.overview.Without, r.overview.Nodes = len(r.without), len(r.is.snap.Nodes())
		}
	}
	return nil
}

func (r *clusterReport) writeHTML(w io.Writer) error {
	p := page.Page{Version: r.findings.Version, Overview: r.overview, Without: r.without, Nodes: r.nodes, Addresses: map[string]string{},
		Cluster: r.cluster, Inputs: r.inputs, Before: r.before}
	if !r.date.IsZero() {
		p.Date = r.date.UTC().Format(time.RFC3339)
	}
	for _, n := range r.is.snap.Nodes() {
		for _, a := range n.Addresses {
			p.Addresses[a.Address] = n.Name
		}
	}
	var err error
	if p.Findings, err = raw(func(w io.Writer) error { return r.findings.Write(w, "json") }); err != nil {
		return err
	}
	if r.fresh != nil {
		if p.New, err = raw(func(w io.Writer) error { return r.fresh.Write(w, "json") }); err != nil {
			return err
		}
	}
	if r.diff != nil {
		if p.Diff, err = r.differences(); err != nil {
			return err
		}
	}
	return p.Write(w)
}

func raw(write func(io.Writer) error) (json.RawMessage, error) {
	var b bytes.Buffer
	err := write(&b)
	return b.Bytes(), err
}

// differences is the document of diff -o json, with the same change in many Services as one
// entry, and the summary.
func (r *clusterReport) differences() (json.RawMessage, error) {
	type entry struct {
		Names   []string    `json:"names"`
		Service serviceJSON `json:"service"`
	}
	out := struct {
		Doc     json.RawMessage `json:"doc"`
		Summary string          `json:"summary"`
		Entries []entry         `json:"entries"`
	}{Entries: []entry{}}
	var err error
	if out.Doc, err = raw(r.diff.writeJSON); err != nil {
		return nil, err
	}
	summary, err := raw(func(w io.Writer) error { return r.diff.writeSummary(w, "") })
	out.Summary = strings.TrimSpace(string(summary))
	for _, g := range r.diff.entries(false) {
		one := entry{Service: r.diff.serviceJSON(&g.Service)}
		for _, n := range g.Names {
			name := ""
			if n != (ir.Name{}) {
				name = n.String()
			}
			one.Names = append(one.Names, name)
		}
		out.Entries = append(out.Entries, one)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// shownUnserved is how many Services that leave clients unserved a comment names.
const shownUnserved = 20

// writeMarkdown writes a comment for a pull request: the overview, what differs, and what is
// found, of which only what is new where there is a side before.
func (r *clusterReport) writeMarkdown(w io.Writer) error {
	o := &r.overview
	title := "proxyc report"
	if r.cluster != "" {
		title += ": " + lint.Cell(r.cluster)
	}
	fmt.Fprintf(w, "### %s\n\nMode %s, %s, as node %s has it: **%d Services** with rules, %d without; %d backends behind %s.\n",
		title, o.Mode, cmp.Or(strings.Join(o.Families, " and "), "no Service of any family"), lint.Cell(o.Node), o.Services, o.Without, o.Backends, o.FrontendsText())
	if n := len(o.Unserved); n > 0 {
		names := o.Unserved[:min(n, shownUnserved)]
		more := ""
		if n > len(names) {
			more = fmt.Sprintf(" and %d more", n-len(names))
		}
		fmt.Fprintf(w, "\nServices that leave some clients unserved: %s%s.\n", lint.Cell(strings.Join(names, ", ")), more)
	}
	found := &r.findings
	if r.diff != nil {
		fmt.Fprintln(w)
		if err := r.diff.writeMarkdown(w); err != nil {
			return err
		}
		found = r.fresh
		fmt.Fprint(w, "\nOf the findings, those that are new:\n")
	}
	fmt.Fprintln(w)
	return found.Write(w, "markdown")
}
