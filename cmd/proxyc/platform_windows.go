package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// needRoot returns an error if the user may not change the node's network.
func needRoot(verb string) error {
	if !windows.GetCurrentProcessToken().IsElevated() {
		return fmt.Errorf("%s: requires administrator rights, to read and write HNS policies", verb)
	}
	return nil
}

// resolveHere resolves the flags with kube-proxy.exe's defaults, which differ from those of Linux:
// mode kernelspace, the network named by the environment (WIN-2, KUBE_NETWORK), and cbr0 as root
// endpoint.
func resolveHere(f *config.Flags, release config.Release, read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	r, diags := f.ResolveFor(release, read, strict)
	if r != nil && r.ModeDefaulted() {
		with, mode := *f, string(ir.ModeKernelspace)
		with.Mode = &mode
		r, diags = with.ResolveFor(release, read, strict)
	}
	if r != nil && r.Config.ProxyMode() == ir.ModeKernelspace {
		w := &r.Config.Winkernel
		w.NetworkName = cmp.Or(w.NetworkName, os.Getenv("KUBE_NETWORK"))
		w.RootHnsEndpointName = cmp.Or(w.RootHnsEndpointName, "cbr0")
	}
	return r, diags
}

// priorityClasses are the priority classes of Windows, by their names in kubelet's flag.
var priorityClasses = map[string]uint32{
	"IDLE_PRIORITY_CLASS":         windows.IDLE_PRIORITY_CLASS,
	"BELOW_NORMAL_PRIORITY_CLASS": windows.BELOW_NORMAL_PRIORITY_CLASS,
	"NORMAL_PRIORITY_CLASS":       windows.NORMAL_PRIORITY_CLASS,
	"ABOVE_NORMAL_PRIORITY_CLASS": windows.ABOVE_NORMAL_PRIORITY_CLASS,
	"HIGH_PRIORITY_CLASS":         windows.HIGH_PRIORITY_CLASS,
	"REALTIME_PRIORITY_CLASS":     windows.REALTIME_PRIORITY_CLASS,
}

// setPriority sets the priority class of the process; "" keeps it.
func setPriority(class string) error {
	if class == "" {
		return nil
	}
	if err := windows.SetPriorityClass(windows.CurrentProcess(), priorityClasses[class]); err != nil {
		return fmt.Errorf("--windows-priorityclass: %s: %w", class, err)
	}
	return nil
}

// logFileSize is the maximum size of a service's log file in bytes. One old file is kept.
const logFileSize = 32 << 20

// asService runs the daemon, as a service if requested, until the service control manager stops it.
// A service has no console: its log is written to a file, and its start and end to the event log.
// drain is the time for its connections to end.
func asService(ctx context.Context, e *env, service bool, drain time.Duration, run func(context.Context) error) error {
	if !service {
		return run(ctx)
	}
	return host.RunService(ctx, drain, func(ctx context.Context) error { return logged(ctx, e, run) })
}

// logged runs the daemon with its output written to the log.
func logged(ctx context.Context, e *env, run func(context.Context) error) error {
	path := filepath.Join(host.DataDir(), "proxyc.log")
	log, err := disk.OpenLogFile(path, logFileSize)
	if err != nil {
		return err
	}
	defer log.Close()
	e.stdout, e.stderr = log, log
	switch err = run(ctx); {
	case errors.Is(err, errReported):
		return fmt.Errorf("see %s", path)
	case err != nil:
		fmt.Fprintln(log, "proxyc:", err)
	}
	return err
}
