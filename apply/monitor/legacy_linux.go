package monitor

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Legacy looks at the tables of the older iptables, which has no messages: at
// their sizes, which is cheap, and at all that is in them, which finds that a
// rule was replaced by another one of its size, but takes longer the more rules
// there are.
//
// kube-proxy looks whether a chain of its own is still there (IPT-33). That
// reads the chain's table as well, and tells of flushes only. And its chain is
// the sign that kube-proxy is back on a node (see BesideKubeProxy of apply/iptables).
type Legacy struct {
	every time.Duration
	tell  func(missed bool)
	done  chan struct{}

	mu   sync.Mutex
	busy bool
	seen *state    // since the end of our last work, or what was told of last, with its digest; nil: not known
	next time.Time // when all may be read again
}

// state is what the tables hold.
type state struct {
	sizes  string
	read   bool // whether digest is known
	digest uint64
}

const (
	// lookEvery is how often the tables are looked at.
	lookEvery = time.Second
	// rest is how much longer the pause before a look at all that is in the
	// tables is than the processor time that the last reading took.
	rest = 200
)

// OpenLegacy looks in the network namespace of the calling thread. notify is
// called when the tables are not as they were at the end of our own work, or when
// it was called last.
func OpenLegacy(notify func(missed bool)) *Legacy {
	return &Legacy{every: lookEvery, tell: notify, done: make(chan struct{})}
}

// Begin notes that our own work begins.
func (m *Legacy) Begin() {
	m.look() // what others did up to now cannot be told from our own work later
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = true
}

// End notes that our own work has ended.
func (m *Legacy) End() {
	now := m.read(true) // at once: what others do next is not to be taken for ours
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.seen = false, &now
}

// Close ends Run.
func (m *Legacy) Close() error {
	close(m.done)
	return nil
}

// Run looks until Close, or until ctx ends.
func (m *Legacy) Run(ctx context.Context) {
	ticker := time.NewTicker(m.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.done:
			return
		case <-ticker.C:
			m.look()
		}
	}
}

// look reports, once for each change, that the tables are not as they were.
func (m *Legacy) look() {
	m.mu.Lock()
	was, busy := m.seen, m.busy
	m.mu.Unlock()
	if busy || was == nil {
		return
	}
	now := m.read(false)
	if now.sizes != was.sizes && !now.read {
		now = m.read(true)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.busy || m.seen != was: // our own work began meanwhile, or somebody else looked
	case now.sizes != was.sizes, now.read && now.digest != was.digest:
		m.seen = &now // it may be left as it is
		m.tell(false)
	}
}

// read reads the sizes, and all that is in the tables if that is due, or wanted now.
func (m *Legacy) read(all bool) state {
	began := time.Now()
	m.mu.Lock()
	due := all || !began.Before(m.next)
	m.mu.Unlock()
	now := state{sizes: sizes(), read: due}
	if due {
		cost := ownTime(func() { now.digest = digest() })
		m.mu.Lock()
		m.next = began.Add(rest * cost)
		m.mu.Unlock()
	}
	return now
}

// ownTime is the processor time that f takes. On a busy machine it may be much
// less than what passes meanwhile.
func ownTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

// threadTime is what the calling thread has used of the processors; the time of
// day where the kernel does not tell.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(t.Nano())
}
