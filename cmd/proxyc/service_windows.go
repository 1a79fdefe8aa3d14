package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"

	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/compiler/config"
)

// windowsServiceName is that under which the event log knows the program; the service
// may have any.
const windowsServiceName = "proxyc"

// logFileSize is how large the log of a service may become, in bytes, before the next one is begun; one
// old one is kept.
const logFileSize = 32 << 20

// errNoService is the error of --windows-service where nobody listens.
var errNoService = errors.New("--windows-service: must be started by the service control manager: sc.exe start NAME")

// asService runs the daemon as the service that the configuration asks for: until
// the service control manager stops it. It has no console, so its log goes to a file,
// and how it begins and ends to the event log.
func asService(ctx context.Context, e *env, cfg *config.Config, run func(context.Context) error) error {
	if !cfg.WindowsRunAsService {
		return run(ctx)
	}
	if is, err := svc.IsWindowsService(); err != nil || !is {
		return errors.Join(errNoService, err)
	}
	log, err := openLogFile(filepath.Join(daemon.DataDir(), "proxyc.log"), logFileSize)
	if err != nil {
		return err
	}
	defer log.Close()
	e.stdout, e.stderr = log, log
	s := &service{ctx: ctx, run: run, log: log}
	return errors.Join(svc.Run(windowsServiceName, s), s.err)
}

// service is the daemon as the service control manager sees it.
type service struct {
	ctx context.Context
	run func(context.Context) error
	log io.Writer
	err error // with which the daemon ended
}

// Execute implements svc.Handler.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	events, err := eventlog.Open(windowsServiceName)
	if err == nil {
		defer events.Close()
		_ = events.Info(1, "proxyc starts")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	const accepts = svc.AcceptStop | svc.AcceptShutdown
	status <- svc.Status{State: svc.Running, Accepts: accepts}
	for {
		select {
		case s.err = <-ended:
			if s.err == nil {
				return false, 0
			}
			fmt.Fprintln(s.log, "proxyc:", s.err)
			if events != nil {
				_ = events.Error(2, "proxyc ends: "+s.err.Error())
			}
			return true, exitBad
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				cancel()
			}
		}
	}
}
