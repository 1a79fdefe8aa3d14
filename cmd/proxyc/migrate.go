package main

import (
	"context"
	"io"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/migrate"
	"github.com/proxyc/proxyc/compiler/config"
)

type migrateCmd struct {
	input
	nodeChoice

	From      string         `placeholder:"MODE" help:"Current mode; by default that of the configuration. One of iptables, ipvs, nftables or userspace."`
	To        string         `required:"" xor:"to" placeholder:"MODE" help:"New mode."`
	ToRelease config.Release `required:"" xor:"to" placeholder:"1.N" help:"New release of kube-proxy, instead of a mode: list what to do before the upgrade."`
	Dump      []string       `placeholder:"FILE" sep:"none" help:"Output of iptables-save or ip6tables-save, to find foreign rules. Reported are rules of other programs that use kube-proxy's chains. May be repeated."`
	Output    string         `short:"o" enum:"text,wide,json" default:"text" help:"Output: text, wide (each Service separately) or json."`
}

// Run prints how another mode changes a cluster, and the steps of the migration.
func (c *migrateCmd) Run(e *env) error {
	c.asWritten, c.anyNode, c.node = true, c.chosen() || c.ToRelease != 0, c.one()
	if c.ToRelease != 0 {
		return c.upgrade(e)
	}
	side := func(flag, mode string) (*review.Input, error) {
		in := c.input
		if mode != "" {
			if err := migrate.CheckMode(flag, mode); err != nil {
				return nil, err
			}
			in.Mode, in.modeFlag = &mode, flag
		}
		return in.load(e)
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
	if err := m.AddDumps(e.inputs().ReadFile, c.Dump); err != nil {
		return err
	}
	wrong, err := finishBoth(e, was, is, m.Compare(e.comparing(context.Background()), c.nodes()))
	if err != nil {
		return err
	}
	if wrong > 0 { // a plan requires valid objects
		return errReported
	}
	snapshot, take := migrate.Source(c.online(), c.Snapshot, deref(c.Kubeconfig), c.Context)
	m.Plan(deref(c.Config), snapshot, take)
	write := func(w io.Writer) error { return m.WriteText(w, c.Output == "wide") }
	if err := e.print(c.Output, write, m.WriteJSON); err != nil {
		return err
	}
	return compared(m.Empty(), 0)
}

// upgrade prints what to do before kube-proxy of another release starts.
func (c *migrateCmd) upgrade(e *env) error {
	j, err := c.load(e)
	if err != nil {
		return err
	}
	is, found := resolveHere(&c.Flags, c.ToRelease, e.inputs().ReadFile, c.Strict)
	u := migrate.NewUpgrade(j, is, found, c.ToRelease, migrate.Arguments(deref(c.Config), c.Snapshot, c.online()))
	if err := e.print(c.Output, u.WriteText, u.WriteJSON); err != nil || u.Empty() {
		return err
	}
	return errFindings
}
