package main

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/explain"
)

type explainCmd struct {
	source
	namespaceFlag

	What   string `arg:"" help:"A chain, a map element, a line of iptables-save, nft list ruleset, ipvsadm -Ln, ipset save or conntrack -L, of proxyc's rules or kube-proxy's; IP:PORT[/PROTO] or IP of a frontend or an endpoint, the number of a node port, or NAMESPACE/NAME[:PORT] of a Service, PORT by name or number."`
	Output string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

// Run prints the IR and the rules for one object, with the Services and fields that they come from,
// or why a Service has no rules. If there is nothing, it is a finding (exit code 1).
func (c *explainCmd) Run(e *env, k *kong.Context) error {
	if err := c.check(k); err != nil {
		return err
	}
	c.What = c.service(c.What)
	if err := explain.Check(c.What); err != nil {
		return err
	}
	job, programs, err := c.programs(e)
	if err != nil {
		return err
	}
	found, err := explain.Find(c.What, job, programs)
	if err != nil {
		return e.finish(job, err)
	}
	write := found.WriteText
	if c.Output == "json" {
		write = found.WriteJSON
	}
	if !found.Empty() {
		err = review.Buffered(e.stdout, write)
	}
	err = e.finish(job, err)
	if found.Empty() {
		fmt.Fprintf(e.stderr, "%q: nothing on node %s in mode %s has this name%s\n", c.What, programs.IPv4.Node.Name, programs.IPv4.Node.Mode, found.Hint)
		if err == nil {
			return errFindings
		}
	}
	return err
}
