package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// signalled is the error of a command that a signal interrupted. Its exit status is the shell's for
// that signal. Nothing is printed, since the user requested it.
type signalled syscall.Signal

func (s signalled) Error() string { return syscall.Signal(s).String() }

// status returns the exit status that a shell reports for a program killed by the signal.
func (s signalled) status() int { return 128 + int(s) }

// untilSignal returns a context that SIGINT, SIGTERM or SIGHUP ends, for commands that must clean
// up or finish. Other commands use the default action. stop replaces the command's error, if any,
// by the signal. A second signal kills the process.
func untilSignal(err *error) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-came:
			signal.Stop(came)
			cancel(signalled(s.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(came)
		cancel(nil)
		<-done
		if s, is := context.Cause(ctx).(signalled); is && *err != nil {
			*err = s
		}
	}
}
