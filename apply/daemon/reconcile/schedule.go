package reconcile

import (
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
)

// Kind is the scope of a sync.
type Kind uint8

const (
	Change Kind = iota + 1 // changed Services
	Full                   // everything, compared with the kernel
)

// String returns change or full.
func (k Kind) String() string { return [...]string{"none", "change", "full"}[k] }

// Schedule contains the intervals of syncs.
type Schedule struct {
	// Min is the minimum time from the end of a sync to the start of the next (minSyncPeriod, DMN-21,
	// the minimum sync interval). After a longer pause the first change is due immediately.
	Min time.Duration
	// Retry is the maximum wait after a failure (syncPeriod). The first wait is the maximum of Min and
	// apply.FirstRetry. Each further one is twice as long. For refused Services, Retry is the first
	// wait and Full the maximum.
	Retry time.Duration
	// Full is the interval of comparisons with the kernel.
	Full time.Duration
}

// backoff returns the wait after the last of a number of failures.
func (s *Schedule) backoff(failures int) time.Duration {
	return apply.Backoff(failures, max(s.Min, apply.FirstRetry), max(s.Retry, s.Min))
}

// retry schedules the next attempt of failed work. The zero value has not failed.
type retry struct {
	failures int
	at       time.Time
}

func (r *retry) fail(s *Schedule, now time.Time) {
	r.failures++
	r.at = now.Add(s.backoff(r.failures))
}

// expedite ends the wait, since the reason of the failure may have changed.
func (r *retry) expedite() { r.at = time.Time{} }

// timing determines when syncs are due.
type timing struct {
	ended     time.Time // end of the last sync
	compared  time.Time // end of the last successful comparison
	applying  retry     // of Replaces
	comparing retry     // of comparisons
	removing  retry     // of refused removals
	admitting retry     // of refused Services
}

// admit schedules the next attempt to apply the refused Services. The first attempt after a new refusal
// is early, since the cause may be temporary. tried reports whether the sync tried all of them. Syncs
// for other reasons do not count as attempts.
func (t *timing) admit(s *Schedule, before, refused []apply.Refusal, tried bool, now time.Time) {
	known := func(r apply.Refusal) bool {
		return slices.ContainsFunc(before, func(b apply.Refusal) bool { return b.Service == r.Service })
	}
	a := &t.admitting
	switch first := slices.ContainsFunc(refused, func(r apply.Refusal) bool { return !known(r) }); {
	case len(refused) == 0:
		*a = retry{}
		return
	case first:
		a.failures = 1
	case !tried || now.Before(a.at):
		return
	default:
		a.failures++
	}
	a.at = now.Add(apply.Backoff(a.failures, s.Retry, s.Full))
}

// due returns when the next sync is due; false if only an event makes one due. running reports
// whether a concurrent reading is running, and read whether one has ended.
func (t *timing) due(s *Schedule, state *State, running, read bool) (time.Time, bool) {
	earliest := t.ended.Add(s.Min)
	switch {
	case !state.Known:
		return later(earliest, t.applying.at), true
	case state.Wanted != state.Applied, read:
		return earliest, true
	case running: // the next comparison begins after this one
		return time.Time{}, false
	case state.Doubts != state.Cleared:
		return later(earliest, t.comparing.at), true
	}
	next := t.comparison(s, state)
	if at := later(earliest, t.removing.at); len(state.RefusedRemovals) > 0 && at.Before(next) {
		return at, true // of a Change without changes
	}
	return next, true
}

// comparison returns when the kernel is to be read although nothing happened.
func (t *timing) comparison(s *Schedule, state *State) time.Time {
	next := t.compared.Add(s.Full)
	if len(state.Refused) > 0 && t.admitting.at.Before(next) {
		return t.admitting.at
	}
	return next
}

// comparisonDue reports whether a sync at a time has to read the kernel.
func (t *timing) comparisonDue(s *Schedule, state *State, now time.Time) bool {
	if state.Doubts != state.Cleared {
		return !now.Before(t.comparing.at)
	}
	return !now.Before(t.comparison(s, state))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
