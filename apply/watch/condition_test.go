package watch

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/apply/applytest"
)

// The condition is written only if it differs from the actual state, or is from before the machine
// started.
func TestNodeConditionDue(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	whole, booted := now.Truncate(time.Second), now.Add(-time.Hour)
	lately, before := now.Add(-time.Minute), booted.Add(-time.Hour)
	in := Condition{Status: True, Reason: "RulesInForce"}
	starting := Condition{Status: False, Reason: "Starting"}
	behind := Condition{Status: False, Reason: "Behind", Message: "why"}
	stale := Condition{Status: Unknown, Reason: "InputStale"}
	since := func(c Condition, at time.Time) *Condition {
		c.Since = at
		return &c
	}
	for _, tt := range []struct {
		name   string
		have   *Condition
		want   Condition
		unsure bool
		write  *Condition
	}{
		{name: "first rules on a new node", want: in, write: since(in, whole)},
		{name: "a start on a new node", want: starting, unsure: true},
		{name: "a start on a new node that takes too long", want: starting, write: since(starting, whole)},
		{name: "first rules", have: since(starting, lately), want: in, write: since(in, whole)},
		{name: "nothing new", have: since(in, lately), want: in},
		{name: "a detail", have: since(behind, lately), want: Condition{Status: False, Reason: "Behind", Message: "another"}},
		{name: "behind", have: since(in, lately), want: behind, write: since(behind, whole)},
		{name: "another reason of the same status", have: since(starting, lately), want: behind, write: since(behind, lately)},
		{name: "stale", have: since(in, lately), want: stale, write: since(stale, whole)},
		{name: "a restart", have: since(in, lately), want: starting, unsure: true},
		{name: "a restart that takes too long", have: since(in, lately), want: starting, write: since(starting, whole)},
		{name: "the machine's start", have: since(in, before), want: starting, unsure: true, write: since(starting, whole)},
		{name: "the machine's start, and rules at once", have: since(in, before), want: in, write: since(in, whole)},
		{name: "the machine's start, and it was not true before", have: since(starting, before), want: starting, unsure: true},
	} {
		c := NewNodeCondition("node1", slog.New(slog.DiscardHandler), booted, func() (Condition, bool) { return tt.want, !tt.unsure })
		c.Now = func() time.Time { return now }
		if got := c.due(); got != nil {
			t.Errorf("%s: %+v is written without a Node", tt.name, got)
		}
		c.observe(true, tt.have)
		if diff := cmp.Diff(tt.write, c.due()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A true condition is written once, and at most once more if the node's clock is set by hours.
func TestNodeConditionClockSet(t *testing.T) {
	for _, tt := range []struct {
		by       time.Duration
		at, want int // numbers of the check at which the clock is set, and of writes
	}{{-5 * time.Hour, 0, 1}, {5 * time.Hour, 0, 1}, {-5 * time.Hour, 10, 1}, {5 * time.Hour, 10, 2}} {
		start := time.Now()
		c := NewNodeCondition("node1", slog.New(slog.DiscardHandler), start.Add(-time.Hour), func() (Condition, bool) {
			return Condition{Status: True, Reason: "RulesInForce"}, true
		})
		writes := 0
		c.observe(true, nil)
		for i := range 100 {
			now := start.Add(time.Duration(i) * conditionCheck)
			if i >= tt.at {
				now = applytest.ClockSet(now, tt.by)
			}
			c.Now = func() time.Time { return now }
			if next := c.due(); next != nil {
				writes++
				c.observe(true, next)
			}
		}
		if writes != tt.want {
			t.Errorf("set by %s at look %d: %d writes, want %d", tt.by, tt.at, writes, tt.want)
		}
	}
}

// A change is written once, to the Node's status. A failed write is retried after a wait.
func TestNodeConditionIsWritten(t *testing.T) {
	type request struct{ Method, Path, Type, Status string }
	requests := make(chan request, 10)
	refuse := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var patch struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err := json.Unmarshal(body, &patch); err != nil || len(patch.Status.Conditions) != 1 {
			t.Errorf("%v: %s", err, body)
			return
		}
		set := patch.Status.Conditions[0]
		requests <- request{r.Method + " " + r.Header.Get("Content-Type"), r.URL.Path, set.Type, set.Status}
		w.Header().Set("Content-Type", "application/json")
		if refuse {
			refuse = false
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
			return
		}
		io.WriteString(w, `{"kind":"Node","apiVersion":"v1"}`)
	}))
	t.Cleanup(server.Close)
	clients, err := newClients(&rest.Config{Host: server.URL}, NewContact(slog.New(slog.DiscardHandler), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	now := make(chan time.Time, 100) // one value is received for each check, and for each write
	c := NewNodeCondition("node1", slog.New(slog.DiscardHandler), time.Time{}, func() (Condition, bool) { return Condition{Status: True}, true })
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := start
	c.Now = func() time.Time {
		select {
		case at = <-now:
		default:
		}
		return at
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.run(ctx, clients.core) }()
	look := func() { c.triggered <- struct{}{}; c.triggered <- struct{}{} } // when the second poke is received, the first was processed
	c.observe(true, nil)
	look() // the server refuses the first write
	now <- start.Add(conditionRetry - time.Second)
	look() // too soon
	if n := len(requests); n != 1 {
		t.Errorf("%d requests, want 1 that was refused", n)
	}
	now <- start.Add(2 * conditionRetry)
	look()
	for i := range 3 {
		now <- start.Add(time.Duration(i+10) * conditionRetry)
		look()
	}
	end()
	<-done
	close(requests)
	var got []request
	for r := range requests {
		got = append(got, r)
	}
	once := request{"PATCH application/strategic-merge-patch+json", "/api/v1/nodes/node1/status", "ServicesProgrammed", "True"}
	if diff := cmp.Diff([]request{once, once}, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
