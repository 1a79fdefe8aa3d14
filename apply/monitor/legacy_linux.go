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
//
// The tables look the same whoever changed them. So our own work is done with the
// lock that the tools of others wait for: what differs before it is foreign, and
// what differs after it is ours.
type Legacy struct {
	every  time.Duration
	tell   func(missed bool)
	done   chan struct{}
	tables legacyTables

	mu   sync.Mutex
	busy bool
	seen *state    // at first, after our last work, or as reported last; with its digest
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
// called when the tables are not as they were at first, after our own work, or
// when it was called last.
func OpenLegacy(notify func(missed bool)) *Legacy {
	m := &Legacy{every: lookEvery, tell: notify, done: make(chan struct{}), tables: openLegacyTables()}
	now := m.read(true)
	m.seen = &now
	return m
}

// Own calls work, which changes the tables. It is certain if nobody else could
// change them meanwhile: from before this call until it returns, the caller has
// the lock of the tools.
func (m *Legacy) Own(work func() (certain bool)) {
	m.look(true)
	m.setBusy(true)
	certain := work()
	now := m.read(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy, m.seen = false, &now
	if !certain {
		m.tell(true)
	}
}

func (m *Legacy) setBusy(busy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = busy
}

// Close ends Run.
func (m *Legacy) Close() error {
	close(m.done)
	return m.tables.close()
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
			m.look(false)
		}
	}
}

// look reports, once for each change, that the tables are not as they were. It
// reads all that is in them if that is due, or wanted.
func (m *Legacy) look(all bool) {
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
	case m.busy || m.seen != was: // our own work began meanwhile, or another look was first
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
	now := state{sizes: m.tables.sizes(), read: due}
	if due {
		cost := ownTime(func() { now.digest = m.tables.digest() })
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
