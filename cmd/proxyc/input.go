package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

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
	Strict       bool   `help:"Report unknown and duplicate keys of the configuration as errors."`
	checked      []byte // content of the file, from the program that this one follows
}

// input is the input of every command that compiles.
type input struct {
	configFlags
	Snapshot       []string           `short:"s" placeholder:"FILE" sep:"none" help:"Snapshot of the cluster: a file, a directory, or - for standard input. It contains Services, EndpointSlices, Nodes and ServiceCIDRs, as kubectl get -o yaml or -o json prints them, compressed with gzip or not. Of a directory, all .yaml, .yml and .json files are read, with or without .gz, except hidden ones. May be repeated."`
	Context        string             `placeholder:"NAME" help:"Read the cluster from its API server instead, with this context of the kubeconfig. --kubeconfig without --snapshot does so with the current context."`
	Overlay        []string           `placeholder:"FILE" sep:"none" help:"Manifests to apply to the snapshot, as kubectl apply would: a file, a directory, or - for standard input. May be repeated."`
	Prune          []assume.Selection `placeholder:"SELECTION" sep:"none" help:"Remove the selected Services and workloads that --overlay lacks, as kubectl apply --prune would. SELECTION is namespace=NAME, LABEL=VALUE, or both with a comma. May be repeated."`
	Limit          byteSize           `name:"snapshot-limit" default:"256Mi" placeholder:"BYTES" help:"Limit of the size of all snapshot files; 0: no limit."`
	Each           bool               `name:"all-findings" help:"Print each finding, instead of one line for many alike."`
	anyNode        bool               // the node name is irrelevant
	noSnapshot     bool               // the snapshot is optional
	asWritten      bool               // report fields that rules do not use, for lint
	compared       bool               // files of directories may be unreadable: the command compares them as text
	hidden         map[string]string  // see review.Input
	onlyReal       bool               // the snapshot is not completed: the output is for a kernel
	node           string             // of --node
	namespace      string             // of --namespace, for objects without one
	from           string             // of --from, whose node is used by default
	modeFlag       string             // name of the mode flag; "" for --mode
	NodeAddress    []string           `name:"node-address" placeholder:"IP@INTERFACE" help:"Add an address to those of the Node object. IP may have a prefix length. May be repeated."`
	Live           bool               `help:"Use the addresses of this machine's network interfaces."`
	HNSNetworkType string             `name:"hns-network-type" enum:"L2Bridge,Overlay" default:"L2Bridge" help:"Type of the HNS network (mode kernelspace): L2Bridge or Overlay."`
	HNSEndpoint    []string           `name:"hns-endpoint" placeholder:"IP" help:"Address of a local HNS endpoint (mode kernelspace). The endpoint is local, regardless of nodeName. May be repeated."`
}

var errNoSnapshot = errors.New("-s: missing snapshot: save the output of kubectl get services,endpointslices,nodes -A -o yaml, or read the cluster with --context")

// errDone ends a command early with success.
var errDone = errors.New("done")

// Resolve returns the effective configuration, with the defaults of this system.
func (c *configFlags) Resolve(read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	if checked := c.checked; checked != nil {
		read = func(string) ([]byte, error) { return checked, nil }
	}
	return resolveHere(&c.Flags, read, strict)
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
	j.Reader.Strict = in.asWritten
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
	if name := trace.NodeOf(in.from, j.Snapshot); name != "" && j.OfHost && !in.Live {
		fmt.Fprintf(e.stderr, "node: %s, by --from (--node selects another)\n", name)
		j.Facts.NodeName, j.OfHost = name, false
	}
	if !in.anyNode && (j.OfHost || j.Chosen) { // files are usually read on other machines than the nodes
		if err := j.NoSuchNode("--node", j.Chosen); err != nil {
			return nil, e.finish(j, err)
		}
	}
	return j, nil
}

// read reads configuration and snapshot into j, and reports whether its findings allow to continue.
func (in *input) read(e *env, j *review.Input) (usable bool, err error) {
	if err := oneStdin(in.names()...); err != nil {
		return false, err
	}
	j.Reader.Namespace = in.namespace
	resolved, findings := in.Resolve(e.inputs().ReadFile, in.Strict)
	for i := range findings {
		if f := &findings[i]; in.modeFlag != "" && f.Object == "--mode" {
			f.Object, f.Path = in.modeFlag, ""
		}
	}
	if in.online() { // the configuration has no use for it, but the command has
		findings = slices.DeleteFunc(findings, func(d diag.Diagnostic) bool { return d.Object == "--kubeconfig" && d.Severity != diag.Error })
	}
	j.Diags.Add(findings...)
	usable = !findings.HasErrors()
	switch {
	case deref(in.WriteConfigTo) != "":
		_, err := in.resolve(e)
		return false, err
	case in.Cleanup || in.InitOnly:
		return false, errors.New("--cleanup, --init-only: change a node, and apply only to watch")
	case len(in.Prune) > 0 && len(in.Overlay) == 0:
		return false, errors.New("--prune: requires --overlay")
	case len(in.Snapshot) > 0 && in.Context != "":
		return false, errors.New("--snapshot, --context: use only one")
	case !in.online() && len(in.Snapshot) == 0 && (len(in.Overlay) > 0 || usable && !in.noSnapshot):
		return false, errNoSnapshot
	}
	readable := false
	if in.online() {
		objects, err := e.fetch(deref(in.Kubeconfig), in.Context)
		if err != nil {
			return false, err
		}
		j.ReadCluster(objects, int64(in.Limit))
		readable = true
	} else {
		readable = e.readSnapshot(j, in.Snapshot, int64(in.Limit))
	}
	if !readable || !usable {
		return false, nil
	}
	j.Resolved, j.NoSnapshot = resolved, len(in.Snapshot) == 0 && !in.online()
	j.Facts.HNSNetworkType = in.HNSNetworkType
	node := in.node
	if other := deref(in.HostnameOverride); other != "" && node != "" && other != node {
		if !in.anyNode {
			return false, fmt.Errorf("--node, --hostname-override: must name the same node, got %s and %s", node, other)
		}
		node = "" // --node-address is for the other
	}
	if err := e.setNode(j, node); err != nil {
		return false, err
	}
	if len(in.Overlay) > 0 {
		e.doing("applying the overlay")
		usable, err = j.ReadOverlay(e.inputs(), in.Overlay, &assume.Overlay{Prune: in.Prune, OnlyReal: in.onlyReal}, e.standIns)
		if err != nil || !usable {
			return false, err
		}
	}
	return true, in.readAddresses(e, j)
}

// sides loads the two sides of a comparison, neither with the files of which only one side knows the objects.
func (e *env) sides(start func() *env, before, after input) (was, is *review.Input, err error) {
	for before.compared, after.compared = true, true; ; {
		*e.standIns = assume.StandIns{Balance: true}
		if was, err = before.load(start()); err != nil && !errors.Is(err, errReported) {
			return nil, nil, err
		}
		is, wrong := after.load(start()) // whatever the first side has, to report what is wrong with both
		if err = cmp.Or(err, wrong); err != nil {
			return was, is, err
		}
		hidden := review.Hide(was, is)
		if len(hidden) == 0 {
			review.AssumeNode(was, is)
			review.CompareUnread(was, is)
			return was, is, nil
		}
		before.hidden, after.hidden = hidden, hidden
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

// fetched are the objects of an API server.
type fetched struct{ text []byte }

// fetch returns the objects of an API server. A command reads them only once, so that its two sides
// have the same.
func (e *env) fetch(kubeconfig, name string) ([]byte, error) {
	if e.fetched != nil && e.fetched.text != nil {
		return e.fetched.text, nil
	}
	e.doing("reading the cluster")
	from := clusterFlags{kubeconfig, name}
	cluster, err := from.cluster(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	objects, err := cluster.List(context.Background())
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = objects.Write(&out)
	if e.fetched != nil {
		e.fetched.text = out.Bytes()
	}
	return out.Bytes(), err
}

// names returns the files of the input.
func (in *input) names() []string {
	return slices.Concat([]string{deref(in.Config)}, in.Snapshot, in.Overlay)
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
func (e *env) inputs() review.Files { return review.Files{System: e.files, Stdin: e.stdin} }

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
	Socket string `name:"status-socket" placeholder:"PATH" help:"Read rules and cluster from the daemon at this socket. --live does so if no --snapshot is given."`
}

var errSourceTwice = errors.New("--ir, --status-socket, --snapshot: cannot be combined: the daemon has its own IR and snapshot")

// check rejects flags that have no effect with --ir and --status-socket, since those are already
// configured. Flags that only a daemon uses are accepted, as everywhere.
func (c *source) check(k *kong.Context) error {
	flag := "--ir"
	switch {
	case c.Socket != "":
		flag = "--status-socket"
	case c.IR == "":
		return nil
	}
	var idle []string
	if len(c.Overlay) > 0 {
		idle = append(idle, "--overlay")
	}
	if c.Node != "" {
		idle = append(idle, "--node")
	}
	for _, at := range k.Path {
		if f := at.Flag; f != nil && f.Group != nil && f.Group.Key == help.KubeProxyFlags && !f.Tag.Has("daemon") && !slices.Contains(idle, "--"+f.Name) {
			idle = append(idle, "--"+f.Name)
		}
	}
	if len(idle) == 0 {
		return nil
	}
	return fmt.Errorf("%s: has its own mode, node and configuration: cannot be combined with %s", flag, strings.Join(idle, ", "))
}

// programs returns the applied Programs, and their input if known.
func (c *source) programs(e *env) (*review.Input, ir.Programs, error) {
	switch {
	case c.Socket != "" && (c.IR != "" || len(c.Snapshot) > 0 || c.Context != ""):
		return nil, ir.Programs{}, errSourceTwice
	case c.Socket != "":
		return review.Live(c.Socket)
	case c.Live && c.IR == "" && len(c.Snapshot) == 0 && !c.online():
		return nil, ir.Programs{}, errors.New("--live: requires -s, or --status-socket PATH of the daemon")
	case c.IR != "":
		return c.written(e)
	}
	c.node = c.Node
	j, err := c.load(e)
	if err != nil {
		return nil, ir.Programs{}, err
	}
	if c.Live {
		e.warnUnused(j.Config)
	}
	return j, j.Compile(), nil
}

// written reads the Programs of --ir, which determine the node.
func (c *source) written(e *env) (*review.Input, ir.Programs, error) {
	names := append(c.names(), c.IR)
	if err := oneStdin(names...); err != nil {
		return nil, ir.Programs{}, err
	}
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

var errStdinTwice = errors.New("standard input can be used only once")

// oneStdin rejects standard input for more than one file, since the second would be empty.
func oneStdin(names ...string) error {
	first := slices.Index(names, review.StandardInput)
	if first >= 0 && slices.Contains(names[first+1:], review.StandardInput) {
		return errStdinTwice
	}
	return nil
}

// rereading returns a function that returns an env in which standard input, if it is among names,
// can be read again.
func (e *env) rereading(names []string, limit int64) (func() *env, error) {
	if !slices.Contains(names, review.StandardInput) {
		return func() *env { return e }, nil
	}
	left := cmp.Or(limit, files.Unlimited)
	data, err := files.ReadFrom(e.stdin, 0, &left)
	if errors.Is(err, files.ErrTooMuch) {
		err = files.TooMuch("standard input", limit)
	}
	return func() *env {
		again := *e
		again.stdin = bytes.NewReader(data)
		return &again
	}, err
}
