package terminal

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Signalled is the error of a command that a signal interrupted. Its exit status is the shell's for
// that signal. Nothing is printed, since the user requested it.
type Signalled syscall.Signal

func (s Signalled) Error() string { return syscall.Signal(s).String() }

// Status returns the exit status that a shell reports for a program killed by the signal.
func (s Signalled) Status() int { return 128 + int(s) }

// UntilSignal returns a context that SIGINT, SIGTERM or SIGHUP ends, for commands that must clean
// up or finish. Other commands use the default action. stop replaces the command's error, if any,
// by the signal. A second signal kills the process.
func UntilSignal(err *error) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-came:
			signal.Stop(came)
			cancel(Signalled(s.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(came)
		cancel(nil)
		<-done
		if s, is := context.Cause(ctx).(Signalled); is && *err != nil {
			*err = s
		}
	}
}

// UntilStopped returns a context that ends at SIGINT or SIGTERM. stop reports whether one was received.
// Afterwards, they end the process.
func UntilStopped() (_ context.Context, stop func() bool) {
	ctx, cancel := context.WithCancel(context.Background())
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if _, ok := <-received; ok {
			cancel()
		}
	})
	return ctx, sync.OnceValue(func() bool {
		signal.Stop(received)
		close(received)
		waiting.Wait()
		return ctx.Err() != nil
	})
}
