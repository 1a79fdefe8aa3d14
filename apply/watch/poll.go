package watch

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply/files"
)

const (
	// pollEvery is how often files are examined.
	pollEvery = time.Second
	// maxUnsettled is the number of polls after which files are read although each poll finds another
	// change: a file that always changes does not block the others.
	maxUnsettled = 10
	// clockTick is the longest time in which a second write may leave the time of a file as it is.
	clockTick = 20 * time.Millisecond
	// LongestRetry is the longest wait before a file that could not be read is read again. The cause may
	// be temporary, such as a limit of open files, and removing it changes no file.
	LongestRetry = 30 * time.Second
)

// Poll calls changed in this goroutine until ctx ends: once at the start, after each change of a file
// that the paths lead to, when again requests it, and after the wait that changed returns, unless that
// is 0. It examines the files at intervals of every; 0 for once a second. A change counts when two
// examinations agree, so that a file is not read while it is written.
func Poll(ctx context.Context, paths []string, every time.Duration, again <-chan struct{}, changed func() (retry time.Duration)) {
	ticker := time.NewTicker(cmp.Or(every, pollEvery))
	defer ticker.Stop()
	p := polled{paths: paths}
	for requested := true; ; {
		if requested || p.changed() {
			p.begin()
			p.retry(changed())
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			requested = true
		case <-ticker.C:
			requested = !p.due.IsZero() && !time.Now().Before(p.due)
		}
	}
}

// polled is the state of files that are polled.
type polled struct {
	paths      []string
	read, last state     // at the last read, and at the last poll
	unsettled  int       // polls since the last read that found changes
	due        time.Time // of the next read without a change; zero for never
}

// changed reports whether the files changed since the last read and are at rest.
func (p *polled) changed() bool {
	now, last := examine(p.paths), p.last
	if p.last = now; now.equal(p.read) {
		p.unsettled = 0
		return false
	}
	p.unsettled++
	return now.equal(last) || p.unsettled >= maxUnsettled
}

// begin records the state before a read, so that a change meanwhile counts as later.
func (p *polled) begin() {
	p.read, p.unsettled = examine(p.paths), 0
	if p.read.youngest() < clockTick {
		time.Sleep(clockTick)
		p.read = examine(p.paths)
	}
}

func (p *polled) retry(wait time.Duration) {
	if p.due = (time.Time{}); wait > 0 {
		p.due = time.Now().Add(wait)
	}
}

// state describes the files that paths lead to.
type state struct {
	files    []files.File
	problems []string // why others cannot be examined
}

// examine follows links: a file changes, too, when a link or a directory on the way is replaced, as in
// a ConfigMap volume.
func examine(paths []string) (s state) {
	for _, path := range paths {
		found, err := files.Find(regular{}, path, nil)
		if err != nil {
			s.problems = append(s.problems, err.Error())
			continue
		}
		s.files = append(s.files, found.Files...)
		for _, u := range found.Unreadable {
			s.problems = append(s.problems, u.Name+": "+u.Err.Error())
		}
		for _, p := range found.Passed {
			s.problems = append(s.problems, p.Name+": "+p.Is)
		}
	}
	return s
}

func (s state) equal(o state) bool {
	return slices.Equal(s.problems, o.problems) && slices.EqualFunc(s.files, o.files, func(a, b files.File) bool {
		return a.Name == b.Name && os.SameFile(a.Info, b.Info) && a.Info.Mode() == b.Info.Mode() &&
			a.Info.Size() == b.Info.Size() && a.Info.ModTime().Equal(b.Info.ModTime())
	})
}

// youngest returns how long ago a file was written last. A time in the future is none.
func (s state) youngest() time.Duration {
	now, young := time.Now(), pollEvery
	for _, f := range s.files {
		if age := now.Sub(f.Info.ModTime()); age >= 0 {
			young = min(young, age)
		}
	}
	return young
}
