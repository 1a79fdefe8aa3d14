package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/diag"
)

type compileCmd struct {
	input
	nodeChoice

	Output  string         `short:"o" placeholder:"FORMAT" help:"Output: by default the mode's own text. Others are iptables, ip6tables, nftables, ipvsadm, ipset, hns, ir, ir-json, or another text of the mode."`
	OutDir  help.Directory `placeholder:"DIR" help:"Write all files of the mode, and a README, into a directory. The README explains how to load each file. Each of several nodes has its own directory below DIR."`
	Explain bool           `help:"Print the Service, port and field behind each rule, instead of the rules. With --out-dir, the table is written beside the rules."`
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
		return review.WriteDir(e.files, string(c.OutDir), programs, c.Explain)
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
			return e.finish(job, review.UnknownNode("--node", name, fmt.Sprintf("got %q", name), job.Snapshot))
		}
	}
	for _, n := range job.Snapshot.Nodes() {
		if !c.AllNodes && !slices.Contains(c.Node, n.Name) || job.AssumedNodes() && n.Name == assume.OtherNode(job.Facts.NodeName) {
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
	for i, programs := range job.CompileNodes(nodes) {
		job.CheckAddrs(nodes[i], programs)
		if err := review.WriteDir(e.files, filepath.Join(string(c.OutDir), nodes[i].NodeName), programs, c.Explain); err != nil {
			job.WarnRefused()
			return e.finish(job, err)
		}
	}
	job.WarnRefused()
	return e.finish(job, nil)
}
