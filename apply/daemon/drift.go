package daemon

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

const (
	// driftSpan is the period in which repairs are counted, and their log lines limited.
	driftSpan = time.Minute
	// driftLines bounds the log lines about operations in driftSpan, and the lines with the result of
	// a repair. All operations of the first repair are logged.
	driftLines = 25
	// maxRepairs bounds the counted repairs.
	maxRepairs = 1000
)

// drift records foreign changes of the rules that syncs repaired. It logs the first ones
// completely, and the frequency of continuing ones.
type drift struct {
	log *slog.Logger
	now func() time.Time

	began   time.Time // start of the current driftSpan
	lines   int       // lines about operations logged in it
	results int       // logged in it
	quiet   int       // repairs in it that were not logged

	mu      sync.Mutex
	last    *status.LastDrift // nil if there was none
	repairs []time.Time       // newest repairs; at most maxRepairs
}

// logRepairs logs the repairs of a sync.
func (d *drift) logRepairs(done *reconcile.Done) {
	if d.began.IsZero() || d.now().Sub(d.began) >= driftSpan {
		if d.quiet > 0 {
			d.log.Warn("another program keeps changing the rules: proxyc status shows how often", "not logged", d.quiet, "by", status.Authors(done.DriftBy))
		}
		d.began, d.lines, d.results, d.quiet = d.now(), 0, 0, 0
	}
	lines, more, level := len(done.DriftGone)+len(done.DriftFirst), done.DriftMore, slog.LevelWarn
	args := []any{"operations", done.Drift.Total()}
	if d.lines > 0 && d.lines+lines > driftLines {
		more, level = more+lines, slog.LevelDebug
		args = append(args, "first", firstRepair(done), "by", status.Authors(done.DriftBy))
	} else {
		d.lines += lines
	}
	say := func(msg string, args ...any) { d.log.Log(context.Background(), level, msg, args...) }
	for _, what := range done.DriftGone {
		say("another program removed proxyc's rules", "object", what, "by", status.Authors(done.DriftBy))
	}
	for _, op := range done.DriftFirst {
		of := []any{"repair", op.Verb.String(), "object", op.Object}
		say("another program changed the rules", append(withService(of, op.Service), "by", status.Authors(done.DriftBy),
			"have", strings.Join(op.Have, "; "), "want", strings.Join(op.Want, "; "))...)
	}
	if more > 0 {
		args = append(args, "not logged", more)
	}
	if level = slog.LevelWarn; d.results == driftLines {
		d.quiet++
		level = slog.LevelDebug
	} else {
		d.results++
	}
	say("the rules are repaired", args...)
}

// firstRepair returns what a repair restored first. The rest may be a consequence.
func firstRepair(done *reconcile.Done) string {
	if len(done.DriftGone) > 0 {
		return done.DriftGone[0] + " was removed"
	}
	if len(done.DriftFirst) == 0 {
		return ""
	}
	op := &done.DriftFirst[0]
	text := op.Verb.String() + " " + op.Object
	if len(op.Have) > 0 {
		text += ", which had: " + strings.Join(op.Have, "; ")
	}
	return text
}

// add records the repairs of a sync.
func (d *drift) add(sync *reconcile.Sync) {
	done := &sync.Done
	if done.Drift.Total() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.repairs) == maxRepairs {
		d.repairs = d.repairs[1:]
	}
	d.repairs = append(d.repairs, sync.Ended)
	d.last = &status.LastDrift{At: sync.Ended, Operations: done.Drift, Gone: done.DriftGone, First: done.DriftFirst, More: done.DriftMore, By: done.DriftBy}
}

// repairedSince reports whether there was a repair after a time.
func (d *drift) repairedSince(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.repairs) > 0 && d.repairs[len(d.repairs)-1].After(at)
}

// report adds the last repair to a Status, and the number in the last minute.
func (d *drift) report(st *status.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		return
	}
	last := *d.last
	for _, at := range d.repairs {
		if d.now().Sub(at) < driftSpan {
			last.Recent++
		}
	}
	st.LastDrift = &last
}
