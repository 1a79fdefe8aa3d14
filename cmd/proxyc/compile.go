package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

type compileCmd struct {
	input
	nodeChoice

	Output  string  `short:"o" placeholder:"FORMAT" help:"Output: by default the mode's own text. Others are iptables, ip6tables, nftables, ipvsadm, ipset, hns, ir, ir-json, or another text of the mode."`
	OutDir  dirName `placeholder:"DIR" help:"Write all files of the mode, and a README, into a directory. The README explains how to load each file. Each of several nodes has its own directory below DIR."`
	Explain bool    `help:"Print the Service, port and field behind each rule, instead of the rules. With --out-dir, the table is written beside the rules."`
}

func (c *compileCmd) Run(e *env) error {
	several := c.chosen() && c.one() == ""
	switch {
	case c.AllNodes && c.OutDir == "":
		return errors.New("--all-nodes: requires --out-dir")
	case several && c.OutDir == "":
		return errors.New("--node: several nodes require --out-dir")
	case c.OutDir != "" && c.Output != "":
		return errors.New("-o: cannot be combined with --out-dir, which writes every file of the mode")
	case c.Explain && c.Output != "":
		return errors.New("-o: cannot be combined with --explain, which prints its own table")
	}
	c.anyNode, c.node = several, c.one()
	c.onlyReal = c.Output != "ir"
	job, err := c.load(e)
	if err != nil {
		return err
	}
	if several {
		// It selects the Node that --node-address belongs to.
		if name := deref(c.HostnameOverride); name != "" && job.Snapshot.Node(name) == nil {
			return e.finish(job, fmt.Errorf("--hostname-override: must be a Node of the snapshot with several nodes, got %q", name))
		}
		return c.allNodes(e, job)
	}
	return e.finish(job, c.write(e, job))
}

func (c *compileCmd) write(e *env, job *review.Input) error {
	programs := job.Compile()
	job.WarnRefused()
	switch {
	case c.OutDir != "":
		return e.writeDir(string(c.OutDir), programs, c.Explain)
	case c.Explain:
		_, _, rendered := review.Outputs(programs)
		return review.WriteExplain(e.stdout, rendered)
	}
	return review.WriteFormat(e.stdout, programs, c.Output)
}

// allNodes compiles for the selected Nodes of the snapshot. Decoding, and other work that does not depend
// on the node, is done once.
func (c *compileCmd) allNodes(e *env, job *review.Input) error {
	var nodes []compiler.Facts
	for _, name := range c.Node {
		if job.Snapshot.Node(name) == nil {
			return e.finish(job, fmt.Errorf("--node: must name a Node of the snapshot, got %q", name))
		}
	}
	for _, n := range job.Snapshot.Nodes() {
		if !c.AllNodes && !slices.Contains(c.Node, n.Name) {
			continue
		}
		if strings.ContainsAny(n.Name, `/\`) || strings.HasPrefix(n.Name, ".") {
			job.Diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ObjectName, Object: "Node " + n.Name, Path: "metadata.name", Msg: "must be usable as the name of a directory"})
			continue
		}
		nodes = append(nodes, job.Others(n.Name))
	}
	if len(nodes) == 0 {
		return e.finish(job, errors.New("--all-nodes: the snapshot has no Node"))
	}
	var err error
	job.CompileNodes(nodes, func(i int, programs ir.Programs) bool {
		job.CheckAddrs(nodes[i], programs)
		err = e.writeDir(filepath.Join(string(c.OutDir), nodes[i].NodeName), programs, c.Explain)
		return err == nil
	})
	job.WarnRefused()
	return e.finish(job, err)
}

// Files of --out-dir besides the renderers'.
const (
	readmeFile  = "README"
	explainFile = "explain.tsv"
)

// writeDir writes all files that a node needs into dir: those of the mode, and a README that
// describes how to load each.
//
// All files are written under temporary names first, so that an error leaves the previous ones. The
// README, which identifies our files later, is renamed before the others. Files of another mode
// from an earlier run are removed last. Foreign files are never changed.
func (e *env) writeDir(dir string, programs ir.Programs, explain bool) error {
	rules, _, rendered := review.Outputs(programs)
	own := append([]render.Output{{File: readmeFile, Write: func(w io.Writer) error { return writeReadme(w, programs, rules) }}}, rules...)
	if explain {
		own = append(own, render.Output{File: explainFile, Write: func(w io.Writer) error { return review.WriteExplain(w, rendered) }})
	}

	if err := e.files.MkdirAll(dir); err != nil {
		return err
	}
	ours, err := e.isOurs(dir, own)
	if err != nil {
		return err
	}
	staged := make([]string, 0, len(own))
	defer func() {
		for _, name := range staged {
			e.files.Remove(name)
		}
	}()
	for _, o := range own {
		name, err := disk.Stage(e.files, dir, disk.Everybody, func(w io.Writer) error { return review.Buffered(w, o.Write) })
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, o.File), err)
		}
		staged = append(staged, name)
	}
	for _, o := range own {
		if err := e.files.Rename(staged[0], filepath.Join(dir, o.File)); err != nil {
			return err
		}
		staged = staged[1:]
	}
	if !ours {
		return nil
	}
	return e.removeOthers(dir, own)
}

// isOurs reports whether the README shows that the files in a directory are from an earlier run.
// Otherwise none of own may exist there.
func (e *env) isOurs(dir string, own []render.Output) (bool, error) {
	readme, err := e.files.ReadFile(filepath.Join(dir, readmeFile))
	if err == nil && bytes.HasPrefix(readme, []byte(readmeTitle)) {
		return true, nil
	}
	var errs []error
	for _, o := range own {
		name := filepath.Join(dir, o.File)
		if _, err := e.files.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("--out-dir: %s exists, and proxyc did not write it: choose another directory", name))
		}
	}
	return false, errors.Join(errs...)
}

// removeOthers removes the files of --out-dir that are not in own.
func (e *env) removeOthers(dir string, own []render.Output) error {
	for _, file := range allFiles() {
		if slices.ContainsFunc(own, func(o render.Output) bool { return o.File == file }) {
			continue
		}
		if err := e.files.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// allFiles returns the names of all files that --out-dir writes, in any mode.
func allFiles() []string {
	files := []string{readmeFile, explainFile}
	for _, mode := range ir.Modes() {
		node := ir.Node{Mode: mode}
		programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: node})
		for _, o := range review.Modes[mode].Lower(programs).Outputs() {
			files = append(files, o.File)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// readmeTitle is the start of every README of --out-dir.
const readmeTitle = "Rules of node "

func writeReadme(w io.Writer, programs ir.Programs, own []render.Output) error {
	node := &programs.IPv4.Node
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s in mode %s.\n", readmeTitle, node.Name, node.Mode)
	writeSettingsReadme(&b, node)
	fmt.Fprintf(&b, "\nLoad the files in this order:\n")
	for _, o := range own {
		fmt.Fprintf(&b, "\n%s\n", o.File)
		if o.Load != "" {
			fmt.Fprintf(&b, "    %s\n", o.Load)
		}
		if o.Note != "" {
			fmt.Fprintf(&b, "  %s\n", o.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeSettingsReadme writes the kernel settings that the mode requires.
func writeSettingsReadme(b *strings.Builder, node *ir.Node) {
	// The node's kernel is unknown: older ones require more settings.
	older := sysctl.Dataplane(node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 8}})
	newer := sysctl.Dataplane(node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 9}})
	if len(older) == 0 {
		return
	}
	b.WriteString("\nKernel settings that the rules require:\n")
	if node.IPVS != nil {
		b.WriteString("    modprobe ip_vs\n")
	}
	for _, s := range older {
		only := ""
		if !slices.Contains(newer, s) {
			only = "   # before Linux 5.9 only"
		}
		fmt.Fprintf(b, "    sysctl -w %s=%s%s\n", s.Name(), s.Want, only)
	}
}
