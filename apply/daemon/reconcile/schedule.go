package reconcile

import (
	"time"

	"github.com/proxyc/proxyc/apply"
)

// Kind is how much a sync looks at.
type Kind uint8

const (
	None   Kind = iota
	Change      // the Services that changed
	Full        // everything, compared with what the kernel has
)

// String returns none, change or full.
func (k Kind) String() string { return [...]string{"none", "change", "full"}[k] }

// Schedule says when to sync. The zero times of a new one make the first
// request due at once.
type Schedule struct {
	// Min is the least time from the end of a sync to the start of the next
	// (minSyncPeriod, DMN-21). After a longer quiet the first change is due at once.
	Min time.Duration
	// Retry is the longest wait after a failure (syncPeriod). The first wait is
	// Min, or apply.FirstRetry if that is longer, and each further one twice the one
	// before.
	Retry time.Duration
	// Full is how often everything is compared.
	Full time.Duration

	asked    Kind
	failures int
	ended    time.Time // of the last sync
	compared time.Time // end of the last full sync that succeeded
	beside   bool      // everything is being compared, beside other syncs
}

// Ask notes that a sync is wanted.
func (s *Schedule) Ask(k Kind) { s.asked = max(s.asked, k) }

// Next returns when the next sync is due.
func (s *Schedule) Next() time.Time {
	switch {
	case s.asked != None:
		return s.ended.Add(s.Min)
	case s.failures > 0 && !s.beside:
		return s.ended.Add(s.backoff(s.failures))
	}
	return s.compared.Add(s.Full)
}

// backoff is how long to wait after the last of so many failures.
func (s *Schedule) backoff(failures int) time.Duration {
	return apply.Backoff(failures, max(s.Min, apply.FirstRetry), max(s.Retry, s.Min))
}

// Begin starts the sync that is due, and returns its kind. After a failure
// everything is compared, since nobody knows what the kernel has.
func (s *Schedule) Begin() Kind {
	k := s.asked
	s.asked = None
	if k == None || s.failures > 0 || s.compared.IsZero() {
		return Full
	}
	return k
}

// Comparing notes that everything is being compared, beside the syncs to come.
func (s *Schedule) Comparing(now time.Time) { s.compared, s.beside = now, true }

// End notes how a sync ended.
func (s *Schedule) End(k Kind, now time.Time, ok bool) {
	s.ended = now
	s.beside = s.beside && ok && k != Full
	if !ok {
		s.failures++
		return
	}
	s.failures = 0
	if k == Full {
		s.compared = now
	}
}
