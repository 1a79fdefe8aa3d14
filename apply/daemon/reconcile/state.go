package reconcile

import (
	"fmt"
	"time"

	"github.com/proxyc/proxyc/apply"
)

// State is the desired state and the knowledge about the kernel. Readiness is a function of it.
type State struct {
	// Wanted is the newest version that the Source reported. Applied is the version that the last
	// successful sync committed.
	Wanted, Applied uint64
	// Doubts counts reasons why the kernel may differ from Applied: foreign changes, failed syncs and
	// failed readings. Cleared is the value of Doubts when the last successful Replace or Compare
	// began.
	Doubts, Cleared uint64
	// Known is false while the kernel's content is unknown: nothing was read yet, or a sync failed.
	Known bool
	// Err is the error of the last sync or comparison; nil after one that cleared it.
	Err error
	// Refused are the Services that the kernel refuses.
	Refused []apply.Refusal
	// RefusedRemovals are the objects that the kernel refuses to remove.
	RefusedRemovals []apply.Refusal
	// Waiting is the time of the oldest version that is not applied, or of the oldest doubt that is not
	// cleared. It is zero if InForce.
	Waiting time.Time

	wantedAt, doubtedAt time.Time // parts of Waiting
}

// InForce reports whether the kernel contains the wanted version, except what it refuses.
func (s *State) InForce() bool {
	return s.Known && s.Applied == s.Wanted && s.Cleared == s.Doubts
}

// NotReady returns why the node is not ready, or "".
func (s *State) NotReady() string {
	switch {
	case s.InForce() && len(s.Refused) > 0:
		return fmt.Sprintf("the kernel refuses the rules of %d Services", len(s.Refused))
	case s.InForce() && len(s.RefusedRemovals) > 0:
		return fmt.Sprintf("clients reach %d removed objects: %v", len(s.RefusedRemovals), &s.RefusedRemovals[0])
	case s.InForce():
		return ""
	case s.Err != nil:
		return s.Err.Error()
	case s.Applied != s.Wanted:
		return "a change is pending"
	}
	return "another program may have changed the rules: a full sync is pending"
}

// want records a new wanted version.
func (s *State) want(now time.Time) {
	if s.Wanted == s.Applied {
		s.wantedAt = now
	}
	s.Wanted++
	s.wait()
}

// doubt records a reason why the kernel may differ.
func (s *State) doubt(now time.Time) {
	if s.Doubts == s.Cleared {
		s.doubtedAt = now
	}
	s.Doubts++
	s.wait()
}

// fail records a failed sync. The kernel's content is unknown afterwards.
func (s *State) fail(now time.Time, err error) {
	s.Known, s.Err = false, err
	s.doubt(now)
}

// apply records that the kernel contains a version. Later versions wait from now on.
func (s *State) apply(version uint64, now time.Time) {
	if version != s.Applied {
		s.Applied, s.wantedAt = version, now
	}
	s.clearErr()
}

// clear records that a reading cleared the first doubts. Later ones wait from now on.
func (s *State) clear(doubts uint64, now time.Time) {
	s.Cleared, s.doubtedAt = max(s.Cleared, doubts), now
	s.clearErr()
}

// clearErr removes the last error if it has no effect any more.
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
