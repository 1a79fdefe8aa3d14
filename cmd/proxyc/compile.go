package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

type compileCmd struct {
	input

	Output   string  `short:"o" placeholder:"FORMAT" help:"What to print: iptables, ip6tables, nftables, ipvsadm, ipset, hns, ir, ir-json, or another text that the mode has. By default the mode's own."`
	OutDir   dirName `placeholder:"DIR" help:"Write all files that the mode needs into a directory, with a README of how to load each."`
	Explain  bool    `help:"Print a table that names the Service, port and field behind each rule and element, instead of the rules; with --out-dir, write it beside them."`
	AllNodes bool    `help:"Compile for every Node of the snapshot, each into a directory of its own below --out-dir."`
}

func (c *compileCmd) Run(e *env) error {
	switch {
	case c.AllNodes && c.OutDir == "":
		return errors.New("--all-nodes: needs --out-dir")
	case c.OutDir != "" && c.Output != "":
		return errors.New("-o: not together with --out-dir, which writes every file of the mode")
	case c.Explain && c.Output != "":
		return errors.New("-o: not together with --explain, which prints a table of its own")
	}
	c.anyNode = c.AllNodes
	job, err := c.load(e)
	if err != nil {
		return err
	}
	if c.AllNodes {
		// It says whose the --node-address are.
		if name := deref(c.HostnameOverride); name != "" && job.snap.Node(name) == nil {
			return job.finish(e, fmt.Errorf("--hostname-override: must be a Node of the snapshot, of which --all-nodes compiles each, got %q", name))
		}
		return c.allNodes(e, job)
	}
	return job.finish(e, c.write(e, job))
}

func (c *compileCmd) write(e *env, job *job) error {
	programs := job.compile()
	job.warnRefused()
	switch {
	case c.OutDir != "":
		return e.writeDir(string(c.OutDir), programs, c.Explain)
	case c.Explain:
		_, _, rendered := outputs(programs)
		return writeExplain(e.stdout, rendered)
	}
	return writeFormat(e.stdout, programs, c.Output)
}

// allNodes compiles for every Node of the snapshot. Decoding, and what does not
// depend on the node, is done once.
func (c *compileCmd) allNodes(e *env, job *job) error {
	var nodes []compiler.Facts
	for _, n := range job.snap.Nodes() {
		if strings.ContainsAny(n.Name, `/\`) || strings.HasPrefix(n.Name, ".") {
			job.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ObjectName, Object: "Node " + n.Name, Path: "metadata.name", Msg: "must be usable as the name of a directory"})
			continue
		}
		nodes = append(nodes, job.others(n.Name))
	}
	if len(nodes) == 0 {
		return job.finish(e, errors.New("--all-nodes: the snapshot has no Node"))
	}
	var err error
	compiler.CompileNodes(job.Config, job.snap, nodes, func(i int, programs ir.Programs, diags diag.List) bool {
		job.diags.Add(diags...)
		job.checkNode(nodes[i].NodeName)
		job.checkAddrs(nodes[i], programs)
		err = e.writeDir(filepath.Join(string(c.OutDir), nodes[i].NodeName), programs, c.Explain)
		return err == nil
	})
	job.warnRefused()
	return job.finish(e, err)
}
