// Package report writes a complete report about a cluster as one HTML page or as Markdown.
package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"

	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/cmd/proxyc/page"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/contract"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
)

// Report is a report about a cluster.
type Report struct {
	was, is  *review.Input
	findings lint.Report
	fresh    *lint.Report // findings that the earlier side does not have; nil without an earlier side
	Diff     *diff.Diff   // nil without an earlier side
	Page     page.Page    // findings and differences are added when it is written
	checks   Checks
	results  results
}

// Checks are what the reported side must fulfil.
type Checks struct {
	Contracts []*contract.Contract
	Packets   []trace.Expectation
	Accepted  lint.Suppressions // findings and changes
}

// Errors returns the findings of both sides that are errors, without those about equal files of both.
func (r *Report) Errors() diag.List {
	found := r.is.Findings()
	if r.was != nil {
		found = review.FindingsOfBoth(r.was, r.is)
	}
	return slices.DeleteFunc(found, func(d diag.Diagnostic) bool { return d.Severity != diag.Error })
}

// New returns the report for the selected nodes. If none is selected, it compares those of diff, and shows
// the node that the configuration names, or else the first node of the snapshot to represent all. was is the earlier
// side; optional, nil disables the comparison. The report is never nil: with an error, it contains
// the findings.
func New(ctx context.Context, was, is *review.Input, chosen diff.Nodes, checks Checks) (*Report, error) {
	r := &Report{was: was, is: is, checks: checks}
	if was != nil { // with the same Nodes as diff, before lint chooses one for both sides
		var err error
		if r.Diff, err = diff.Compare(ctx, was, is, chosen, diff.All, flow.CompareOf); err != nil {
			return r, err
		}
	}
	r.find()
	if !chosen.Any() && is.Snapshot.Node(is.Facts.NodeName) != nil {
		chosen.Names = []string{is.Facts.NodeName}
	}
	for _, svc := range is.Snapshot.Services() {
		if why := compiler.Ignored(svc); why != "" {
			r.Page.Without = append(r.Page.Without, page.Without{Name: svc.Name.String(), Why: why})
		}
	}
	if err := r.check(chosen); err != nil {
		return r, err
	}
	return r, r.addNodes(ctx, chosen)
}

// find adds the lint findings, and marks those that are new. It applies annotations before it
// groups findings, because an annotation would otherwise suppress the whole group.
func (r *Report) find() {
	found := func(j *review.Input) lint.Report {
		j.Lint()
		one := lint.Report{Version: build.Read().Version, Roots: j.Roots}
		r.checks.Accepted.Roots = j.Roots
		one.Findings, one.Suppressed = r.checks.Accepted.Apply(j.Diags.Sorted(), j.Reader.Written())
		return one
	}
	if r.was != nil {
		before := found(r.was)
		r.findings = found(r.is)
		fresh := r.findings.Since(before)
		r.fresh = &fresh
		r.is.Complete(r.fresh, !r.is.Each)
	} else {
		r.findings = found(r.is)
	}
	r.is.Complete(&r.findings, !r.is.Each)
}

// addNodes adds the part about each node.
func (r *Report) addNodes(ctx context.Context, chosen diff.Nodes) error {
	facts := []compiler.Facts{r.is.Facts}
	if chosen.Any() {
		var err error
		if facts, err = diff.FactsOf(r.is, chosen); err != nil {
			return err
		}
	}
	for i, programs := range r.is.CompileNodes(facts) {
		name := facts[i].NodeName
		d := page.NodeData{Name: name, Carries: programs.IPv4.Node.Mode.Capabilities().Has(ir.CarriesVIPs), Here: r.is.PodsOn(name), Pods: r.is.Pods()}
		var merged flow.Merger
		for _, p := range ir.Present(programs) {
			d.Programs = append(d.Programs, p)
			services, err := flow.Reach(ctx, flow.Network{Here: d.Here, Pods: d.Pods, Shown: r.is.StandIns.Shown}, p)
			if err != nil {
				return err
			}
			merged.Add(name, services)
		}
		d.Reach = page.ReachOf(merged.Services())
		node, err := page.NewNode(d)
		if err != nil {
			return err
		}
		r.Page.Nodes = append(r.Page.Nodes, node)
		if i == 0 {
			r.Page.Overview = page.NewOverview(programs)
			r.Page.Overview.Without, r.Page.Overview.Nodes = len(r.Page.Without), len(r.is.Snapshot.Nodes())
		}
	}
	return nil
}

// WriteHTML writes the report as one self-contained page.
func (r *Report) WriteHTML(w io.Writer) error {
	p, err := &r.Page, error(nil)
	p.Version = r.findings.Version
	if p.Findings, err = raw(func(w io.Writer) error { return r.findings.Write(w, "json") }); err != nil {
		return err
	}
	if r.fresh != nil {
		if p.New, err = raw(func(w io.Writer) error { return r.fresh.Write(w, "json") }); err != nil {
			return err
		}
	}
	if r.Diff != nil {
		if p.Diff, err = r.Diff.PageJSON(); err != nil {
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

// writeSARIF writes the findings, with an earlier side the new ones.
func (r *Report) writeSARIF(w io.Writer) error { return cmp.Or(r.fresh, &r.findings).Write(w, "sarif") }

// forms are the writers of formats, and of files with a suffix.
var forms = map[string]func(*Report, io.Writer) error{
	"html": (*Report).WriteHTML, ".html": (*Report).WriteHTML, ".sarif": (*Report).writeSARIF,
	"markdown": (*Report).WriteMarkdown, ".md": (*Report).WriteMarkdown,
}

// Form returns the writer of an output, and whether that is a file; nil if there is none.
func Form(output string) (write func(*Report, io.Writer) error, file bool) {
	if write = forms[output]; write != nil {
		return write, false
	}
	return forms[filepath.Ext(output)], true
}
