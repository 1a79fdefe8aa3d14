package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// kubeProxyFlags is the group of kube-proxy's own flags, as the tag of configFlags names it.
const kubeProxyFlags = "kube-proxy's flags:"

// configFlags choose a configuration: kube-proxy's own flags.
type configFlags struct {
	config.Flags `group:"kube-proxy's flags:"`
	Strict       bool `help:"Take unknown and duplicate keys of the configuration for errors."`
}

// input is what every verb that compiles takes.
type input struct {
	configFlags
	Snapshot       []string `short:"s" placeholder:"FILE" sep:"none" help:"Services, EndpointSlices, Nodes and ServiceCIDRs, as kubectl get -o yaml or -o json prints them: a file, which gzip may have compressed, a directory (the .yaml, .yml and .json files in it and below, with .gz or without, but no hidden ones), or - for standard input. May be repeated."`
	Limit          byteSize `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"How much the files of --snapshot may have together, as 256Mi; 0: any amount."`
	Each           bool     `name:"all-findings" help:"Print each finding, also where one line with a count would stand for many of the same."`
	anyNode        bool     // the name of the node does not count
	noSnapshot     bool     // there may be none
	wholeFiles     bool     // a file that was cut off, or has nothing in it, is an error
	asWritten      bool     // what objects say beside what rules need is wanted, for lint
	modeFlag       string   // the flag that gives the mode; empty: --mode
	NodeAddress    []string `name:"node-address" placeholder:"IP@INTERFACE" help:"An address that the node has beside those of its Node object, which is all that is known of it offline; IP may have a prefix length. May be repeated."`
	Live           bool     `help:"Take the addresses of this machine's network interfaces for the node's."`
	HNSNetworkType string   `name:"hns-network-type" enum:"L2Bridge,Overlay" default:"L2Bridge" help:"Type of the HNS network in mode kernelspace: L2Bridge or Overlay."`
	HNSEndpoint    []string `name:"hns-endpoint" placeholder:"IP" help:"In mode kernelspace, the address of an endpoint that HNS has of this node: it is local, whatever nodeName says. May be repeated."`
}

// job is one compilation with all that it read and had to say.
type job struct {
	*config.Resolved
	snap   *snapshot.Snapshot
	files  snapshot.Reader
	facts  compiler.Facts
	diags  diag.List
	ofHost bool // the node's name is that of the machine
	each   bool // print each finding
	// onlyHere reports that nothing is known of other nodes' rules.
	onlyHere bool
	// noSnapshot reports that none was given.
	noSnapshot bool
	errors     objectErrors // of a daemon
	// allowEmpty takes files with nothing in them for what is meant; emptyHint is what to do in a
	// verb where that can be said.
	allowEmpty bool
	emptyHint  string
}

var errNoSnapshot = errors.New("-s: a snapshot is needed: what kubectl get services,endpointslices,nodes -A -o yaml prints")

// errDone ends a verb early, with success.
var errDone = errors.New("done")

// Resolve makes the configuration in force, with the defaults of this system.
func (c *configFlags) Resolve(read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	return resolveHere(&c.Flags, read, strict)
}

// resolve makes the configuration in force, and writes it if that is all that
// is wanted. Findings go to diags; when they hold an error there is nothing to
// go on with.
func (c *configFlags) resolve(e *env, diags *diag.List) (*config.Resolved, error) {
	resolved, findings := c.Resolve(e.readFile, c.Strict)
	diags.Add(findings...)
	if findings.HasErrors() {
		e.report(*diags)
		return nil, errReported
	}
	if deref(c.WriteConfigTo) != "" {
		e.report(*diags)
		return nil, writeConfigTo(e, *c.WriteConfigTo, resolved.Config)
	}
	return resolved, nil
}

// setConfig replaces the configuration file.
func (c *configFlags) setConfig(file string) { c.Config = &file }

// load reads configuration and snapshot, and prints why there is nothing to go on with. Of a file that
// cannot be read, or not whole, nobody knows which objects it has: whatever is said or written of the rest may be
// wrong, so that no verb goes on. An object that is wrong is another matter: it is named, and left out.
func (in *input) load(e *env) (*job, error) {
	j := &job{snap: snapshot.New(), each: in.Each}
	if in.wholeFiles {
		j.files.CutOff = diag.Error
	}
	j.files.Strict = in.asWritten
	usable, err := in.read(e, j)
	if err != nil {
		return nil, err
	}
	if !usable || wholeFile(j.diags) {
		return nil, j.finish(e, errReported)
	}
	if !in.anyNode && j.ofHost { // files are read far from the cluster more often than on its nodes
		if err := j.noSuchNode(nil); err != nil {
			return nil, j.finish(e, err)
		}
	}
	e.doing("compiling")
	return j, nil
}

// read reads configuration and snapshot into a job, and reports whether its findings
// leave something to go on with.
func (in *input) read(e *env, j *job) (usable bool, err error) {
	if err := oneStdin(in.names()...); err != nil {
		return false, err
	}
	resolved, findings := in.Resolve(e.readFile, in.Strict)
	for i := range findings {
		if f := &findings[i]; in.modeFlag != "" && f.Object == "--mode" {
			f.Object, f.Path = in.modeFlag, ""
		}
	}
	j.diags.Add(findings...)
	usable = !findings.HasErrors()
	switch {
	case deref(in.WriteConfigTo) != "":
		_, err := in.resolve(e, &j.diags)
		return false, err
	case in.Cleanup || in.InitOnly:
		return false, errors.New("--cleanup, --init-only: change a node, which compiling does not")
	case len(in.Snapshot) == 0 && usable && !in.noSnapshot:
		return false, errNoSnapshot
	}
	if !e.readSnapshot(j, in.Snapshot, int64(in.Limit)) || !usable {
		return false, nil
	}
	j.Resolved, j.noSnapshot = resolved, len(in.Snapshot) == 0
	j.facts.HNSNetworkType = in.HNSNetworkType
	if err := e.setNode(j); err != nil {
		return false, err
	}
	return true, in.readAddresses(e, j)
}

// noSuchNode refuses a name that is none of the Nodes of a snapshot that has some; nil where it is one. flag
// is what --hostname-override says, which the configuration may say as well.
func (j *job) noSuchNode(flag *string) error {
	all := j.snap.Nodes()
	if len(all) == 0 || j.snap.Node(j.facts.NodeName) != nil {
		return nil
	}
	const shown = 10
	names := make([]string, len(all))
	for i, n := range all {
		names[i] = n.Name
	}
	names = diag.NearestFirst(j.facts.NodeName, names)
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	field, got := "--hostname-override", fmt.Sprintf("got %q", j.facts.NodeName)
	switch {
	case j.ofHost:
		got = fmt.Sprintf("it is not given, and this machine's name is %q", j.facts.NodeName)
	case deref(flag) == "":
		field = "hostnameOverride of the configuration"
	}
	return fmt.Errorf("%s: must name a Node of the snapshot, which has %s; %s", field, text, got)
}

// names returns the files of the input.
func (in *input) names() []string {
	return append([]string{deref(in.Config)}, in.Snapshot...)
}

// writeConfigTo writes the configuration in force and ends the verb, as
// kube-proxy does.
func writeConfigTo(e *env, file string, cfg *config.Config) error {
	data, err := config.WriteConfig(cfg)
	if err != nil {
		return err
	}
	if err := e.writeFile(file, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
		return err
	}
	return errDone
}

// setNode names the node, by the host's name if nothing else does (SNAP-70).
func (e *env) setNode(j *job) error {
	name, err := node.Name(j.NodeName, e.hostname)
	j.facts.NodeName, j.ofHost = name, j.NodeName == ""
	return err
}

// compile makes the Programs of the job's node.
func (j *job) compile() ir.Programs {
	programs, diags := compiler.Compile(j.Config, j.snap, j.facts)
	j.diags.Add(diags...)
	j.checkNode(j.facts.NodeName)
	j.checkAddrs(j.facts, programs)
	return programs
}

// warnRefused adds which endpoints the rules refuse, for verbs that write rules.
func (j *job) warnRefused() {
	j.diags.Add(lint.Refused(lint.Input{Config: j.Resolved, Snapshot: j.snap, Compiled: j.diags})...)
}

// checkNode holds the configuration against a Node of the snapshot, as far as
// its addresses are known.
func (j *job) checkNode(name string) {
	if families, ok := compiler.NodeFamilies(j.Config, j.snap.Node(name), j.facts.Interfaces); ok {
		j.diags.Add(j.CheckNode(families)...)
	}
}

// findings returns what there is to print: findings about objects with the place
// of the field, and one with a count for many of the same.
func (j *job) findings() diag.List {
	list := j.diags.Sorted()
	if !j.each {
		list = list.Fewer(diag.MostAlike)
	}
	j.locate(list)
	return list
}

// locate completes findings with their places.
func (j *job) locate(list diag.List) {
	j.files.Locate(list)
	if j.Resolved != nil {
		j.Resolved.Locate(list)
	}
}

// finish prints the diagnostics and returns the error with which the verb ends:
// err, or bad input if a diagnostic is an error.
func (j *job) finish(e *env, err error) error {
	e.report(j.findings())
	if err == nil && j.diags.HasErrors() {
		return errReported
	}
	return err
}

// readSnapshot decodes all files of a snapshot, and reports whether all could
// be read.
func (e *env) readSnapshot(j *job, names []string, limit int64) bool {
	e.doing("reading the cluster")
	readable := true
	fail := func(name string, err error) {
		readable = false
		j.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: name, Msg: err.Error()})
	}
	if !j.each && !j.files.Strict { // lint heeds annotations, and what is new, before one stands for many
		j.files.Most = diag.MostAlike
	}
	j.files.CutOff = cmp.Or(j.files.CutOff, diag.Warning)
	var all []files.File
	for _, name := range names {
		expanded, err := e.expand(name, &j.diags)
		if err != nil {
			fail(name, err)
		}
		all = append(all, expanded...)
	}
	left := cmp.Or(limit, files.Unlimited)
	for _, f := range all {
		data, err := e.read(f.Name, &left)
		if errors.Is(err, files.ErrTooMuch) {
			fail(f.Name, files.TooMuch("with it the snapshot", limit))
			break
		} else if err != nil {
			fail(f.Name, err)
			continue
		}
		if len(bytes.TrimSpace(data)) == 0 && !j.allowEmpty {
			j.diags.Add(diag.Diagnostic{Severity: j.files.CutOff, Code: diag.FileCutOff, File: f.Name, Msg: "is empty, as a failed kubectl leaves a file behind", Hint: "write it again" + j.emptyHint})
		}
		list := j.files.Decode(j.snap, f.Name, data, f.FromDirectory)
		if slices.ContainsFunc(list, func(d diag.Diagnostic) bool { return d.Code == diag.FileUnreadable }) {
			readable = false // it is no snapshot
		}
		j.diags.Add(list...)
	}
	j.diags.Add(j.snap.Finish()...)
	if readable && len(names) > 0 && len(j.snap.Services()) == 0 {
		j.diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoServices, Msg: "the snapshot has no Service: there is nothing to proxy",
			Hint: wholeSnapshot})
	}
	if service := j.files.Unsliced(); readable && service != "" {
		j.diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.NoSlices, Msg: "the snapshot " + snapshot.NoSlices(service) + ": no Service has a backend", Hint: wholeSnapshot})
	}
	return readable
}

// wholeSnapshot is what to do where a snapshot lacks a kind altogether.
const wholeSnapshot = "it is what kubectl get services,endpointslices,nodes -A -o yaml prints"
