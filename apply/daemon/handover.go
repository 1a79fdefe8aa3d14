package daemon

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
)

// handover is what sessions leave to the next ones: a dataplane, and the connections that the
// process carries.
type handover struct {
	// previous is the dataplane of an earlier session; nil: there is none. It stays open until
	// the session after it has its rules in force: a process that carries connections does so
	// until nothing is led to it any longer.
	previous apply.Dataplane
	mode     ir.Mode // of previous

	draining  []apply.Drainer // that are closed, and may have connections
	localhost userspace.Localhost
}

// leave closes the dataplane of a session that ends, or leaves it to another one. If this
// session has not come as far as to write rules, the dataplane before it stays.
func (h *handover) leave(dataplane apply.Dataplane, mode ir.Mode, another bool, log *slog.Logger) {
	if another && h.previous == nil {
		h.previous, h.mode = dataplane, mode
		return
	}
	h.close(dataplane, log)
	if !another {
		h.localhost.Close() // before another process may write, and listen
		h.closePrevious(log)
	}
}

// replace closes what an earlier session has left, and puts another dataplane in its place.
func (h *handover) replace(dataplane apply.Dataplane, mode ir.Mode, log *slog.Logger) {
	h.closePrevious(log)
	h.previous, h.mode = dataplane, mode
}

// closePrevious closes what an earlier session has left.
func (h *handover) closePrevious(log *slog.Logger) {
	if h.previous != nil {
		h.close(h.previous, log)
		h.previous, h.mode = nil, ""
	}
}

func (h *handover) close(dataplane apply.Dataplane, log *slog.Logger) {
	if err := dataplane.Close(); err != nil {
		log.Error("closing the rules", "err", err)
	}
	if dr, ok := dataplane.(apply.Drainer); ok {
		h.draining = slices.DeleteFunc(h.draining, func(d apply.Drainer) bool { return d.Carried() == 0 })
		h.draining = append(h.draining, dr)
	}
}

// drain waits until connections that the process carries have ended, when all else has. After
// the timeout it closes them.
func (h *handover) drain(timeout time.Duration, log *logger) {
	h.closePrevious(log.Logger) // the last session did not get as far as to open one
	draining := append(h.draining, &h.localhost)
	carried := 0
	for _, d := range draining {
		carried += d.Carried()
	}
	if carried > 0 {
		log.Info("waiting for connections to end", "connections", carried, "at most", timeout.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cut := 0
	for _, d := range draining {
		cut += d.Drain(ctx)
	}
	if cut > 0 {
		log.Warn("connections were cut off", "connections", cut)
	}
	log.info.Flush()
}

// lastWork is how long work that is under way may go on after a signal, in a
// mode whose rules stay.
const lastWork = 800 * time.Millisecond

// lastWorkOf is lastWork, or longer in a mode whose rules have to go.
func lastWorkOf(mode ir.Mode) time.Duration {
	if mode.ByProcess() {
		return 10 * time.Second
	}
	return lastWork
}
