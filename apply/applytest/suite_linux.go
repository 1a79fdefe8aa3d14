package applytest

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"
)

// A Suite is all cases of one mode and family, with the expected results.
type Suite struct {
	Runner *Runner
	Family string
	Dir    fs.FS                  // contains cases/ and expected/MODE.json
	Only   func(name string) bool // selects cases
	Change func(*Case)            // modifies each case before it runs; optional
	Jobs   int                    // concurrent cases
	Record *Records               // receives the outcomes of cases without records; optional
}

// A Score is the result of a Suite.
type Score struct {
	Cases, Flows, Differences int
	LeftOut                   int // cases that require a daemon
	Took                      time.Duration
}

// Play runs the cases. Each difference, and each case that could not be completed, is an error of
// the test.
func (s *Suite) Play(t testing.TB) (score Score) {
	began := time.Now()
	records := s.Record
	var exceptions []Exception
	if records == nil {
		var err error
		if records, exceptions, err = s.records(); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := fs.Sub(s.Dir, "cases")
	if err != nil {
		t.Fatal(err)
	}
	cases, err := LoadCases(dir, s.Family)
	if err != nil {
		t.Fatal(err)
	}
	runner := *s.Runner
	runner.Log = t.Logf
	if s.Record == nil {
		runner.Answered = records.Answered(runner.Mode, s.Family, exceptions)
	}
	jobs := make(chan struct{}, s.Jobs)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, c := range cases {
		if !s.Only(c.Name) || !c.RunsUnder(s.Runner.Mode) {
			continue
		}
		if s.Change != nil {
			s.Change(c)
		}
		jobs <- struct{}{}
		wg.Go(func() {
			defer func() { <-jobs }()
			results, err := runner.Run(context.Background(), c)
			var diffs []Difference
			if s.Record == nil { // otherwise it is being recorded
				diffs = records.Compare(s.Runner.Mode, s.Family, c, results, exceptions)
			}
			mu.Lock()
			defer mu.Unlock()
			if s.Record != nil && err == nil {
				s.Record.Add(s.Family, c.Name, results)
			}
			score.add(t, c, results, err, diffs)
		})
	}
	wg.Wait()
	score.Took = time.Since(began)
	return score
}

// records returns the records of the mode, and the exceptions from them. userspace has no records:
// it is compared with mode iptables, as far as they are equal.
func (s *Suite) records() (*Records, []Exception, error) {
	if s.Runner.Mode != "userspace" {
		records, err := LoadRecords(s.Dir, "expected/"+s.Runner.Mode+".json")
		return records, nil, err
	}
	records, err := LoadRecords(s.Dir, "expected/iptables.json")
	if err != nil {
		return nil, nil, err
	}
	exceptions, err := LoadModeExceptions(s.Dir, s.Runner.Mode)
	return records.FromNode(s.Runner.Mode), exceptions, err
}

// add counts a case that ran, or was skipped.
func (s *Score) add(t testing.TB, c *Case, results []Result, err error, diffs []Difference) {
	if errors.Is(err, ErrNeedsDaemon) {
		s.LeftOut++
		return
	}
	s.Cases++
	s.Flows += len(results)
	s.Differences += len(diffs)
	t.Logf("%s: %d flows, %d differences", c.Name, len(results), len(diffs))
	for _, d := range diffs {
		t.Error(d)
	}
	if err != nil {
		s.Differences++
		t.Errorf("%s: %v", c.Name, err)
	}
}
