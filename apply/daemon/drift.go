package daemon

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
)

const (
	// driftSpan is the period in which repairs are counted, and their log lines limited.
	driftSpan = time.Minute
	// fought is the number of repairs in driftSpan above which another program is considered to change
	// the rules continuously.
	fought = 3
	// driftLines bounds the log lines about repairs in driftSpan, except those about the first.
	driftLines = 25
	// mostRepairs bounds the counted repairs.
	mostRepairs = 1000
)

// drift records foreign changes of the rules that syncs repaired. It logs the first ones
// completely, and the frequency of continuing ones.
type drift struct {
	log *slog.Logger
	now func() time.Time

	began time.Time // start of the current driftSpan
	lines int       // lines logged in it
	quiet int       // repairs in it that were not logged

	mu      sync.Mutex
	last    *LastDrift  // nil if there was none
	repairs []time.Time // newest repairs; at most mostRepairs
}

// tell logs the repairs of a sync.
func (d *drift) tell(done *reconcile.Done) {
	if d.began.IsZero() || d.now().Sub(d.began) >= driftSpan {
		if d.quiet > 0 {
			d.log.Warn("somebody else goes on to change the rules: proxyc status tells how often", "not told", d.quiet, "by", by(done.DriftBy))
		}
		d.began, d.lines, d.quiet = d.now(), 0, 0
	}
	lines := len(done.DriftGone) + len(done.DriftFirst) + 1
	level := slog.LevelWarn
	if d.lines > 0 && d.lines+lines > driftLines {
		d.quiet++
		level = slog.LevelDebug
	} else {
		d.lines += lines
	}
	say := func(msg string, args ...any) { d.log.Log(context.Background(), level, msg, args...) }
	for _, what := range done.DriftGone {
		say("somebody else removed what is ours: it is gone", "object", what, "by", by(done.DriftBy))
	}
	for _, op := range done.DriftFirst {
		args := []any{"repair", op.Verb.String(), "object", op.Object}
		say("somebody else changed the rules", append(withService(args, op.Service), "by", by(done.DriftBy),
			"have", strings.Join(op.Have, "; "), "want", strings.Join(op.Want, "; "))...)
	}
	args := []any{"operations", total(done.Drift)}
	if done.DriftMore > 0 {
		args = append(args, "not told", done.DriftMore)
	}
	say("the rules are repaired", args...)
}

// by returns the names of the programs that changed the rules, for messages.
func by(programs []string) string {
	if len(programs) == 0 {
		return "unknown"
	}
	return strings.Join(programs, ", ")
}

// LastDrift describes the last foreign change, and how often there were any.
type LastDrift struct {
	At         time.Time   `json:"at"`
	Operations apply.Count `json:"operations"`
	// Gone are objects that were missing completely: "table ip proxyc". First does not contain the
	// operations that restored their content.
	Gone []string `json:"gone,omitempty"`
	// First are the first repairs, with the values found. More is the number of further ones.
	First []apply.Operation `json:"first"`
	More  int               `json:"more,omitempty"`
	// By are the programs that made the change, if the kernel reports them: "nft (process 4711)".
	By []string `json:"by,omitempty"`
	// Lately is the number of repairs in the last minute.
	Lately int `json:"lately,omitempty"`
}

// add records the repairs of a sync.
func (d *drift) add(sync *reconcile.Sync) {
	done := &sync.Done
	if total(done.Drift) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.repairs) == mostRepairs {
		d.repairs = d.repairs[1:]
	}
	d.repairs = append(d.repairs, sync.Ended)
	d.last = &LastDrift{At: sync.Ended, Operations: done.Drift, Gone: done.DriftGone, First: done.DriftFirst, More: done.DriftMore, By: done.DriftBy}
}

// repairedSince reports whether there was a repair after a time.
func (d *drift) repairedSince(at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.repairs) > 0 && d.repairs[len(d.repairs)-1].After(at)
}

// report adds the last repair to a Status, and the number in the last minute.
func (d *drift) report(st *Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		return
	}
	last := *d.last
	for _, at := range d.repairs {
		if d.now().Sub(at) < driftSpan {
			last.Lately++
		}
	}
	st.LastDrift = &last
}

// fought reports whether another program changes the rules continuously.
func (d *LastDrift) fought() bool { return d != nil && d.Lately >= fought }

// print prints the last repair.
func (d *LastDrift) print(line func(name, format string, args ...any)) {
	if d.fought() {
		line("fought", "rules were changed by somebody else %d times in the last minute, and repaired: find out who it is, and stop that (%s)", d.Lately, by(d.By))
	}
	line("last drift", "%s: %s", d.At.Format(time.RFC3339), d.Operations)
	if len(d.By) > 0 {
		line("", "by %s", by(d.By))
	}
	for _, what := range d.Gone {
		line("", "%s is gone", what)
	}
	for _, op := range d.First {
		line("", "%s %s", op.Verb, op.Object)
		for _, l := range op.Have {
			line("", "  have: %s", l)
		}
		for _, l := range op.Want {
			line("", "  want: %s", l)
		}
	}
	if d.More > 0 {
		line("", "and %d more", d.More)
	}
}
