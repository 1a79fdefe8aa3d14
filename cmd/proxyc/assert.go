package main

import (
	"github.com/proxyc/proxyc/cmd/proxyc/review/contract"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
)

type assertCmd struct {
	input
	nodeChoice

	Contracts []string `short:"f" name:"contracts" required:"" sep:"none" placeholder:"FILE" help:"Contracts: documents of kind Contracts. May be repeated."`
	Output    string   `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

// Run decides the contracts on the selected nodes; by default on all Nodes of the snapshot.
func (c *assertCmd) Run(e *env) error {
	contracts, err := contract.Read(e.inputs(), c.Contracts)
	if err != nil {
		return err
	}
	c.anyNode, c.node = true, c.one()
	j, err := c.load(e)
	if err != nil {
		return err
	}
	e.standIns.Nodes(j.Snapshot, j.Facts.NodeName)
	nodes, err := diff.FactsOf(j, diff.Nodes{Names: c.Node, All: len(c.Node) == 0})
	if err != nil {
		return e.finish(j, err)
	}
	r := contract.Check(j, nodes, contracts, e.standIns.Pods(j.Snapshot, j.Reader.Written(), j.Facts.NodeName))
	if err := e.finish(j, e.print(c.Output, r.WriteText, r.WriteJSON)); err != nil {
		return err
	}
	if !r.Holds() {
		return errFindings
	}
	return nil
}
