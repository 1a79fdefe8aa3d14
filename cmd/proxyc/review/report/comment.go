package report

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/contract"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/lint"
)

// results are those of Checks.
type results struct {
	contract *contract.Result
	packets  []trace.Result
	untraced error // of packets
}

// ReadChecks reads files with contracts, packets, and accepted findings and changes.
func ReadChecks(from review.Files, contracts []string, packets string, accepted []string, limit int64) (c Checks, err error) {
	var errs [3]error
	if len(contracts) > 0 {
		c.Contracts, errs[0] = contract.Read(from, contracts)
	}
	if packets != "" {
		c.Packets, errs[1] = trace.ReadPackets(from, packets, limit)
	}
	c.Accepted, errs[2] = from.Suppressions(accepted)
	return c, errors.Join(errs[:]...)
}

// check decides the contracts on the chosen nodes, or on all, and traces the packets on the first.
func (r *Report) check(chosen diff.Nodes) error {
	if len(r.checks.Contracts) > 0 {
		nodes, err := diff.FactsOf(r.is, diff.Nodes{Names: chosen.Names, All: len(chosen.Names) == 0})
		if err != nil {
			return err
		}
		r.results.contract = contract.Check(r.is, nodes, r.checks.Contracts, r.is.StandIns.Pods(r.is.Snapshot, r.is.Reader.Written(), r.is.Facts.NodeName))
	}
	if len(r.checks.Packets) > 0 {
		r.results.packets, r.results.untraced = trace.NewTracer(r.is, r.is.Compile()).TraceAll(r.checks.Packets)
	}
	return nil
}

// Failures returns why a change must not be merged, in the order of the comment, and what is accepted.
func (r *Report) Failures() (failures, accepted []string) {
	if r.results.contract != nil {
		for _, c := range r.results.contract.Contracts {
			if !c.Holds() {
				failures = append(failures, "contract "+c.Name)
			}
		}
	}
	for i := range r.results.packets {
		if p := &r.results.packets[i]; !p.Met() {
			failures = append(failures, "packet "+strings.TrimSuffix(p.Where, ": "))
		}
	}
	if r.results.untraced != nil {
		failures = append(failures, "packets that cannot be traced")
	}
	if r.Diff == nil {
		return failures, nil
	}
	dangers, accepted := r.Diff.Failures(&r.checks.Accepted)
	return append(failures, dangers...), accepted
}

// WriteMarkdown writes an overview and all findings, or with an earlier side a comment for a pull request:
// whether the change may be merged, the failed checks, the differences, and the new findings.
func (r *Report) WriteMarkdown(w io.Writer) error {
	if r.Diff == nil {
		r.writeOverview(w)
		return r.findings.Write(w, "markdown")
	}
	r.writeVerdict(w)
	if r.results.contract != nil && !r.results.contract.Holds() {
		if err := quote(w, "Contracts", r.results.contract.WriteText); err != nil {
			return err
		}
	}
	unmet := slices.DeleteFunc(slices.Clone(r.results.packets), func(p trace.Result) bool { return p.Met() })
	if len(unmet) > 0 || r.results.untraced != nil {
		if err := quote(w, "Packets", func(w io.Writer) error {
			if r.results.untraced != nil {
				fmt.Fprintln(w, r.results.untraced)
			}
			return trace.Write(w, unmet, true)
		}); err != nil {
			return err
		}
	}
	if err := r.Diff.WriteMarkdown(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return r.fresh.Write(w, "markdown")
}

// writeVerdict writes whether the change may be merged, and what of it is accepted.
func (r *Report) writeVerdict(w io.Writer) {
	failures, accepted := r.Failures()
	verdict := "Passed: " + r.Diff.Changes()
	if len(failures) > 0 {
		verdict = "Failed: " + lint.Cell(strings.Join(failures, "; "))
	} else if left := slices.Concat(r.Diff.Unknown, r.Diff.NotRead, r.Diff.NotCompared); len(left) > 0 {
		verdict += ". Not compared: " + lint.Cell(review.FirstOf(left, diff.ShownUnknown))
	}
	fmt.Fprintf(w, "**%s.**\n\n", verdict)
	if len(accepted) > 0 {
		fmt.Fprintf(w, "Accepted: %s.\n\n", lint.Cell(strings.Join(accepted, "; ")))
	}
}

// mostQuoted is the maximum number of bytes of a quotation in a comment.
const mostQuoted = 8 << 10

// quote writes a text as a quotation with a title.
func quote(w io.Writer, title string, write func(io.Writer) error) error {
	var text bytes.Buffer
	if err := write(&text); err != nil {
		return err
	}
	lines := strings.ReplaceAll(text.String(), "```", "\u02cb\u02cb\u02cb")
	if len(lines) > mostQuoted {
		lines = lines[:strings.LastIndexByte(lines[:mostQuoted], '\n')+1] + "…\n"
	}
	_, err := fmt.Fprintf(w, "### %s\n\n```\n%s```\n\n", title, lines)
	return err
}

// shownUnserved is the maximum number of Services without service for clients that an overview names.
const shownUnserved = 20

func (r *Report) writeOverview(w io.Writer) {
	o := &r.Page.Overview
	title := "proxyc report"
	if r.Page.Cluster != "" {
		title += ": " + lint.Cell(r.Page.Cluster)
	}
	fmt.Fprintf(w, "### %s\n\nMode %s, %s, node %s: **%d Services** with rules, %d without; %d backends behind %s.\n",
		title, o.Mode, cmp.Or(strings.Join(o.Families, " and "), "no family"), lint.Cell(o.Node), o.Services, o.Without, o.Backends, o.FrontendsText())
	if len(r.Page.Inputs) > 0 {
		fmt.Fprintf(w, "\nInputs: %s", lint.Cell(strings.Join(r.Page.Inputs, ", ")))
		if date := r.Page.Date; date != "" {
			fmt.Fprintf(w, ". Date: %s", date)
		}
		fmt.Fprintln(w, ".")
	}
	if len(o.Unserved) > 0 {
		fmt.Fprintf(w, "\nServices that leave some clients unserved: %s.\n", lint.Cell(review.FirstOf(o.Unserved, shownUnserved)))
	}
	fmt.Fprintln(w)
}
