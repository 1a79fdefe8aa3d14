// Package review loads the input of the offline commands: a configuration and a snapshot of a
// cluster, or a daemon's input. Each package below it answers one question about Inputs: trace,
// explain, diff, proof, migrate, report and replay. None of them parses the command line.
package review

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// Input is a compilation with its input and findings.
type Input struct {
	*config.Resolved
	Snapshot *snapshot.Snapshot
	Reader   manifest.Reader
	Facts    compiler.Facts
	Diags    diag.List
	Live     bool // the input of a daemon
	OfHost   bool // the node name is the machine's
	Chosen   bool // the node name is that of --node
	Each     bool // print each finding
	// OnlyHere reports that the rules of other nodes are unknown.
	OnlyHere bool
	// NoSnapshot reports that no snapshot was given.
	NoSnapshot  bool
	errors      objectErrors     // from a daemon
	pending     lint.Pending     // Services that the API server has not seen
	StandIns    *assume.StandIns // of the snapshot; nil if it is not completed
	standInNode bool             // the node is not in the input
	assumesNode bool             // missing Nodes and addresses of theirs have stand-ins
	otherRange  bool             // of node ports of the snapshot, without an overlay
	// Partial accepts directories with broken files. The caller reports them, and those that are rendered.
	Partial    bool
	files      map[string]*file  // of directories, by file.below
	Hidden     map[string]string // files of directories that are not read, with what renders them: see Hide
	NotRead    []string          // files that CompareUnread found to differ
	NotApplied []string          // those that also differ, but that no program applies as they are
	AllowEmpty bool              // empty files are intended: do not report them
	EmptyHint  string            // end of the hint about an empty file: the flag that allows it
	Roots      lint.Roots        // files and directories of the objects
	limit      int64             // of the size of the files; 0 for none
	left       int64             // of it
}

// NoSuchNode returns an error if the node name is not among the Nodes of a snapshot that has some.
// flag is the flag that selects the node. If it is not given, the configuration sets the name.
func (j *Input) NoSuchNode(flag string, given bool) error {
	if len(j.Snapshot.Nodes()) == 0 || j.Snapshot.Node(j.Facts.NodeName) != nil {
		return nil
	}
	field, got := flag, fmt.Sprintf("got %q", j.Facts.NodeName)
	switch {
	case j.OfHost:
		got = fmt.Sprintf("it is not set, and this machine's name is %q", j.Facts.NodeName)
	case !given:
		field = "hostnameOverride of the configuration"
	}
	return UnknownNode(field, j.Facts.NodeName, got, j.Snapshot)
}

// Compile returns the Programs of the Input's node.
func (j *Input) Compile() ir.Programs {
	programs, diags := compiler.Compile(j.Config, j.Snapshot, j.Facts)
	j.addCompiled(diags, j.Facts.NodeName)
	j.CheckAddrs(j.Facts, programs)
	return programs
}

// WarnRefused adds findings about endpoints that the rules reject, for commands that write rules.
func (j *Input) WarnRefused() {
	j.Diags.Add(lint.Refused(lint.Input{Config: j.Resolved, Snapshot: j.Snapshot, Compiled: j.Diags})...)
}

// addCompiled adds the findings of a compilation for a node, and those of the configuration about
// the address families of its Node, if known. The families of a stand-in are no reason for any.
func (j *Input) addCompiled(diags diag.List, name string) {
	if j.standInNode {
		j.Diags.Add(slices.DeleteFunc(diags, func(d diag.Diagnostic) bool { return d.Code == diag.NoPodRange })...)
		return
	}
	j.Diags.Add(diags...)
	if families, ok := compiler.NodeFamilies(j.Config, j.Snapshot.Node(name), j.Facts.Interfaces); ok {
		j.Diags.Add(j.CheckNode(families)...)
	}
}

// Findings returns the findings to print: those about objects with the position of the field, and
// one with a count for many equal ones.
func (j *Input) Findings() diag.List {
	list := j.Diags.Sorted()
	if !j.Each {
		list = list.Summarize(diag.MaxSimilar)
	}
	j.Locate(list)
	return list
}

// Locate adds positions to findings.
func (j *Input) Locate(list diag.List) {
	j.Reader.Locate(list)
	if j.Resolved != nil {
		j.Resolved.Locate(list)
	}
}

// Position returns the position of an object's field in the files of the Input as FILE:LINE:COLUMN,
// or "" if it is in no file.
func (j *Input) Position(object, field string) string {
	one := make(diag.List, 1) // diag.List finds the position of a finding
	one[0].Object, one[0].Path = object, field
	j.Locate(one)
	if one[0].File == "" || one[0].Line == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", one[0].File, one[0].Line, one[0].Column)
}

// ReadSnapshot reads all files of a snapshot, of at most limit bytes together (0 for no limit). It
// reports whether all could be read; findings describe the others.
func (j *Input) ReadSnapshot(from Files, names []string, limit int64) bool {
	j.begin(limit)
	readable := j.decode(from, names, j.Snapshot)
	j.finish(readable && len(names) > 0)
	return readable
}

// begin prepares to read files of at most limit bytes together.
func (j *Input) begin(limit int64) {
	if !j.Each && !j.Reader.Strict { // lint applies annotations and baselines before findings are grouped
		j.Reader.MaxSimilar = diag.MaxSimilar
	}
	j.limit, j.left = limit, cmp.Or(limit, files.Unlimited)
}

// ReadCluster reads the objects of an API server. Findings about them have no positions. The limit is
// that of an overlay.
func (j *Input) ReadCluster(objects []byte, limit int64) {
	j.begin(limit)
	list := j.Reader.Decode(j.Snapshot, "", objects, false)
	for i := range list {
		list[i].Line, list[i].Column = 0, 0
	}
	j.Diags.Add(list...)
	j.Reader.ForgetPositions()
	j.finish(true)
}

// finish adds findings that require all files of a snapshot. whole reports that there are files, and
// that all could be read.
func (j *Input) finish(whole bool) {
	j.Diags.Add(j.Snapshot.Finish()...)
	j.otherRange = lint.OtherRange(j.Snapshot, j.Reader.Written())
	whole = whole && j.count((*file).unread) == 0
	if whole && len(j.Snapshot.Services()) == 0 {
		j.Diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NoServices, Msg: "the snapshot has no Service: there is nothing to proxy",
			Hint: wholeSnapshot})
	}
	if service := j.Reader.Unsliced(); whole && service != "" && len(j.Snapshot.Workloads()) == 0 {
		j.Diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoSlices, Msg: "the snapshot " + manifest.NoSlices(service) + ": no Service has a backend", Hint: wholeSnapshot})
	}
}

// decode adds the objects in files to a snapshot, and reports whether all could be read.
func (j *Input) decode(from Files, names []string, to *snapshot.Snapshot) bool {
	readable := true
	fail := func(name string, err error) {
		readable = false
		j.Diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: name, Msg: err.Error()})
	}
	all := j.list(from, names, to != j.Snapshot, fail)
	var empty diag.List
	for _, f := range all {
		data, err := from.Read(f.Name, &j.left)
		if errors.Is(err, files.ErrTooMuch) {
			fail(f.Name, files.TooMuch("with this file, the snapshot", j.limit))
			break
		}
		var broken diag.List
		if err != nil {
			broken.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: f.Name, Msg: err.Error()})
		} else if f.by == "" {
			if blank := len(bytes.TrimSpace(data)) == 0; !j.AllowEmpty && manifest.IsEmpty(data) {
				d := emptyFile(f.Name, !blank, j.EmptyHint)
				if blank && (!f.FromDirectory || j.Reader.Whole) {
					broken.Add(d)
				} else if empty.Add(d); blank && !j.Partial {
					d.Severity, d.Code = diag.Info, diag.FileSkipped
					j.Diags.Add(d)
				}
			}
			for _, d := range j.Reader.Decode(to, f.Name, data, f.FromDirectory) {
				if d.Severity == diag.Error && d.Object == "" { // the text of the file cannot be read
					broken.Add(d)
				} else {
					j.Diags.Add(d)
				}
			}
		}
		if f.FromDirectory {
			if f.why = broken; isAside(f.Name, data) {
				f.passed = makesObjects(f.Name, data)
			}
			j.keep(from, f, data)
			continue
		}
		j.Diags.Add(broken...)
		readable = readable && !slices.ContainsFunc(broken, func(d diag.Diagnostic) bool { return d.Code == diag.FileUnreadable }) // it is no snapshot
	}
	if len(empty) > 0 && len(empty) == len(all) {
		readable = false
		j.Diags.Add(empty...)
	}
	if !j.Partial && j.count(func(f *file) bool { return len(f.why) > 0 || j.Reader.Whole && f.by != "" }) > 0 {
		readable = false
		j.ReportUnread(diag.Error, RenderFirst, nil)
	}
	return readable
}

// emptyFile returns the finding about a file without any object. A file may have comments.
func emptyFile(name string, comments bool, allow string) diag.Diagnostic {
	d := diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: name, Msg: "is empty, as a failed kubectl leaves a file behind", Hint: "write it again" + allow}
	switch {
	case comments:
		d.Msg, d.Hint = "contains no object", wholeSnapshot+allow
	case name == StandardInput:
		d.File, d.Hint = "standard input", "check that the command before it succeeds"+allow
	}
	return d
}

// ReadOverlay reads the manifests of an Overlay, and applies them to the snapshot. It reports whether
// all could be read.
func (j *Input) ReadOverlay(from Files, names []string, o *assume.Overlay, s *assume.StandIns) (readable bool, err error) {
	o.Objects, o.Was, o.Node, o.PodRanges = snapshot.New(), maps.Clone(j.Reader.Written()), j.Facts.NodeName, j.Pods()
	j.Reader.Overlay(func() { readable = j.decode(from, names, o.Objects) })
	if o.Written = j.Reader.Written(); !readable {
		return false, nil
	}
	if err := o.Check(j.Snapshot); err != nil {
		return true, err
	}
	j.addRejected(s.Apply(j.Snapshot, o))
	allocated := map[string]bool{}
	for _, svc := range o.Objects.Services() {
		merged := j.Snapshot.Service(svc.Name) // nil if the API server rejects a new Service
		allocated[svc.Object] = merged == nil || merged.ClusterIP != ""
	}
	j.Diags = slices.DeleteFunc(j.Diags, func(d diag.Diagnostic) bool { return d.Code == diag.NoClusterIP && allocated[d.Object] })
	return true, nil
}

// addRejected adds findings about objects that the API server rejects. They replace warnings about the
// same fields.
func (j *Input) addRejected(found diag.List) {
	type field struct {
		diag.Code
		object string
	}
	paths := map[field][]string{}
	for _, d := range found {
		paths[field{d.Code, d.Object}] = append(paths[field{d.Code, d.Object}], d.Path)
		paths[field{diag.NoClusterIP, d.Object}] = []string{"spec.clusterIP"} // does not matter any more
	}
	j.Diags = slices.DeleteFunc(j.Diags, func(d diag.Diagnostic) bool {
		return slices.ContainsFunc(paths[field{d.Code, d.Object}], func(path string) bool { return strings.HasSuffix(d.Path, path) })
	})
	j.Diags.Add(found...)
}

// Assume completes the snapshot as a cluster would.
func (j *Input) Assume(s *assume.StandIns) {
	host := j.Facts.NodeName
	j.forgetHost()
	pending, rejected := s.Complete(j.Snapshot, j.Reader.Written(), j.Facts.NodeName, j.Pods())
	j.addRejected(rejected)
	j.StandIns, j.pending = s, pending
	services, _, nodes := j.Snapshot.Count()
	written := s.Len()+len(rejected)+len(j.Snapshot.Workloads()) > 0 || services+nodes == 0
	if j.assumesNode = written && j.Facts.Interfaces == nil && j.Facts.Named == nil && j.Config.DetectLocalMode != config.DetectNodeCIDR; j.assumesNode {
		j.standInNode = s.Nodes(j.Snapshot, j.Facts.NodeName)
	} else if !written {
		j.Facts.NodeName = host
	}
	if !j.Reader.Strict && len(j.pending) > 0 {
		j.Diags = slices.DeleteFunc(j.Diags, func(d diag.Diagnostic) bool { return d.Code == diag.NoClusterIP })
		j.Diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NoClusterIP,
			Msg: fmt.Sprintf("Services without clusterIP: %d; they are handled as if the API server had allocated it", len(j.pending))})
	}
}

// forgetHost replaces the name of this machine, which is no node of the cluster if there are only
// manifests without its endpoints, so that the output is the same on every machine.
func (j *Input) forgetHost() {
	here := func(e snapshot.Endpoint) bool { return e.NodeName == j.Facts.NodeName }
	if j.OfHost && len(j.Snapshot.Nodes()) == 0 &&
		!slices.ContainsFunc(j.Snapshot.Document().Slices, func(s *snapshot.EndpointSlice) bool { return slices.ContainsFunc(s.Endpoints, here) }) {
		j.Facts.NodeName = assume.Node
	}
}

// AssumeNode makes both sides of a comparison assume the node if one of them does.
func AssumeNode(a, b *Input) {
	if a.assumesNode || b.assumesNode {
		for _, j := range [...]*Input{a, b} {
			j.forgetHost()
			j.standInNode = j.StandIns.Nodes(j.Snapshot, j.Facts.NodeName) || j.standInNode
		}
	}
}

// Has reports whether a Service or workload is in the snapshot, by its object name.
func (j *Input) Has(object string) bool {
	kind, name := snapshot.ParseObject(object)
	return j.Snapshot.Workload(object) != nil || kind == "Service" && j.Snapshot.Service(name) != nil
}

// AssumedNodes reports whether the Nodes of the snapshot are stand-ins.
func (j *Input) AssumedNodes() bool { return j.standInNode }

// Pending reports whether the API server has not seen a Service.
func (j *Input) Pending(name ir.Name) bool { return j.pending.Has(name) }

// wholeSnapshot is the fix for a snapshot without any object of a kind.
const wholeSnapshot = "a snapshot is the output of kubectl get services,endpointslices,nodes -A -o yaml"

// Others returns the facts about another node, which only its object provides.
func (j *Input) Others(node string) compiler.Facts {
	facts := j.Facts
	if node != facts.NodeName {
		facts.NodeName, facts.Interfaces, facts.Named = node, nil, nil
		facts.TCPBeLiberal, facts.HNSEndpoints = false, nil
	}
	return facts
}

// CheckAddrs adds findings about node ports that text output lacks, since mode ipvs has a virtual
// server for each on every address of the node.
func (j *Input) CheckAddrs(facts compiler.Facts, programs ir.Programs) {
	if facts.AllAddrsKnown() {
		return
	}
	for _, p := range programs.All() {
		if p.Node.IPVS != nil && p.Node.NodePorts.Assigned() && slices.ContainsFunc(p.Services, hasNodePort) {
			j.Diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NodeAddresses, Object: "Node " + facts.NodeName, Path: "status.addresses",
				Msg:  "has the only addresses that are known offline: in mode ipvs node ports answer at no others",
				Hint: "name the others with --node-address IP@INTERFACE, or use this machine's with --live"})
			return
		}
	}
}

func hasNodePort(s ir.Service) bool {
	return slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Kind == ir.NodePort })
}

// CompileNodes compiles for consecutive nodes. Work that does not depend on the node is done once.
func (j *Input) CompileNodes(nodes []compiler.Facts) iter.Seq2[int, ir.Programs] {
	return func(yield func(i int, programs ir.Programs) bool) {
		compiler.CompileNodes(j.Config, j.Snapshot, nodes, func(i int, programs ir.Programs, diags diag.List) bool {
			j.addCompiled(diags, nodes[i].NodeName)
			return yield(i, programs)
		})
	}
}

// Pods returns the pod ranges of the cluster, as far as known.
func (j *Input) Pods() (pods []netip.Prefix) {
	pods = j.Config.ClusterCIDRs()
	for _, n := range j.Snapshot.Nodes() {
		pods = append(pods, n.PodCIDRs...)
	}
	return pods
}

// PodsOn returns the pod ranges of a Node, according to its object.
func (j *Input) PodsOn(node string) []netip.Prefix {
	if n := j.Snapshot.Node(node); n != nil {
		return slices.Clone(n.PodCIDRs)
	}
	return nil
}

// ParseNodeAddresses parses each IP[/LENGTH]@INTERFACE of --node-address.
func ParseNodeAddresses(list []string) (named []compiler.Interface, err error) {
	for _, text := range list {
		addr, name, _ := strings.Cut(text, "@")
		p, perr := netip.ParsePrefix(addr)
		if a, err := netip.ParseAddr(strings.Trim(addr, "[]")); err == nil {
			p, perr = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if perr != nil || name == "" {
			err = errors.Join(err, fmt.Errorf("--node-address: must be IP@INTERFACE or IP/LENGTH@INTERFACE, got %q", text))
			continue
		}
		named = append(named, compiler.Interface{Name: name, Addrs: []netip.Prefix{netip.PrefixFrom(p.Addr().Unmap(), p.Bits())}})
	}
	return named, err
}

// ParseHNSEndpoints parses each IP of --hns-endpoint.
func ParseHNSEndpoints(list []string) (map[netip.Addr]struct{}, error) {
	var errs []error
	addrs := make(map[netip.Addr]struct{}, len(list))
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--hns-endpoint: must be an IP address, got %q", text))
			continue
		}
		addrs[a.Unmap()] = struct{}{}
	}
	return addrs, errors.Join(errs...)
}

// NodeAddressFlags returns the flags of compile that provide a daemon's facts about its node; "" without
// any.
func NodeAddressFlags(f *compiler.Facts) string {
	if f.NodeName == "" {
		return ""
	}
	words := []string{"--hostname-override " + ShellWord(f.NodeName)}
	for _, i := range f.Interfaces {
		for _, a := range i.Addrs {
			words = append(words, "--node-address "+ShellWord(a.String()+"@"+i.Name))
		}
	}
	return strings.Join(words, " ")
}

// CheckNamespace returns an error if neither the snapshots nor their findings contain a namespace.
func CheckNamespace(namespace string, found diag.List, snaps []*snapshot.Snapshot) error {
	var names []string
	for _, s := range snaps {
		for _, svc := range s.Services() {
			names = append(names, svc.Name.Namespace)
		}
	}
	for _, d := range found {
		_, name := snapshot.ParseObject(d.Object)
		names = append(names, name.Namespace)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if slices.Contains(names, namespace) {
		return nil
	}
	hint := ""
	if near := diag.Nearest(namespace, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return fmt.Errorf("--namespace: no Service of the snapshot is in namespace %q%s", namespace, hint)
}

// bareName matches a Service name without namespace, with optional port and protocol.
var bareName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[-a-zA-Z0-9]+)?(/[a-zA-Z]+)?$`)

// InNamespace adds a namespace to a Service name: NAME, NAME:PORT or NAME:PORT/PROTO. Addresses,
// ports and other texts are unchanged.
func InNamespace(namespace, text string) string {
	name, _, _ := strings.Cut(text, ":")
	_, notAddr := netip.ParseAddr(name)
	if namespace == "" || !bareName.MatchString(text) || notAddr == nil || strings.Trim(name, "0123456789") == "" {
		return text
	}
	host, protocol, ok := strings.Cut(text, "/")
	if _, known := ir.ParseProtocol(protocol); ok && !known && !strings.Contains(host, ":") {
		return text // NAMESPACE/NAME
	}
	return namespace + "/" + text
}
