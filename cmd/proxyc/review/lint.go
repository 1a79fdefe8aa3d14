package review

import (
	"errors"
	"fmt"
	"slices"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
)

// Lint adds the findings about a cluster. Without a node name it applies to all nodes, represented
// by the first one; a missing Node is then no finding.
func (j *Input) Lint() {
	unnamed := j.OfHost && j.Snapshot.Node(j.Facts.NodeName) == nil
	if nodes := j.Snapshot.Nodes(); unnamed && len(nodes) > 0 {
		j.Facts.NodeName, unnamed = nodes[0].Name, false
	}
	j.Compile()
	j.Diags.Add(compiler.Faults(slices.Concat(j.Snapshot.Orphans(), j.Snapshot.Unlabelled()))...) // which no Service refers to
	j.Diags = j.pending.Adjust(j.Diags)
	j.Diags = slices.DeleteFunc(j.Diags, func(d diag.Diagnostic) bool { return (unnamed || j.NoSnapshot) && d.Code == diag.NodeUnknown })
	j.Diags.Add(j.Advice()...)
	j.Diags.Add(lint.Check(lint.Input{Config: j.Resolved, Snapshot: j.Snapshot, Compiled: j.Diags, Written: j.Reader.Written(), Pending: j.pending, StandIns: j.StandIns, OtherRange: j.otherRange, Unread: j.count((*file).unread) > 0, Ambiguous: j.Ambiguous(), Ignored: j.Reader.Ignored()})...)
}

// Complete adds positions to a report, and sorts it by them. With fewer, it groups equal findings.
func (j *Input) Complete(r *lint.Report, fewer bool) {
	if fewer {
		r.Findings = r.Findings.Summarize(diag.MaxSimilar)
	}
	j.Locate(r.Findings)
	r.Findings.Sort()
	for i := range r.Suppressed {
		one := diag.List{r.Suppressed[i].Diagnostic}
		j.Locate(one)
		r.Suppressed[i].Diagnostic = one[0]
	}
}

// Suppressions reads files with accepted findings and changes.
func (f Files) Suppressions(names []string) (accepted lint.Suppressions, err error) {
	for _, name := range names {
		text, unread := f.ReadFile(name)
		if unread != nil {
			return accepted, fmt.Errorf("%s: %w", name, unread)
		}
		for _, d := range accepted.Read(name, string(text)) {
			err = errors.Join(err, errors.New(d.String()))
		}
	}
	return accepted, err
}
