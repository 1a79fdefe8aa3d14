package reconcile

import (
	"fmt"
	"time"

	"github.com/proxyc/proxyc/apply"
)

// State is what is wanted and what is known of the kernel. Readiness is a function of it.
type State struct {
	// Wanted is the newest version that the Source announced. Applied is the version
	// that the last successful sync committed.
	Wanted, Applied uint64
	// Doubts counts reasons to think that the kernel differs from Applied: foreign
	// changes, failed syncs and failed readings. Cleared is how many of them had occurred
	// when the last successful Replace or Compare began.
	Doubts, Cleared uint64
	// Known is false while the kernel may hold anything: nothing was read yet, or a sync
	// failed.
	Known bool
	// Err is why the last sync or comparison failed; nil after one that cleared it.
	Err error
	// Refused are the Services that the kernel refuses.
	Refused []apply.Refusal
	// Waiting is when the oldest wanted version that is not applied was announced, or the
	// oldest doubt that is not cleared was raised. It is zero if InForce.
	Waiting time.Time

	wantedAt, doubtedAt time.Time // parts of Waiting
}

// InForce reports whether the kernel holds the wanted version, Refused Services excepted.
func (s *State) InForce() bool {
	return s.Known && s.Applied == s.Wanted && s.Cleared == s.Doubts
}

// NotReady returns why the node is not ready, or "".
func (s *State) NotReady() string {
	switch {
	case s.InForce() && len(s.Refused) > 0:
		return fmt.Sprintf("the kernel refuses the rules of %d Services", len(s.Refused))
	case s.InForce():
		return ""
	case s.Err != nil:
		return s.Err.Error()
	case s.Applied != s.Wanted:
		return "a change is waiting"
	}
	return "another program may have changed the rules: a comparison is waiting"
}

// want notes a new wanted version.
func (s *State) want(now time.Time) {
	if s.Wanted == s.Applied {
		s.wantedAt = now
	}
	s.Wanted++
	s.wait()
}

// doubt notes a reason to think that the kernel differs.
func (s *State) doubt(now time.Time) {
	if s.Doubts == s.Cleared {
		s.doubtedAt = now
	}
	s.Doubts++
	s.wait()
}

// fail notes a sync that failed: the kernel may hold anything.
func (s *State) fail(now time.Time, err error) {
	s.Known, s.Err = false, err
	s.doubt(now)
}

// apply notes that a version is in the kernel. What was announced since waits from now.
func (s *State) apply(version uint64, now time.Time) {
	s.Applied, s.wantedAt = version, now
	s.clearErr()
}

// clear notes that a reading answered the first doubts. Later ones wait from now.
func (s *State) clear(doubts uint64, now time.Time) {
	s.Cleared, s.doubtedAt = max(s.Cleared, doubts), now
	s.clearErr()
}

// clearErr forgets the last error when nothing is left of it.
func (s *State) clearErr() {
	if s.Known && s.Cleared == s.Doubts {
		s.Err = nil
	}
	s.wait()
}

func (s *State) wait() {
	s.Waiting = time.Time{}
	if s.Wanted != s.Applied {
		s.Waiting = s.wantedAt
	}
	if s.Doubts != s.Cleared && (s.Waiting.IsZero() || s.doubtedAt.Before(s.Waiting)) {
		s.Waiting = s.doubtedAt
	}
}
