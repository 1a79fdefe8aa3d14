// Package review loads what the offline verbs review: an Input of a configuration and a snapshot of a cluster, or of
// what a daemon knows. The packages below it answer one question about Inputs each: trace, explain, diff, proof,
// migrate, report and replay. Nothing here reads the command line.
package review

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Input is one compilation with all that it read and had to say.
type Input struct {
	*config.Resolved
	Snapshot *snapshot.Snapshot
	Reader   snapshot.Reader
	Facts    compiler.Facts
	Diags    diag.List
	OfHost   bool // the node's name is that of the machine
	Each     bool // print each finding
	// OnlyHere reports that nothing is known of other nodes' rules.
	OnlyHere bool
	// NoSnapshot reports that none was given.
	NoSnapshot bool
	errors     objectErrors // of a daemon
	AllowEmpty bool         // empty files are intended: no finding reports them
	EmptyHint  string       // ends the hint of the finding about an empty file: the flag that allows it
}

// NoSuchNode refuses a name that is none of the Nodes of a snapshot that has some; nil where it is one. flag
// is what --hostname-override says; "": the configuration names the node.
func (j *Input) NoSuchNode(flag string) error {
	all := j.Snapshot.Nodes()
	if len(all) == 0 || j.Snapshot.Node(j.Facts.NodeName) != nil {
		return nil
	}
	const shown = 10
	names := make([]string, len(all))
	for i, n := range all {
		names[i] = n.Name
	}
	names = diag.NearestFirst(j.Facts.NodeName, names)
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	field, got := "--hostname-override", fmt.Sprintf("got %q", j.Facts.NodeName)
	switch {
	case j.OfHost:
		got = fmt.Sprintf("it is not given, and this machine's name is %q", j.Facts.NodeName)
	case flag == "":
		field = "hostnameOverride of the configuration"
	}
	return fmt.Errorf("%s: must name a Node of the snapshot, which has %s; %s", field, text, got)
}

// Compile makes the Programs of the Input's node.
func (j *Input) Compile() ir.Programs {
	programs, diags := compiler.Compile(j.Config, j.Snapshot, j.Facts)
	j.Diags.Add(diags...)
	j.checkNode(j.Facts.NodeName)
	j.CheckAddrs(j.Facts, programs)
	return programs
}

// WarnRefused adds which endpoints the rules refuse, for verbs that write rules.
func (j *Input) WarnRefused() {
	j.Diags.Add(lint.Refused(lint.Input{Config: j.Resolved, Snapshot: j.Snapshot, Compiled: j.Diags})...)
}

// checkNode holds the configuration against a Node of the snapshot, as far as
// its addresses are known.
func (j *Input) checkNode(name string) {
	if families, ok := compiler.NodeFamilies(j.Config, j.Snapshot.Node(name), j.Facts.Interfaces); ok {
		j.Diags.Add(j.CheckNode(families)...)
	}
}

// Findings returns what there is to print: findings about objects with the place
// of the field, and one with a count for many of the same.
func (j *Input) Findings() diag.List {
	list := j.Diags.Sorted()
	if !j.Each {
		list = list.Fewer(diag.MostAlike)
	}
	j.Locate(list)
	return list
}

// Locate completes findings with their places.
func (j *Input) Locate(list diag.List) {
	j.Reader.Locate(list)
	if j.Resolved != nil {
		j.Resolved.Locate(list)
	}
}

// ReadSnapshot decodes all files of a snapshot, which together may have limit bytes (0: any amount).
// It reports whether all could be read; findings tell what could not.
func (j *Input) ReadSnapshot(from Files, names []string, limit int64) bool {
	readable := true
	fail := func(name string, err error) {
		readable = false
		j.Diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: name, Msg: err.Error()})
	}
	if !j.Each && !j.Reader.Strict { // lint heeds annotations, and what is new, before one stands for many
		j.Reader.Most = diag.MostAlike
	}
	j.Reader.CutOff = cmp.Or(j.Reader.CutOff, diag.Warning)
	var all []files.File
	for _, name := range names {
		expanded, err := from.Expand(name, &j.Diags)
		if err != nil {
			fail(name, err)
		}
		all = append(all, expanded...)
	}
	left := cmp.Or(limit, files.Unlimited)
	for _, f := range all {
		data, err := from.Read(f.Name, &left)
		if errors.Is(err, files.ErrTooMuch) {
			fail(f.Name, files.TooMuch("with it the snapshot", limit))
			break
		} else if err != nil {
			fail(f.Name, err)
			continue
		}
		if len(bytes.TrimSpace(data)) == 0 && !j.AllowEmpty {
			j.Diags.Add(diag.Diagnostic{Severity: j.Reader.CutOff, Code: diag.FileCutOff, File: f.Name, Msg: "is empty, as a failed kubectl leaves a file behind", Hint: "write it again" + j.EmptyHint})
		}
		list := j.Reader.Decode(j.Snapshot, f.Name, data, f.FromDirectory)
		if slices.ContainsFunc(list, func(d diag.Diagnostic) bool { return d.Code == diag.FileUnreadable }) {
			readable = false // it is no snapshot
		}
		j.Diags.Add(list...)
	}
	j.Diags.Add(j.Snapshot.Finish()...)
	if readable && len(names) > 0 && len(j.Snapshot.Services()) == 0 {
		j.Diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoServices, Msg: "the snapshot has no Service: there is nothing to proxy",
			Hint: wholeSnapshot})
	}
	if service := j.Reader.Unsliced(); readable && service != "" {
		j.Diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoSlices, Msg: "the snapshot " + snapshot.NoSlices(service) + ": no Service has a backend", Hint: wholeSnapshot})
	}
	return readable
}

// wholeSnapshot is what to do where a snapshot lacks a kind altogether.
const wholeSnapshot = "it is what kubectl get services,endpointslices,nodes -A -o yaml prints"

// Others returns the facts about another node, of which no more is known than its object says.
func (j *Input) Others(node string) compiler.Facts {
	facts := j.Facts
	if node != facts.NodeName {
		facts.NodeName, facts.Interfaces, facts.Named = node, nil, nil
		facts.TCPBeLiberal, facts.HNSEndpoints = false, nil
	}
	return facts
}

// CheckAddrs says where text lacks node ports, since mode ipvs has a virtual
// server for each on every address of the node.
func (j *Input) CheckAddrs(facts compiler.Facts, programs ir.Programs) {
	if facts.AllAddrsKnown() {
		return
	}
	for _, p := range programs.All() {
		if p.Node.IPVS != nil && p.Node.NodePorts.Assigned() && slices.ContainsFunc(p.Services, hasNodePort) {
			j.Diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NodeAddresses, Object: "Node " + facts.NodeName, Path: "status.addresses",
				Msg:  "has the only addresses that are known offline: in mode ipvs node ports answer at no others",
				Hint: "name the others with --node-address IP@INTERFACE, or take this machine's with --live"})
			return
		}
	}
}

func hasNodePort(s ir.Service) bool {
	return slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Kind == ir.NodePort })
}

// CompileNodes compiles for one node after the other, until yield returns false. What does not
// depend on the node is done once.
func (j *Input) CompileNodes(nodes []compiler.Facts, yield func(i int, programs ir.Programs) bool) {
	compiler.CompileNodes(j.Config, j.Snapshot, nodes, func(i int, programs ir.Programs, diags diag.List) bool {
		j.Diags.Add(diags...)
		j.checkNode(nodes[i].NodeName)
		return yield(i, programs)
	})
}

// CompileEach returns what compiles for one node after the other, and what ends it.
func (j *Input) CompileEach(nodes []compiler.Facts) (next func() ir.Programs, stop func()) {
	pull, stop := iter.Pull(func(yield func(ir.Programs) bool) {
		j.CompileNodes(nodes, func(_ int, programs ir.Programs) bool { return yield(programs) })
	})
	return func() ir.Programs { programs, _ := pull(); return programs }, stop
}

// Pods returns where the pods of the cluster are, as far as it is known.
func (j *Input) Pods() (pods []netip.Prefix) {
	pods = j.Config.ClusterCIDRs()
	for _, n := range j.Snapshot.Nodes() {
		pods = append(pods, n.PodCIDRs...)
	}
	return pods
}

// PodsOn returns where the pods of a Node are, as far as its object says.
func (j *Input) PodsOn(node string) []netip.Prefix {
	if n := j.Snapshot.Node(node); n != nil {
		return slices.Clone(n.PodCIDRs)
	}
	return nil
}
