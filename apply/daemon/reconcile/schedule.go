package reconcile

import (
	"time"

	"github.com/proxyc/proxyc/apply"
)

// Kind is how much a sync looks at.
type Kind uint8

const (
	Change Kind = iota + 1 // the Services that changed
	Full                   // everything, compared with what the kernel has
)

// String returns change or full.
func (k Kind) String() string { return [...]string{"none", "change", "full"}[k] }

// Schedule says how long syncs are apart.
type Schedule struct {
	// Min is the least time from the end of a sync to the start of the next
	// (minSyncPeriod, DMN-21). After a longer quiet the first change is due immediately.
	Min time.Duration
	// Retry is the longest wait after a failure (syncPeriod). The first wait is
	// Min, or apply.FirstRetry if that is longer, and each further one twice the one
	// before.
	Retry time.Duration
	// Full is how often everything is compared.
	Full time.Duration
}

// backoff is how long to wait after the last of so many failures.
func (s *Schedule) backoff(failures int) time.Duration {
	return apply.Backoff(failures, max(s.Min, apply.FirstRetry), max(s.Retry, s.Min))
}

// retry is when something that failed is tried again. The zero value has not failed.
type retry struct {
	failures int
	at       time.Time
}

func (r *retry) fail(s *Schedule, now time.Time) {
	r.failures++
	r.at = now.Add(s.backoff(r.failures))
}

// soon ends the wait: there is news.
func (r *retry) soon() { r.at = time.Time{} }

// due returns when the next sync is due; false if only an event makes one due.
func (r *Reconciler) due() (time.Time, bool) {
	earliest := r.ended.Add(r.Schedule.Min)
	doubted := r.state.Doubts != r.state.Cleared
	switch {
	case !r.state.Known, r.replace:
		return later(earliest, r.applying.at), true
	case r.state.Wanted != r.state.Applied:
		return earliest, true
	case r.running != nil: // the next comparison begins when this one has ended
		return time.Time{}, false
	case doubted:
		return later(earliest, r.compares.at), true
	}
	return r.compared.Add(r.Schedule.Full), true
}

// comparisonDue reports whether the kernel is to be read in a sync at a time.
func (r *Reconciler) comparisonDue(now time.Time) bool {
	switch {
	case r.running != nil:
		return false
	case r.state.Doubts != r.state.Cleared:
		return !now.Before(r.compares.at)
	}
	return !now.Before(r.compared.Add(r.Schedule.Full))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
