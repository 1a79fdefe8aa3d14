package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"

	"github.com/proxyc/proxyc/apply/daemon"
)

// windowsServiceName is that under which the event log knows the program; the service
// may have any.
const windowsServiceName = "proxyc"

// logFileSize is how large the log of a service may become, in bytes, before the next one is begun; one
// old one is kept.
const logFileSize = 32 << 20

// stopsWithin is how long the service may take to stop beside its connections' end, as the
// service control manager is told.
const stopsWithin = 5 * time.Second

// errNoService is the error of --windows-service where nobody listens.
var errNoService = errors.New("--windows-service: must be started by the service control manager: sc.exe start NAME")

// asService runs the daemon, as a service if that is asked for: until the service
// control manager stops it. It has no console, so its log goes to a file,
// and how it begins and ends to the event log. Its connections may take drain to end.
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

// handler is the daemon as the service control manager sees it.
type handler struct {
	ctx   context.Context
	env   *env // its output becomes the log
	drain time.Duration
	run   func(context.Context) error
	err   error // with which the daemon ended
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

// logged runs the daemon with its output in the log.
func (s *handler) logged(ctx context.Context) error {
	log, err := openLogFile(filepath.Join(daemon.DataDir(), "proxyc.log"), logFileSize)
	if err != nil {
		return err
	}
	defer log.Close()
	s.env.stdout, s.env.stderr = log, log
	switch err = s.run(ctx); {
	case errors.Is(err, errReported):
		return fmt.Errorf("see %s", log.path)
	case err != nil:
		fmt.Fprintln(log, "proxyc:", err)
	}
	return err
}
