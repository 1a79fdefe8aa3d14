package reconcile

import (
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
)

func TestSchedule(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type step struct {
		name  string
		ask   Kind
		due   time.Duration // after the step before ended; negative: at once
		kind  Kind
		takes time.Duration
		fails bool
	}
	const atOnce = -1
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"changes", []step{
			{name: "the first is full", ask: Change, due: atOnce, kind: Full, takes: 2 * time.Second},
			{name: "not sooner than Min after the end", ask: Change, due: time.Second, kind: Change},
			{name: "a request for more wins", ask: Full, due: time.Second, kind: Full},
			{name: "quiet ends with a comparison", due: time.Hour, kind: Full},
		}},
		{"failures", []step{
			{name: "first", ask: Change, due: atOnce, kind: Full},
			{name: "fails", ask: Change, due: time.Second, kind: Change, fails: true},
			{name: "again, comparing everything", due: time.Second, kind: Full, fails: true},
			{name: "waits twice as long", due: 2 * time.Second, kind: Full, fails: true},
			{name: "and again", due: 4 * time.Second, kind: Full, fails: true},
			{name: "a change comes sooner", ask: Change, due: time.Second, kind: Full, fails: true},
			{name: "up to Retry", due: 10 * time.Second, kind: Full, fails: true},
			{name: "and no longer", due: 10 * time.Second, kind: Full},
			{name: "then as before", ask: Change, due: time.Second, kind: Change},
		}},
		{"full ones count from the last full one", []step{
			{name: "first", ask: Change, due: atOnce, kind: Full},
			{name: "change", ask: Change, due: time.Second, kind: Change, takes: 10 * time.Minute},
			{name: "full", due: time.Hour - time.Second - 10*time.Minute, kind: Full},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Schedule{Min: time.Second, Retry: 10 * time.Second, Full: time.Hour}
			now := begin
			for _, st := range tc.steps {
				s.Ask(st.ask)
				at := s.Next()
				switch {
				case st.due == atOnce && at.After(now):
					t.Fatalf("%s: due at %v, want at once", st.name, at)
				case st.due != atOnce && !at.Equal(now.Add(st.due)):
					t.Fatalf("%s: due after %v, want %v", st.name, at.Sub(now), st.due)
				case st.due != atOnce:
					now = at
				}
				if k := s.Begin(); k != st.kind {
					t.Fatalf("%s: %v, want %v", st.name, k, st.kind)
				}
				now = now.Add(st.takes)
				s.End(st.kind, now, !st.fails)
			}
		})
	}
}

func TestFirstChangeAfterQuiet(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := Schedule{Min: time.Second, Retry: time.Minute, Full: time.Hour}
	s.Ask(Full)
	s.End(s.Begin(), now, true)
	now = now.Add(5 * time.Second)
	s.Ask(Change)
	if s.Next().After(now) {
		t.Errorf("due at %v, want at once", s.Next())
	}
}

func TestNoMin(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := Schedule{Retry: time.Minute, Full: time.Hour}
	s.Ask(Full)
	s.End(s.Begin(), now, false)
	if wait := s.Next().Sub(now); wait != apply.FirstRetry {
		t.Errorf("tried again after %v, want %v", wait, apply.FirstRetry)
	}
	s.Ask(Change)
	if s.Next().After(now) {
		t.Errorf("due at %v, want at once", s.Next())
	}
}
