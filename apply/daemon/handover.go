package daemon

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/logging"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/userspace"
	"github.com/proxyc/proxyc/ir"
)

// handover is what sessions leave to the next one: the lock, a dataplane, and proxied connections.
type handover struct {
	lock *apply.Lock // nil before it is acquired. Between two sessions no other process may write

	// previous is the dataplane of an earlier session; nil without one. It stays open until the next
	// session has applied its rules. Connections through its process thus continue until no rule
	// redirects to it.
	previous apply.Dataplane
	mode     ir.Mode // mode of previous

	draining  []apply.Drainer // closed dataplanes that may have connections
	localhost userspace.Localhost
}

// leave closes the dataplane of a session that ends, or keeps it for another session. If this
// session has not written rules, a previous dataplane is kept instead. dataplane is nil if it was not
// opened.
func (h *handover) leave(dataplane apply.Dataplane, mode ir.Mode, another bool, log *slog.Logger) {
	switch {
	case dataplane == nil:
	case another && (h.previous == nil || modeOf(dataplane.Applied().Programs()) != ""):
		h.replace(dataplane, mode, log)
	default:
		h.close(dataplane, log)
	}
	if !another {
		h.end(log)
	}
}

// end closes everything, after which another process may listen and write.
func (h *handover) end(log *slog.Logger) {
	h.localhost.Close()
	h.closePrevious(log)
	if h.lock != nil {
		h.lock.Release()
		h.lock = nil
	}
}

// replace closes the dataplane of an earlier session, and stores another one.
func (h *handover) replace(dataplane apply.Dataplane, mode ir.Mode, log *slog.Logger) {
	h.closePrevious(log)
	h.previous, h.mode = dataplane, mode
}

// closePrevious closes the dataplane of an earlier session.
func (h *handover) closePrevious(log *slog.Logger) {
	if h.previous != nil {
		h.close(h.previous, log)
		h.previous, h.mode = nil, ""
	}
}

func (h *handover) close(dataplane apply.Dataplane, log *slog.Logger) {
	if err := dataplane.Close(); err != nil {
		log.Error("closing the dataplane", "err", err)
	}
	if dr, ok := apply.DrainerOf(dataplane); ok {
		h.draining = slices.DeleteFunc(h.draining, func(d apply.Drainer) bool { return d.Carried() == 0 })
		h.draining = append(h.draining, dr)
	}
}

// drain waits for proxied connections to end, after everything else has ended. At the timeout it
// closes them.
func (h *handover) drain(timeout time.Duration, log *logging.Logger) {
	h.end(log.Logger) // if no session followed the last one
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
		log.Warn("remaining connections were closed", "connections", cut)
	}
	log.Flush()
}

// lastWork is how long work in progress may continue after a signal, in a mode whose rules stay.
const lastWork = reconcile.CommitGrace + 500*time.Millisecond

// lastWorkOf returns lastWork, or more for a mode whose rules have to be removed.
func lastWorkOf(mode ir.Mode) time.Duration {
	if mode.ByProcess() {
		return 10 * time.Second
	}
	return lastWork
}
