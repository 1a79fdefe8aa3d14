package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

const (
	// foreignInterval is how long a result is used. A check reads foreign tables and runs tools, and
	// every process on the node may request it.
	foreignInterval = time.Second
	// foreignTimeout is the timeout of a check.
	foreignTimeout = 10 * time.Second
	// foreignWait is how long a response waits for a check. The kernel blocks reads during a
	// large commit, and the rest of the response is available.
	foreignWait = time.Second
	// foreignLogInterval is the interval of checks for the log.
	foreignLogInterval = 5 * time.Minute
)

// foreignRules checks for foreign rules that affect packets to Services.
type foreignRules struct {
	check func(context.Context) (apply.Interference, error)
	log   *slog.Logger
	now   func() time.Time
	wake  chan struct{}

	mu       sync.Mutex
	checking chan struct{} // closed when the current check ends; nil without one
	at       time.Time     // end of the last check
	found    apply.Interference
	err      error
}

func newForeignRules(check func(context.Context) (apply.Interference, error), log *slog.Logger, now func() time.Time) *foreignRules {
	return &foreignRules{check: check, log: log, now: now, wake: make(chan struct{}, 1), err: errors.New("not looked at yet")}
}

// run runs requested checks until ctx ends.
func (n *foreignRules) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		limited, cancel := context.WithTimeout(ctx, foreignTimeout)
		found, err := n.check(limited)
		cancel()
		if err != nil && ctx.Err() == nil { // what is not read may affect packets, too
			found.Settings = append(found.Settings, "not all foreign rules, routes and settings can be read: "+err.Error())
		}
		n.mu.Lock()
		n.at, n.found, n.err = n.now(), found, err
		close(n.checking)
		n.checking = nil
		n.mu.Unlock()
	}
}

// last returns the result of the last check.
func (n *foreignRules) last() apply.Interference {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.found
}

// get returns the result of the last check, after a new one if it is outdated. It waits at most
// foreignWait.
func (n *foreignRules) get(ctx context.Context) (apply.Interference, error) {
	n.mu.Lock()
	if checking := n.request(); checking != nil {
		n.mu.Unlock()
		late := time.NewTimer(foreignWait)
		defer late.Stop()
		select {
		case <-checking:
		case <-late.C:
		case <-ctx.Done():
			return apply.Interference{}, context.Cause(ctx)
		}
		n.mu.Lock()
	}
	defer n.mu.Unlock()
	return n.found, n.err
}

// report adds foreign rules to a Status.
func (n *foreignRules) report(ctx context.Context, st *status.Status) {
	found, err := n.get(ctx)
	if err != nil {
		n.log.Debug("checking for foreign rules", "err", err)
	}
	st.MayDrop, st.MayDivert, st.Settings = found.Drops, found.Diverts, slices.Clone(found.Settings)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.checking != nil { // it takes longer than foreignWait
		known := "none are known yet"
		if !n.at.IsZero() {
			known = "those shown are of " + n.at.Format(time.RFC3339)
		}
		st.Settings = append(st.Settings, "foreign rules, routes and settings are still being read: "+known)
	}
}

// request starts a check if one is due, and returns a channel that is closed at its end; nil if the
// last result is current.
func (n *foreignRules) request() <-chan struct{} {
	if n.checking == nil && (n.at.IsZero() || n.now().Sub(n.at) >= foreignInterval) {
		n.checking = make(chan struct{})
		n.wake <- struct{}{}
	}
	return n.checking
}

// follow logs new and removed foreign rules until ctx ends.
func (n *foreignRules) follow(ctx context.Context) error {
	var logged loggedRules
	look := func() {
		if found, err := n.get(ctx); err == nil {
			logged.update(n.log, found)
		}
	}
	look()
	apply.Every(ctx, foreignLogInterval, look)
	return nil
}

// loggedRules are the logged foreign rules with their messages.
type loggedRules map[string]string

func (logged *loggedRules) update(log *slog.Logger, found apply.Interference) {
	now := loggedRules{}
	for _, rule := range found.Drops {
		now[rule] = "a foreign rule may drop packets to Services"
	}
	for _, rule := range found.Diverts {
		now[rule] = "a foreign rule may divert packets from the rules of Services"
	}
	for _, setting := range found.Settings {
		now[setting] = "a kernel setting or route may discard packets to Services"
	}
	for _, rule := range slices.Sorted(maps.Keys(now)) {
		if (*logged)[rule] == "" {
			log.Warn(now[rule], "rule", rule)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(*logged)) {
		if now[rule] == "" {
			log.Info("a foreign rule or setting was removed", "rule", rule)
		}
	}
	*logged = now
}
