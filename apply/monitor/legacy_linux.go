package monitor

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Legacy polls the tables of iptables-legacy, which sends no notifications. It compares their
// sizes, which is cheap, and less often their content. Only the content shows that a rule was
// replaced by another of the same size, but reading it takes longer the more rules exist.
//
// kube-proxy instead checks whether its canary chain still exists (IPT-33). That reads the chain's
// whole table as well, and detects only flushes. A chain of that name would also make it look as if
// kube-proxy were back on the node (see OwnLeftovers of apply/iptables).
//
// The tables do not show who changed them. Our own changes are therefore made while holding the
// lock that the iptables tools wait for. A difference before them is foreign, and a difference
// after them is ours.
type Legacy struct {
	interval time.Duration
	notify   func(missed error)
	done     chan struct{}
	tables   legacyTables

	mu   sync.Mutex
	busy bool
	seen *state    // initial state, after our last change, or as last reported; with its digest
	next time.Time // earliest time of the next complete read
}

// state is the content of the tables.
type state struct {
	sizes  string
	read   bool // digest is set
	digest uint64
}

const (
	// pollInterval is the polling interval.
	pollInterval = time.Second
	// readPause is the ratio of the pause before a complete read to the CPU time of the last one.
	readPause = 200
)

// OpenLegacy polls the network namespace of the calling thread. It calls notify when the tables
// differ from their initial state, from their state after our last change, and from the last
// reported one.
func OpenLegacy(notify func(missed error)) *Legacy {
	m := &Legacy{interval: pollInterval, notify: notify, done: make(chan struct{})}
	now := m.read(true)
	m.seen = &now
	return m
}

var errUncertain = errors.New("a tool failed, or ran without the lock")

// Own calls work, which changes the tables. Its changes are certain if the caller holds the lock of
// the iptables tools from before this call until it returns.
func (m *Legacy) Own(work func() (certain bool)) {
	m.poll(true)
	m.setBusy(true)
	certain := work()
	now := m.read(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.seen = false, &now
	if !certain {
		m.notify(errUncertain)
	}
}

func (m *Legacy) setBusy(busy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = busy
}

// ChangedBy returns nothing: the kernel does not report who changed the tables.
func (m *Legacy) ChangedBy() []string { return nil }

// Close ends Run.
func (m *Legacy) Close() error {
	close(m.done)
	return m.tables.close()
}

// Run polls until Close, or until ctx ends.
func (m *Legacy) Run(ctx context.Context) {
	ticker := time.NewTicker(m.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.done:
			return
		case <-ticker.C:
			m.poll(false)
		}
	}
}

// poll reports a change of the tables, once for each change. It reads their content if that is due,
// or if all is set.
func (m *Legacy) poll(all bool) {
	m.mu.Lock()
	was, busy := m.seen, m.busy
	m.mu.Unlock()
	if busy {
		return
	}
	now := m.read(all)
	if now.sizes != was.sizes && !now.read {
		now = m.read(true)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.busy || m.seen != was: // an own change or another look started meanwhile
	case now.sizes != was.sizes, now.read && now.digest != was.digest:
		m.seen = &now // report it only once, even if it is not repaired
		m.notify(nil)
	}
}

// read reads the sizes of the tables, and their content if that is due or all is set.
func (m *Legacy) read(all bool) state {
	began := time.Now()
	m.mu.Lock()
	due := all || !began.Before(m.next)
	m.mu.Unlock()
	now := state{sizes: m.tables.sizes(), read: due}
	if due {
		cost := cpuTime(func() { now.digest = m.tables.digest() })
		m.mu.Lock()
		m.next = began.Add(readPause * cost)
		m.mu.Unlock()
	}
	return now
}

// cpuTime returns the CPU time of f. On a busy machine this is much less than its wall time.
func cpuTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

func threadTime() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // fails only for an unknown clock
	return time.Duration(t.Nano())
}
