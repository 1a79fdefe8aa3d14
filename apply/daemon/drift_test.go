package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
)

// tableGone is the result of a sync that found our table deleted.
var tableGone = reconcile.Done{Drift: apply.Count{Added: 88}, DriftGone: []string{"table ip proxyc"}, DriftBy: []string{"nft (process 7)"}}

// A program that changes the rules continuously is reported with its frequency. The status is not
// well until a minute has passed.
func TestStatusFought(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := newTestStatus(ir.ModeNFTables, func() time.Time { return now })
	for i := range 18 {
		st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now, Done: tableGone})
		st.setSynced(true)
		well, got := printed(t, st.reported(0))
		if fought := i >= 2; well == fought || strings.Contains(got, "fought") != fought {
			t.Errorf("after repair %d, well: %t:\n%s", i+1, well, got)
		}
		now = now.Add(time.Second)
	}
	_, got := printed(t, st.reported(0))
	for _, want := range []string{
		"fought       rules were changed and repaired 18 times in the last minute: stop the program that changes them (nft (process 7))\n",
		"last drift   2026-01-02T03:04:22Z: 88 added, 0 changed, 0 removed\n             by nft (process 7)\n             table ip proxyc is gone\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in:\n%s", want, got)
		}
	}
	now = now.Add(time.Minute)
	if well, got := printed(t, st.reported(0)); !well || strings.Contains(got, "fought") || !strings.Contains(got, "last drift") {
		t.Errorf("a minute after, well: %t:\n%s", well, got)
	}
	more := reconcile.Done{Drift: apply.Count{Added: 30}, DriftFirst: []apply.Operation{{Verb: apply.Add, Object: "ip proxyc set a"}}, DriftMore: 29}
	st.synced(&reconcile.Sync{Kind: reconcile.Full, Ended: now, Done: more})
	st.setSynced(true)
	if _, got := printed(t, st.reported(0)); !strings.Contains(got, "             add ip proxyc set a\n             and 29 more\n") {
		t.Errorf("a list that is cut does not say what follows:\n%s", got)
	}
}

// The number of log lines about repairs is bounded. A Service is named only if there is one.
func TestDriftLog(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var said bytes.Buffer
	l := &drift{log: slog.New(slog.NewTextHandler(&said, nil)), now: func() time.Time { return now }}
	change := reconcile.Done{Drift: apply.Count{Added: 90, Changed: 1}, DriftBy: []string{"nft (process 7)"}, DriftMore: 71}
	for range 20 {
		change.DriftFirst = append(change.DriftFirst, apply.Operation{Verb: apply.Change, Object: "ip proxyc chain services", Have: []string{"drop"}})
	}
	l.logRepairs(&change)
	if n := strings.Count(said.String(), "\n"); n != 21 {
		t.Errorf("the first repair is reported in %d lines, want 21:\n%s", n, said.String())
	}
	if got := said.String(); strings.Contains(got, "service=") || !strings.Contains(got, `by="nft (process 7)" have=drop`) || !strings.Contains(got, `operations=91 "not logged"=71`) {
		t.Errorf("said:\n%s", got)
	}
	for range 150 { // one each 0.4 s
		l.logRepairs(&tableGone)
		now = now.Add(400 * time.Millisecond)
	}
	if got := said.String(); !strings.Contains(got, `msg="the rules are repaired" operations=88 first="table ip proxyc was removed" by="nft (process 7)" "not logged"=1`) {
		t.Errorf("a repair whose operations are not logged is not logged either:\n%s", got)
	}
	if n := strings.Count(said.String(), "\n"); n > 50 {
		t.Errorf("%d lines in a minute:\n%s", n, said.String())
	}
	l.logRepairs(&tableGone)
	if got := said.String(); !strings.Contains(got, `msg="another program keeps changing the rules: proxyc status shows how often" "not logged"=126`) ||
		!strings.Contains(got, `msg="another program removed proxyc's rules" object="table ip proxyc" by="nft (process 7)"`) {
		t.Errorf("said after a minute:\n%s", got)
	}
	l.logRepairs(&change)
	said.Reset()
	l.logRepairs(&reconcile.Done{Drift: apply.Count{Added: 30, Changed: 1}, DriftBy: change.DriftBy, DriftMore: 11,
		DriftFirst: append([]apply.Operation{{Verb: apply.Change, Object: "table ip proxyc", Have: []string{"flags dormant"}}}, change.DriftFirst[1:]...)})
	if got := said.String(); !strings.Contains(got, `operations=31 first="change table ip proxyc, which had: flags dormant" by="nft (process 7)" "not logged"=31`) {
		t.Errorf("a repair beyond the limit: said:\n%s", got)
	}
}
