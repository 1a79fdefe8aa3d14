package host

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// serviceName is the source name in the event log; the service may have any name.
const serviceName = "proxyc"

// stopsWithin is the stop timeout reported to the service control manager, besides the time for
// connections to end.
const stopsWithin = 5 * time.Second

// failed is the exit code of a service whose daemon failed.
const failed = 2

// RunService runs a daemon until the service control manager stops it, with its start and end in the event
// log. drain is the time for its connections to end.
func RunService(ctx context.Context, drain time.Duration, run func(context.Context) error) error {
	s := &service{ctx: ctx, drain: drain, run: run}
	err := svc.Run(serviceName, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return errors.New("--windows-service: must be started by the service control manager: sc.exe start NAME")
	}
	return errors.Join(err, s.err)
}

// service is the daemon's interface to the service control manager.
type service struct {
	ctx   context.Context
	drain time.Duration
	run   func(context.Context) error
	err   error // of the daemon
}

// Execute implements svc.Handler.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	events, err := eventlog.Open(serviceName)
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
				if events != nil {
					_ = events.Info(1, "proxyc ends")
				}
				return false, 0
			}
			if events != nil {
				_ = events.Error(2, "proxyc ends: "+s.err.Error())
			}
			return true, failed
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
