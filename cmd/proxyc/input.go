package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// configFlags choose a configuration: kube-proxy's own flags.
type configFlags struct {
	config.Flags `group:"kube-proxy's flags:"`
	Strict       bool `help:"Take unknown and duplicate keys of the configuration for errors."`
}

// input is what every verb that compiles takes.
type input struct {
	configFlags
	Snapshot       []string `short:"s" placeholder:"FILE" sep:"none" help:"Services, EndpointSlices, Nodes and ServiceCIDRs, as kubectl get -o yaml or -o json prints them: a file, a directory (its .yaml, .yml and .json files, without hidden ones and subdirectories), or - for standard input. May be repeated."`
	HNSNetworkType string   `name:"hns-network-type" enum:"L2Bridge,Overlay" default:"L2Bridge" help:"Type of the HNS network in mode kernelspace: L2Bridge or Overlay."`
}

// job is one compilation with all that it read and had to say.
type job struct {
	*config.Resolved
	snap  *snapshot.Snapshot
	facts compiler.Facts
	diags diag.List
}

var errNoSnapshot = errors.New("-s: a snapshot is needed: what kubectl get services,endpointslices,nodes -A -o yaml prints")

// errDone ends a verb early, with success.
var errDone = errors.New("done")

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
	if c.WriteConfigTo != nil {
		e.report(*diags)
		return nil, writeConfigTo(e, *c.WriteConfigTo, resolved.Config)
	}
	return resolved, nil
}

// setConfig replaces the configuration file.
func (c *configFlags) setConfig(file string) { c.Config = &file }

// load reads configuration and snapshot.
func (in *input) load(e *env) (*job, error) {
	j := &job{snap: snapshot.New()}
	resolved, err := in.resolve(e, &j.diags)
	if err != nil {
		return nil, err
	}
	j.Resolved = resolved
	if in.Cleanup || in.InitOnly {
		return nil, errors.New("--cleanup, --init-only: change a node, which compiling does not")
	}
	if len(in.Snapshot) == 0 {
		return nil, errNoSnapshot
	}
	if err := e.readSnapshot(j, in.Snapshot); err != nil {
		return nil, err
	}
	j.facts.HNSNetworkType = in.HNSNetworkType
	return j, e.setNode(j)
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
	name := j.NodeName
	if name == "" {
		host, err := e.hostname()
		if err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
		name = strings.ToLower(strings.TrimSpace(host))
	}
	j.facts.NodeName = name
	return nil
}

// compile makes the Programs of the job's node.
func (j *job) compile() ir.Programs {
	programs, diags := compiler.Compile(j.Config, j.snap, j.facts)
	j.diags.Add(diags...)
	j.checkNode(j.facts.NodeName)
	return programs
}

// checkNode holds the configuration against a Node of the snapshot, as far as
// its addresses are known.
func (j *job) checkNode(name string) {
	if families, ok := compiler.NodeFamilies(j.Config, j.snap.Node(name)); ok {
		j.diags.Add(j.CheckNode(families)...)
	}
}

// finish prints the diagnostics and gives the error with which the verb ends:
// err, or bad input if a diagnostic is an error.
func (j *job) finish(e *env, err error) error {
	e.report(j.diags)
	if err == nil && j.diags.HasErrors() {
		return errReported
	}
	return err
}

// readFile reads a file, or standard input for "-".
func (e *env) readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(e.stdin)
	}
	return e.files.ReadFile(name)
}

// readSnapshot decodes all files of a snapshot.
func (e *env) readSnapshot(j *job, names []string) error {
	var files []string
	for _, name := range names {
		expanded, err := e.expand(name)
		if err != nil {
			return err
		}
		files = append(files, expanded...)
	}
	for i, name := range files {
		if name == "-" && slices.Contains(files[:i], "-") {
			return errors.New("-s: standard input can be given once")
		}
		data, err := e.readFile(name)
		if err != nil {
			return err
		}
		j.diags.Add(snapshot.Decode(j.snap, name, data)...)
	}
	j.diags.Add(j.snap.Finish()...)
	if len(files) > 0 && len(j.snap.Services()) == 0 {
		j.diags.Add(diag.Diagnostic{Severity: diag.Warning, Msg: "the snapshot has no Service: there is nothing to proxy",
			Hint: "it is what kubectl get services,endpointslices,nodes -A -o yaml prints"})
	}
	return nil
}

// expand gives the files of a directory that can hold objects, in order of
// name, without hidden ones, which editors and other programs leave; what is no directory stands for itself.
func (e *env) expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := e.files.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	entries, err := e.files.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if ext := filepath.Ext(entry.Name()); !entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: has no .yaml, .yml or .json file", name)
	}
	return files, nil
}
