package main

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/review/explain"
)

type explainCmd struct {
	source
	namespaceFlag

	What   string `arg:"" help:"Rule, chain, map element, address, node port or Service to explain. Accepted are lines of iptables-save, nft list ruleset, ipvsadm -Ln, ipset save and conntrack -L, with rules of proxyc or kube-proxy. An address is IP or IP:PORT[/PROTO], a Service NAMESPACE/NAME[:PORT], with PORT as name or number."`
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
	c.namespace = c.Namespace
	job, programs, err := c.programs(e)
	if err != nil {
		return err
	}
	found, err := explain.Find(c.What, job, programs)
	if err != nil {
		return e.finish(job, err)
	}
	if !found.Empty() {
		err = e.print(c.Output, found.WriteText, found.WriteJSON)
	}
	err = e.finish(job, err)
	if found.Empty() {
		fmt.Fprintf(e.stderr, "%q: not found on node %s in mode %s%s\n", c.What, programs.IPv4.Node.Name, programs.IPv4.Node.Mode, found.Hint)
		if err == nil {
			return errFindings
		}
	}
	return err
}
