package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// signalled ends a verb that a signal interrupted: its status is the shell's for that signal, and nothing is
// printed, since the user asked for it.
type signalled syscall.Signal

func (s signalled) Error() string { return syscall.Signal(s).String() }

// status is what a shell reports of a program that the signal killed.
func (s signalled) status() int { return 128 + int(s) }

// untilSignal returns a context that SIGINT, SIGTERM or SIGHUP ends, for verbs that have something to undo or to finish
// then; others leave signals to the kernel. stop puts the signal in place of the verb's error, if it has one. A
// second signal kills the process.
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
