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
)

const (
	// neighborsEvery is how long what others do is taken for known: to look
	// reads the tables of others, and runs tools, and whoever is on the node may ask.
	neighborsEvery = 2 * time.Second
	// neighborsTime is how long a look may take.
	neighborsTime = 10 * time.Second
	// neighborsPatience is how long an answer waits for a look: the kernel lets nobody
	// read while it takes a large change, and the rest of the answer is known.
	neighborsPatience = time.Second
	// neighborsTold is how often the log looks at what others do.
	neighborsTold = 5 * time.Minute
)

// neighbors are the rules of others that packets to Services meet.
type neighbors struct {
	look func(context.Context) (apply.Interference, error)
	log  *slog.Logger
	now  func() time.Time
	wake chan struct{}

	mu      sync.Mutex
	looking chan struct{} // closed when the look under way ends; nil: there is none
	at      time.Time     // of the last look
	found   apply.Interference
	err     error
}

func newNeighbors(look func(context.Context) (apply.Interference, error), log *slog.Logger, now func() time.Time) *neighbors {
	return &neighbors{look: look, log: log, now: now, wake: make(chan struct{}, 1), err: errors.New("not looked at yet")}
}

// run looks when somebody asks, until ctx ends.
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

// last returns what the last look found, without a new one.
func (n *neighbors) last() apply.Interference {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.found
}

// get returns what the last look found, after a new one if that was long ago. It does
// not wait long for it.
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

// report adds the rules of others to a Status.
func (n *neighbors) report(ctx context.Context, st *Status) {
	found, err := n.get(ctx)
	if err != nil {
		n.log.Debug("rules of others", "err", err)
	}
	st.MayDrop, st.MayDivert = found.Drops, found.Diverts
}

// ask has somebody look where that is due, and returns the end of the look; nil where
// what is known will do.
func (n *neighbors) ask() <-chan struct{} {
	if n.looking == nil && (n.at.IsZero() || n.now().Sub(n.at) >= neighborsEvery) {
		n.looking = make(chan struct{})
		n.wake <- struct{}{}
	}
	return n.looking
}

// follow logs rules of others when they are new, and when they have gone, until
// ctx ends.
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

// toldRules are those of others that were logged, with what was said of them.
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
