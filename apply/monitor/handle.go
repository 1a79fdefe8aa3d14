package monitor

import (
	"context"
	"log/slog"
)

// Monitor reports changes of the rules by other programs.
type Monitor interface {
	// Own calls work, which changes the rules, and does not report those changes. If work returns
	// false, because changes may be foreign, it reports them.
	Own(work func() (certain bool))
	// Run monitors until Close.
	Run(ctx context.Context)
	// ChangedBy returns the programs that changed the rules since the last call, as far as
	// the kernel reports them.
	ChangedBy() []string
	Close() error
}

// Handle is a dataplane's Monitor. Before Start it has none, and its methods do nothing.
type Handle struct {
	monitor Monitor
	ended   chan struct{} // closed when Run has ended
}

// Start opens a Monitor and runs it until ctx or Close ends it. The channel receives a token when
// another program may have changed the rules. If changes may have been missed, the reason is also
// logged; log is optional.
func (h *Handle) Start(ctx context.Context, log *slog.Logger, open func(notify func(missed error)) (Monitor, error)) (<-chan struct{}, error) {
	tokens := make(chan struct{}, 1)
	m, err := open(func(missed error) {
		select {
		case tokens <- struct{}{}:
			if missed != nil && log != nil {
				log.Warn("changes of the rules may have been missed: comparing all", "err", missed)
			}
		default: // a token is already pending
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

// Own calls work, which changes the rules; see [Monitor]. It is safe for concurrent use.
func (h *Handle) Own(work func() (certain bool)) {
	if h.monitor == nil {
		work()
		return
	}
	h.monitor.Own(work)
}

// ChangedBy calls the Monitor's.
func (h *Handle) ChangedBy() []string {
	if h.monitor == nil {
		return nil
	}
	return h.monitor.ChangedBy()
}

// Close closes the Monitor, and waits until Run has returned.
func (h *Handle) Close() error {
	if h.monitor == nil {
		return nil
	}
	err := h.monitor.Close()
	<-h.ended
	return err
}
