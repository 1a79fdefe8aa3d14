package main

import (
	"context"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"io"
	"os"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/build"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/doctor"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/cmd/proxyc/demo"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

type doctorCmd struct {
	configFlags
	Snapshot []string `short:"s" placeholder:"FILE" sep:"none" help:"Also check the files that watch -s would follow. May be repeated."`
	Modes    []string `name:"try" enum:"nftables,iptables,ipvs" default:"nftables,iptables,ipvs" placeholder:"MODE,..." help:"Modes to try, in a temporary network namespace."`
	Output   string   `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

// Run checks this node. Findings with status error are exit code 1.
func (c *doctorCmd) Run(e *env) (err error) {
	ctx, stop := terminal.UntilSignal(&err)
	defer stop()
	resolved, err := c.resolve(e)
	if err != nil {
		return err
	}
	if err := needRoot("doctor"); err != nil {
		return err
	}
	j := &review.Input{Resolved: resolved, Snapshot: snapshot.New()}
	if !e.readSnapshot(j, c.Snapshot, 0) || wholeFile(j.Diags) {
		return e.finish(j, errReported)
	}
	e.report(j.Findings())
	name, err := node.Name(resolved.NodeName, e.hostname)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cluster, err := demo.Files.ReadFile("cluster.yaml")
	if err != nil {
		return err
	}
	j.Facts.NodeName = name
	if err := j.ReadFacts(e.interfaces); err != nil {
		return err
	}
	socket := host.DaemonSocket()
	daemon := review.FetchDaemon(ctx, socket)
	programs := daemon.InForce
	repaired := programs.IPv4 != nil // by the daemon
	if !repaired {
		programs = j.Compile()
	}
	n := &doctor.Node{Root: "/", Mode: resolved.Config.ProxyMode(),
		Try:      func(ctx context.Context, mode ir.Mode) error { return doctor.Try(ctx, self, cluster, mode) },
		Settings: func() ([]sysctl.Setting, error) { return host.Settings(resolved.Config, name) },
		Bridges:  host.FastpathBridges,
		Interference: func(ctx context.Context) (apply.Interference, error) {
			return host.Interference(ctx, 1<<resolved.Config.MasqueradeBit(), programs)
		},
		RuleCounts: host.RuleCounts, Writer: host.Writers, Lock: host.CheckLock, Interfaces: e.interfaces,
		Leftovers: func(ctx context.Context) ([]apply.Leftover, error) { return host.Leftovers(ctx, "", nil, true) },
	}
	if !repaired {
		n.Missing = func(ctx context.Context) (string, error) {
			return doctor.Missing(ctx, j.Config, programs, len(c.Snapshot) > 0)
		}
	}
	for _, m := range c.Modes {
		n.Modes = append(n.Modes, ir.Mode(m))
	}
	if resolved.Config.ClientConnection.Kubeconfig != "" || deref(c.Master) != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		n.API = &doctor.API{NodeName: name, Now: time.Now}
		n.API.Server, n.API.Client, n.API.Err = watch.Client(resolved.Config.ClientConnection, deref(c.Master), "proxyc/"+build.Read().Version)
	}
	found := n.Examine(ctx)
	if socket != "" && daemon.PID == 0 {
		found = append(found, doctor.Finding{Check: "daemon", Status: doctor.Error, Found: "it does not answer at " + socket + ", so it hangs or is stopped", Fix: "read its log, then restart it"})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := c.print(e.stdout, found); err != nil {
		return err
	}
	if !doctor.Healthy(found) {
		return errFindings
	}
	return nil
}

func (c *doctorCmd) print(w io.Writer, found []doctor.Finding) error {
	if c.Output == "json" {
		return review.WriteDocument(w, "Examination", "  ", struct {
			Well     bool             `json:"well"`
			Findings []doctor.Finding `json:"findings"`
		}{doctor.Healthy(found), found})
	}
	return review.Buffered(w, func(w io.Writer) error {
		for _, f := range found {
			fmt.Fprintf(w, "%-8s %s: %s\n", f.Status, f.Check, f.Found)
			if f.Fix != "" {
				fmt.Fprintf(w, "         → %s\n", f.Fix)
			}
		}
		return nil
	})
}
