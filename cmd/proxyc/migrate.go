package main

import (
	"context"
	"fmt"
	"io"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/migrate"
)

type migrateCmd struct {
	input
	nodeChoice

	From   string   `placeholder:"MODE" help:"Current mode; by default that of the configuration. One of iptables, ipvs, nftables or userspace."`
	To     string   `required:"" placeholder:"MODE" help:"New mode."`
	Dump   []string `placeholder:"FILE" sep:"none" help:"Output of iptables-save or ip6tables-save, to find foreign rules. Reported are rules of other programs that use kube-proxy's chains. May be repeated."`
	Output string   `short:"o" enum:"text,wide,json" default:"text" help:"Output: text, wide (each Service separately) or json."`
}

// Run prints how another mode changes a cluster, and the steps of the migration.
func (c *migrateCmd) Run(e *env) error {
	ctx := context.Background()
	names := append(c.names(), c.Dump...)
	if err := oneStdin(names...); err != nil {
		return err
	}
	start, err := e.rereading(names, int64(c.Limit))
	if err != nil {
		return err
	}
	c.asWritten, c.anyNode, c.node = true, c.chosen(), c.one()
	side := func(flag, mode string) (*review.Input, error) {
		in := c.input
		if mode != "" {
			if err := migrate.CheckMode(flag, mode); err != nil {
				return nil, err
			}
			in.Mode, in.modeFlag = &mode, flag
		}
		return in.load(start())
	}
	was, err := side("--from", c.From)
	if err != nil {
		return err
	}
	is, err := side("--to", c.To)
	if err != nil {
		return err
	}
	m, err := migrate.New(was, is)
	if err != nil {
		return err
	}
	for _, name := range c.Dump {
		text, err := e.inputs().ReadFile(name)
		if err == nil {
			err = m.AddDump(name, string(text))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	wrong, err := finishBoth(e, was, is, m.Compare(e.comparing(ctx), c.nodes()))
	if err != nil {
		return err
	}
	if wrong > 0 { // a plan requires valid objects
		return errReported
	}
	snapshot, take := c.Snapshot, ""
	if c.online() {
		snapshot, take = []string{"cluster.json"}, "proxyc snapshot -o cluster.json"
		if file := deref(c.Kubeconfig); file != "" {
			take += " --kubeconfig " + review.ShellWord(file)
		}
		if c.Context != "" {
			take += " --context " + review.ShellWord(c.Context)
		}
	}
	m.Plan(deref(c.Config), snapshot, take)
	write := func(w io.Writer) error { return m.WriteText(w, c.Output == "wide") }
	if err := e.print(c.Output, write, m.WriteJSON); err != nil {
		return err
	}
	if m.Empty() {
		return nil
	}
	return errFindings
}
