package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// configFlags select a configuration: kube-proxy's own flags.
type configFlags struct {
	config.Flags `group:"kube-proxy's flags:"`
	Strict       bool           `help:"Report unknown and duplicate keys of the configuration as errors."`
	checked      []byte         // content of the file, from the program that this one follows
	release      config.Release // of kube-proxy, if one is requested
}

// input is the input of every command that compiles.
type input struct {
	configFlags
	Snapshot []string           `short:"s" placeholder:"FILE" sep:"none" help:"Snapshot of the cluster: a file, a directory, or - for standard input. It contains Services, EndpointSlices, Nodes and ServiceCIDRs, as kubectl get -o yaml or -o json prints them, compressed with gzip or not. Of a directory, all .yaml, .yml and .json files are read, with or without .gz, except hidden ones. May be repeated."`
	Context  string             `placeholder:"NAME" help:"Read the cluster from its API server instead, with this context of the kubeconfig. --kubeconfig without --snapshot does so with the current context."`
	Overlay  []string           `placeholder:"FILE" sep:"none" help:"Manifests to apply to the snapshot, as kubectl apply would: a file, a directory, or - for standard input. May be repeated."`
	Prune    []assume.Selection `placeholder:"SELECTION" sep:"none" help:"Remove the selected Services and workloads that --overlay lacks, as kubectl apply --prune would. SELECTION is namespace=NAME, LABEL=VALUE, or both with a comma. May be repeated."`
	Exclude  []string           `placeholder:"PATTERN" help:"Files and directories to skip in directories, by a pattern as in .gitignore, without !. Each line of a file .proxycignore in the directory is such a pattern. May be repeated."`
	Limit    help.Bytes         `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"Limit of the size of all snapshot files; 0: no limit."`
	Each     bool               `name:"all-findings" help:"Print each finding, instead of one line for many alike."`
	factFlags
	purpose
}

// factFlags are facts about the node that no object contains.
type factFlags struct {
	NodeAddress    []string `name:"node-address" placeholder:"IP@INTERFACE" help:"Add an address to those of the Node object. IP may have a prefix length. May be repeated."`
	Live           bool     `help:"Use the addresses of this machine's network interfaces."`
	HNSNetworkType string   `name:"hns-network-type" enum:"L2Bridge,Overlay" default:"L2Bridge" help:"Type of the HNS network (mode kernelspace): L2Bridge or Overlay."`
	HNSEndpoint    []string `name:"hns-endpoint" placeholder:"IP" help:"Address of a local HNS endpoint (mode kernelspace). The endpoint is local, regardless of nodeName. May be repeated."`
}

// purpose is what a command needs of its input.
type purpose struct {
	anyNode    bool              // the node name is irrelevant
	noSnapshot bool              // the snapshot is optional
	asWritten  bool              // report fields that rules do not use, for lint
	compared   bool              // files of directories may be unreadable: the command compares them as text
	hidden     map[string]string // see review.Input
	keep       map[string]any    // see review.Reordered
	onlyReal   bool              // the snapshot is not completed: the output is for a kernel
	node       string            // of --node
	namespace  string            // of --namespace, for objects without one
	from       string            // of --from, whose node is used by default
	eachNode   bool              // all Nodes are used if none is known
	modeFlag   string            // name of the mode flag; "" for --mode
}

var errNoSnapshot = errors.New("-s: missing snapshot: save the output of kubectl get services,endpointslices,nodes -A -o yaml, or read the cluster with --context")

// errDone ends a command early with success.
var errDone = errors.New("done")

// Resolve returns the effective configuration, with the defaults of this system.
func (c *configFlags) Resolve(read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	if checked := c.checked; checked != nil {
		read = func(string) ([]byte, error) { return checked, nil }
	}
	return resolveHere(&c.Flags, c.release, read, strict)
}

// resolve returns the effective configuration, and writes it if --write-config-to is set. It
// prints the findings; if they contain an error, the configuration is unusable.
func (c *configFlags) resolve(e *env) (*config.Resolved, error) {
	resolved, findings := c.Resolve(e.inputs().ReadFile, c.Strict)
	e.report(findings)
	if findings.HasErrors() {
		return nil, errReported
	}
	if deref(c.WriteConfigTo) != "" {
		return nil, writeConfigTo(e, *c.WriteConfigTo, resolved.Config)
	}
	return resolved, nil
}

// setConfig sets the configuration file.
func (c *configFlags) setConfig(file string) { c.Config = &file }

// load reads configuration and snapshot, and prints why the command cannot continue. The objects of
// a file that could not be read completely are unknown. Any result about the rest may be wrong, so
// every command ends. An invalid object, however, is reported and ignored.
func (in *input) load(e *env) (*review.Input, error) {
	j := &review.Input{Snapshot: snapshot.New(), Each: in.Each, Partial: in.compared, Hidden: in.hidden}
	j.Reader.Strict, j.Reader.Keep = in.asWritten, in.keep
	usable, err := in.read(e, j)
	if err != nil {
		return nil, err
	}
	if usable && !in.compared {
		j.ReportUnread(diag.Warning, review.RenderFirst, nil)
	}
	if !usable || wholeFile(j.Diags) {
		return nil, e.finish(j, errReported)
	}
	e.doing("compiling")
	if !in.onlyReal && !in.Live { // on a node, files are read as by apply -s
		j.Assume(e.standIns)
	}
	if in.anyNode {
		return j, nil
	}
	if !in.Live && j.OfHost {
		e.findNode(in.from, j)
	}
	if j.OfHost && !in.eachNode || j.Chosen { // files are usually read on other machines than the nodes
		if err := j.NoSuchNode("--node", j.Chosen); err != nil {
			return nil, e.finish(j, err)
		}
	}
	return j, nil
}

// findNode replaces the name of this machine, which none selected, by that of the sender's node, or of the only one.
func (e *env) findNode(from string, j *review.Input) {
	name, why := trace.NodeOf(from, j.Snapshot), "by --from"
	if nodes := j.Snapshot.Nodes(); name == "" && len(nodes) == 1 && nodes[0].Name != j.Facts.NodeName && !j.AssumedNodes() {
		name, why = nodes[0].Name, "the only one of the snapshot"
	}
	if name != "" {
		fmt.Fprintf(e.stderr, "node: %s, %s (--node selects another)\n", name, why)
		j.Facts.NodeName, j.OfHost = name, false
	}
}

// read reads configuration and snapshot into j, and reports whether its findings allow to continue.
func (in *input) read(e *env, j *review.Input) (usable bool, err error) {
	j.Reader.Namespace = in.namespace
	files := e.inputs()
	files.Exclude = in.Exclude
	resolved, findings := in.Resolve(files.ReadFile, in.Strict)
	for i := range findings {
		if f := &findings[i]; in.modeFlag != "" && f.Object == "--mode" {
			f.Object, f.Path = in.modeFlag, ""
		}
	}
	if in.online() { // the configuration has no use for it, but the command has
		findings = slices.DeleteFunc(findings, func(d diag.Diagnostic) bool { return d.Object == "--kubeconfig" && d.Severity != diag.Error })
	}
	j.Diags.Add(findings...)
	usable, j.Roots = !findings.HasErrors(), slices.Concat(in.Snapshot, in.Overlay)
	if deref(in.WriteConfigTo) != "" {
		_, err := in.resolve(e)
		return false, err
	}
	if err := in.check(usable); err != nil {
		return false, err
	}
	readable := true
	if in.online() {
		objects, err := e.fetch(deref(in.Kubeconfig), in.Context)
		if err != nil {
			return false, err
		}
		j.ReadCluster(objects, int64(in.Limit))
	} else {
		e.doing("reading the cluster")
		readable = j.ReadSnapshot(files, in.Snapshot, int64(in.Limit))
	}
	if !readable || !usable {
		return false, nil
	}
	j.Resolved, j.NoSnapshot = resolved, len(in.Snapshot) == 0 && !in.online()
	j.Facts.HNSNetworkType = in.HNSNetworkType
	node, other := in.node, deref(in.HostnameOverride)
	if in.anyNode && other != "" && other != node {
		node = "" // --node-address is for the other
	}
	if err := e.setNode(j, node); err != nil {
		return false, err
	}
	e.standIns.Believe(j.Snapshot, j.Reader.Written())
	if len(in.Overlay) > 0 {
		e.doing("applying the overlay")
		usable, err = j.ReadOverlay(files, in.Overlay, &assume.Overlay{Prune: in.Prune, OnlyReal: in.onlyReal}, e.standIns)
		if err != nil || !usable {
			return false, err
		}
	}
	return true, in.readAddresses(e, j)
}

// check rejects flags that cannot be combined. usable reports whether the configuration is valid.
func (in *input) check(usable bool) error {
	switch other := deref(in.HostnameOverride); {
	case in.Cleanup || in.InitOnly:
		return errors.New("--cleanup, --init-only: change a node, and apply only to watch")
	case len(in.Prune) > 0 && len(in.Overlay) == 0:
		return errors.New("--prune: requires --overlay")
	case len(in.Snapshot) > 0 && in.Context != "":
		return errors.New("--snapshot, --context: use only one")
	case !in.online() && len(in.Snapshot) == 0 && (len(in.Overlay) > 0 || usable && !in.noSnapshot):
		return errNoSnapshot
	case !in.anyNode && cmp.Or(other, in.node) != cmp.Or(in.node, other): // both are set and differ
		return fmt.Errorf("--node, --hostname-override: must name the same node, got %s and %s", in.node, other)
	}
	return nil
}

// sides loads the two sides of a comparison, neither with the files of which only one side knows the objects.
func (e *env) sides(before, after input) (was, is *review.Input, err error) {
	for before.compared, after.compared = true, true; ; {
		*e.standIns = assume.StandIns{Balance: true}
		if was, err = before.load(e); err != nil && !errors.Is(err, errReported) {
			return nil, nil, err
		}
		is, wrong := after.load(e) // whatever the first side has, to report what is wrong with both
		if err = cmp.Or(err, wrong); err != nil {
			return was, is, err
		}
		hidden, keep := review.Hide(was, is), review.Reordered(was, is)
		if maps.Copy(hidden, before.hidden); len(hidden) == len(before.hidden) && len(keep) == 0 {
			review.AssumeNode(was, is)
			review.CompareUnread(was, is)
			return was, is, nil
		}
		maps.Copy(keep, after.keep)
		before.hidden, after.hidden, after.keep = hidden, hidden, keep
	}
}

// withoutOverlay returns the input before the overlay is applied.
func (in input) withoutOverlay() input {
	in.Overlay, in.Prune = nil, nil
	return in
}

// online reports whether the cluster is read from an API server. kube-proxy's --kubeconfig has no
// effect beside a snapshot.
func (in *input) online() bool {
	return len(in.Snapshot) == 0 && (in.Context != "" || deref(in.Kubeconfig) != "")
}

// fetch returns the objects of an API server. A command reads them only once, so that its two sides
// have the same.
func (e *env) fetch(kubeconfig, name string) ([]byte, error) {
	if e.fetched != nil {
		return e.fetched, nil
	}
	e.doing("reading the cluster")
	cluster, err := (&clusterFlags{kubeconfig, name}).cluster(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	objects, err := cluster.List(context.Background())
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = objects.Write(&out)
	e.fetched = out.Bytes()
	return e.fetched, err
}

// names returns the given files of the input.
func (in *input) names() []string { return given(deref(in.Config), in.Snapshot, in.Overlay) }

// given returns the names of files that are given.
func given(config string, others ...[]string) []string {
	all := append([]string{config}, slices.Concat(others...)...)
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// writeConfigTo writes the effective configuration and ends the command, like kube-proxy.
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

// setNode sets the node name: that of --node, or else of the configuration, or else the host name
// (SNAP-70).
func (e *env) setNode(j *review.Input, chosen string) error {
	name, err := node.Name(cmp.Or(chosen, j.NodeName), e.hostname)
	j.Facts.NodeName, j.OfHost, j.Chosen = name, cmp.Or(chosen, j.NodeName) == "", chosen != ""
	return err
}

// finish prints the findings, and returns the command's error: err, or errReported if a finding is
// an error.
func (e *env) finish(j *review.Input, err error) error {
	e.report(j.Findings())
	if err == nil && j.Diags.HasErrors() {
		return errReported
	}
	return err
}

// inputs returns the file reader of commands.
func (e *env) inputs() review.Files { return review.Files{System: e.files, Stdin: e.input} }

// readSnapshot reads a snapshot into j, and shows progress.
func (e *env) readSnapshot(j *review.Input, names []string, limit int64) bool {
	e.doing("reading the cluster")
	return j.ReadSnapshot(e.inputs(), names, limit)
}

// source is the source of a node's rules: a configuration and a snapshot, a written IR, or the
// daemon.
type source struct {
	input
	oneNode
	IR     string `name:"ir" placeholder:"FILE" help:"Read the IR that compile -o ir-json wrote, instead of a configuration. With --snapshot, facts that no rule contains come from the snapshot."`
	Socket string `name:"status-socket" placeholder:"PATH" help:"Read rules and cluster from the daemon at this socket. Without any input, this is the daemon that writes this node's rules."`
}

// check selects this node's daemon if there is no other input. It rejects flags that have no effect with
// --ir and --status-socket, since those are already configured.
func (c *source) check(k *kong.Context) error {
	idle, flag := c.idle(k), "--ir"
	switch {
	case c.Socket != "":
		flag = "--status-socket"
	case c.IR == "" && len(idle) == 0 && len(c.Snapshot) == 0 && c.Context == "":
		c.Socket = host.DaemonSocket()
		if _, wrote := host.Wrote(); wrote && c.Socket == "" {
			return errors.New("no proxyc watch runs on this node, although proxyc wrote its rules: start it, or set -c and -s")
		}
	}
	if c.IR+c.Socket == "" || len(idle) == 0 {
		return nil
	}
	return fmt.Errorf("%s: has its own mode, node and configuration: cannot be combined with %s", flag, strings.Join(idle, ", "))
}

// idle returns the flags that only a configuration and a snapshot use. Flags that only a daemon uses are
// accepted, as everywhere.
func (c *source) idle(k *kong.Context) (flags []string) {
	if len(c.Overlay) > 0 {
		flags = append(flags, "--overlay")
	}
	if c.Node != "" {
		flags = append(flags, "--node")
	}
	for _, at := range k.Path {
		if f := at.Flag; f != nil && f.Group != nil && f.Group.Key == help.KubeProxyFlags && !f.Tag.Has("daemon") && !slices.Contains(flags, "--"+f.Name) {
			flags = append(flags, "--"+f.Name)
		}
	}
	return flags
}

// programs returns the applied Programs, and their input if known; none for eachNode, if no Node is chosen.
func (c *source) programs(e *env) (*review.Input, ir.Programs, error) {
	switch {
	case c.Socket != "" && (c.IR != "" || len(c.Snapshot) > 0 || c.Context != ""):
		return nil, ir.Programs{}, errors.New("--ir, --status-socket, --snapshot: cannot be combined: the daemon has its own IR and snapshot")
	case c.Socket != "":
		return review.Live(c.Socket)
	case c.IR != "":
		return c.written(e)
	}
	c.node = c.Node
	j, err := c.load(e)
	if err != nil || c.eachNode && j.OfHost && j.NoSuchNode("", false) != nil {
		return j, ir.Programs{}, err
	}
	if c.Live {
		review.WarnUnused(e.stderr, j.Config)
	}
	return j, j.Compile(), nil
}

// written reads the Programs of --ir, which determine the node.
func (c *source) written(e *env) (*review.Input, ir.Programs, error) {
	left := cmp.Or(int64(c.Limit), files.Unlimited)
	text, err := e.inputs().Read(c.IR, &left)
	if err != nil {
		return nil, ir.Programs{}, fmt.Errorf("%s: %w", c.IR, err)
	}
	programs, err := review.ParseIR(c.IR, text)
	if err != nil {
		return nil, ir.Programs{}, err
	}
	if programs.IPv4 == nil || programs.IPv6 == nil {
		return nil, ir.Programs{}, fmt.Errorf("%s: must contain the programs of IPv4 and IPv6", c.IR)
	}
	c.noSnapshot, c.anyNode = true, true
	j, err := c.load(e)
	if err != nil {
		return nil, ir.Programs{}, err
	}
	j.Facts.NodeName, j.OnlyHere = programs.IPv4.Node.Name, true
	return j, programs, nil
}
