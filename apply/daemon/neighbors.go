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
	// neighborsEvery is how long a result is used. A check reads foreign tables and runs tools, and
	// every process on the node may request it.
	neighborsEvery = 2 * time.Second
	// neighborsTime is the timeout of a check.
	neighborsTime = 10 * time.Second
	// neighborsPatience is how long a response waits for a check. The kernel blocks reads during a
	// large commit, and the rest of the response is available.
	neighborsPatience = time.Second
	// neighborsTold is the interval of checks for the log.
	neighborsTold = 5 * time.Minute
)

// neighbors checks for foreign rules that affect packets to Services.
type neighbors struct {
	look func(context.Context) (apply.Interference, error)
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{}

	mu      sync.Mutex
	looking chan struct{} // closed when the current check ends; nil without one
	at      time.Time     // end of the last check
	found   apply.Interference
	err     error
}

func newNeighbors(look func(context.Context) (apply.Interference, error), log *slog.Logger, now func() time.Time) *neighbors {
	return &neighbors{look: look, log: log, now: now, wake: make(chan struct{}, 1), err: errors.New("not looked at yet")}
}

// run runs requested checks until ctx ends.
func (n *neighbors) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		limited, cancel := context.WithTimeout(ctx, neighborsTime)
		found, err := n.look(limited)
		cancel()
		n.mu.Lock()
		n.at, n.found, n.err = n.now(), found, err
		close(n.looking)
		n.looking = nil
		n.mu.Unlock()
	}
}

// last returns the result of the last check.
func (n *neighbors) last() apply.Interference {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.found
}

// get returns the result of the last check, after a new one if it is outdated. It waits at most
// neighborsPatience.
func (n *neighbors) get(ctx context.Context) (apply.Interference, error) {
	n.mu.Lock()
	if looking := n.ask(); looking != nil {
		n.mu.Unlock()
		late := time.NewTimer(neighborsPatience)
		defer late.Stop()
		select {
		case <-looking:
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
func (n *neighbors) report(ctx context.Context, st *status.Status) {
	found, err := n.get(ctx)
	if err != nil {
		n.log.Debug("rules of others", "err", err)
	}
	st.MayDrop, st.MayDivert = found.Drops, found.Diverts
}

// ask requests a check if one is due, and returns a channel that is closed at its end; nil if the
// last result is current.
func (n *neighbors) ask() <-chan struct{} {
	if n.looking == nil && (n.at.IsZero() || n.now().Sub(n.at) >= neighborsEvery) {
		n.looking = make(chan struct{})
		n.wake <- struct{}{}
	}
	return n.looking
}

// follow logs new and removed foreign rules until ctx ends.
func (n *neighbors) follow(ctx context.Context) error {
	var told toldRules
	for {
		if found, err := n.get(ctx); err == nil {
			told.tell(n.log, found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(neighborsTold):
		}
	}
}

// toldRules are the logged foreign rules with their messages.
type toldRules map[string]string

func (told *toldRules) tell(log *slog.Logger, found apply.Interference) {
	now := toldRules{}
	for _, rule := range found.Drops {
		now[rule] = "a rule of others may drop packets to Services"
	}
	for _, rule := range found.Diverts {
		now[rule] = "a rule of others may keep packets from the rules of Services"
	}
	for _, rule := range slices.Sorted(maps.Keys(now)) {
		if (*told)[rule] == "" {
			log.Warn(now[rule], "rule", rule)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(*told)) {
		if now[rule] == "" {
			log.Info("a rule of others is gone", "rule", rule)
		}
	}
	*told = now
}
