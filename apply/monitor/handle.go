package monitor

import (
	"context"
	"log/slog"
)

// Monitor reports the changes of others.
type Monitor interface {
	// Own calls work, which changes the rules, and does not report those changes.
	// If work is not certain that all of them are its own, it reports them.
	Own(work func() (certain bool))
	// Run looks until Close.
	Run(ctx context.Context)
	Close() error
}

// Handle is a dataplane's Monitor. Before Start there is none, and all else
// does nothing.
type Handle struct {
	monitor Monitor
	ended   chan struct{} // closed when Run has ended
}

// Start opens a Monitor and runs it until ctx ends, or until Close. The channel
// gives a token when somebody else may have changed the rules; that messages
// were missed is logged, too, where there is a log.
func (h *Handle) Start(ctx context.Context, log *slog.Logger, open func(notify func(missed bool)) (Monitor, error)) (<-chan struct{}, error) {
	tokens := make(chan struct{}, 1)
	m, err := open(func(missed bool) {
		select {
		case tokens <- struct{}{}:
			if missed && log != nil {
				log.Warn("messages about changes of the rules were missed: comparing all")
			}
		default: // there is one
		}
	})
	if err != nil {
		return nil, err
	}
	h.monitor, h.ended = m, make(chan struct{})
	go func() {
		defer close(h.ended)
		m.Run(ctx)
	}()
	return tokens, nil
}

// Own calls work, which changes the rules: see [Monitor]. Several goroutines may call it.
func (h *Handle) Own(work func() (certain bool)) {
	if h.monitor == nil {
		work()
		return
	}
	h.monitor.Own(work)
}

// ChangedBy returns who changed the rules since it was called last, where a Monitor knows.
func (h *Handle) ChangedBy() []string {
	if m, ok := h.monitor.(interface{ ChangedBy() []string }); ok {
		return m.ChangedBy()
	}
	return nil
}

// Close ends the Monitor, and waits for that.
func (h *Handle) Close() error {
	if h.monitor == nil {
		return nil
	}
	err := h.monitor.Close()
	<-h.ended
	return err
}
