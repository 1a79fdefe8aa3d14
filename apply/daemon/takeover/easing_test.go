package takeover

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// Leftovers that connections use stay until they end, or until the deadline.
func TestEasing(t *testing.T) {
	for _, end := range []string{"connections", "deadline"} {
		conns, removed := 3, 0
		var fails error
		l := apply.Leftover{
			Object: "virtual server",
			Ease:   func(context.Context) (int, error) { return conns, fails },
			Remove: func(context.Context) error { removed++; return nil },
		}
		clock := time.Unix(0, 0)
		e := &easing{deadline: time.Hour, now: func() time.Time { return clock }}
		e.begin(eased{left: []apply.Leftover{l}})
		clock = clock.Add(59 * time.Minute)
		e.begin(eased{left: []apply.Leftover{l}}) // found again: the deadline is unchanged
		step := func(over int, left bool) {
			t.Helper()
			defer func() {
				var want *status.Easing
				if left {
					want = &status.Easing{Since: time.Unix(0, 0), Until: time.Unix(3600, 0), Kept: []status.Kept{{Object: "virtual server", Connections: conns}}}
				}
				if diff := cmp.Diff(want, e.current()); diff != "" {
					t.Errorf("%s: reported (-want +got):\n%s", end, diff)
				}
			}()
			if n, err := e.step(t.Context()); n != over || err != fails || len(e.left) > 0 != left {
				t.Errorf("%s: %d cut off, error %v, left %v; want %d, %v", end, n, err, e.left, over, left)
			}
		}
		step(0, true)
		if end == "connections" {
			conns, fails = 0, errors.New("busy")
			if _, err := e.step(t.Context()); !errors.Is(err, fails) || len(e.left) == 0 {
				t.Errorf("an error ends it: %v, left %v", err, e.left)
			}
			fails = nil
			step(0, false)
			if removed > 0 {
				t.Error("connections were cut off")
			}
			continue
		}
		clock = clock.Add(time.Minute)
		step(3, false)
		if removed != 1 {
			t.Errorf("removed %d times", removed)
		}
	}
}
