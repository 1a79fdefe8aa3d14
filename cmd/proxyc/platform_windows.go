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
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"

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
func resolveHere(f *config.Flags, read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	r, diags := f.Resolve(read, strict)
	if r != nil && r.ModeDefaulted() {
		with, mode := *f, string(ir.ModeKernelspace)
		with.Mode = &mode
		r, diags = with.Resolve(read, strict)
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

// windowsServiceName is the source name in the event log; the service may have any name.
const windowsServiceName = "proxyc"

// logFileSize is the maximum size of a service's log file in bytes. One old file is kept.
const logFileSize = 32 << 20

// stopsWithin is the stop timeout reported to the service control manager, besides the time for
// connections to end.
const stopsWithin = 5 * time.Second

// errNoService is the error of --windows-service without a service control manager.
var errNoService = errors.New("--windows-service: must be started by the service control manager: sc.exe start NAME")

// asService runs the daemon, as a service if requested, until the service control manager stops it.
// A service has no console: its log is written to a file, and its start and end to the event log.
// drain is the time for its connections to end.
func asService(ctx context.Context, e *env, service bool, drain time.Duration, run func(context.Context) error) error {
	if !service {
		return run(ctx)
	}
	s := &handler{ctx: ctx, env: e, drain: drain, run: run}
	err := svc.Run(windowsServiceName, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return errNoService
	}
	return errors.Join(err, s.err)
}

// handler is the daemon's interface to the service control manager.
type handler struct {
	ctx   context.Context
	env   *env // its output is written to the log
	drain time.Duration
	run   func(context.Context) error
	err   error // of the daemon
}

// Execute implements svc.Handler.
func (s *handler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	events, err := eventlog.Open(windowsServiceName)
	if err == nil {
		defer events.Close()
		_ = events.Info(1, "proxyc starts")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.logged(ctx) }()
	const accepts = svc.AcceptStop | svc.AcceptShutdown
	status <- svc.Status{State: svc.Running, Accepts: accepts}
	for {
		select {
		case s.err = <-ended:
			if s.err == nil {
				if events != nil {
					_ = events.Info(1, "proxyc ends")
				}
				return false, 0
			}
			if events != nil {
				_ = events.Error(2, "proxyc ends: "+s.err.Error())
			}
			return true, exitBad
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: uint32((s.drain + stopsWithin).Milliseconds())}
				cancel()
			}
		}
	}
}

// logged runs the daemon with its output written to the log.
func (s *handler) logged(ctx context.Context) error {
	path := filepath.Join(host.DataDir(), "proxyc.log")
	log, err := disk.OpenLogFile(path, logFileSize)
	if err != nil {
		return err
	}
	defer log.Close()
	s.env.stdout, s.env.stderr = log, log
	switch err = s.run(ctx); {
	case errors.Is(err, errReported):
		return fmt.Errorf("see %s", path)
	case err != nil:
		fmt.Fprintln(log, "proxyc:", err)
	}
	return err
}
