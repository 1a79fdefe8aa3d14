package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/status"
)

// Foreign tables are checked at most at an interval, for any number of requests for the status,
// including canceled ones. A request during a blocked check receives the previous result.
func TestNeighbors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		answer := make(chan string)
		n := newForeignRules(func(ctx context.Context) (apply.Interference, error) {
			looks.Add(1)
			return apply.Interference{Drops: []string{<-answer}}, ctx.Err()
		}, slog.New(slog.DiscardHandler), time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go n.run(ctx)
		gone, leave := context.WithCancel(t.Context())
		for range 100 {
			go func() {
				if found, err := n.get(gone); err == nil {
					t.Errorf("who is gone got %v", found)
				}
			}()
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		if found, err := n.get(t.Context()); err == nil {
			t.Errorf("got %v before the first look ended", found)
		}
		var early status.Status
		if n.report(t.Context(), &early); len(early.Settings) != 1 || !strings.Contains(early.Settings[0], "none are known yet") {
			t.Errorf("before the first look ended: %q", early.Settings)
		}
		answer <- "first"
		synctest.Wait()
		is := func(want string, looked int32) {
			t.Helper()
			if found, err := n.get(t.Context()); err != nil || len(found.Drops) != 1 || found.Drops[0] != want || looks.Load() != looked {
				t.Errorf("got %v, %v, after %d looks, want %q after %d", found, err, looks.Load(), want, looked)
			}
		}
		is("first", 1)
		time.Sleep(foreignInterval)
		began := time.Now()
		is("first", 2)
		if waited := time.Since(began); waited != foreignWait {
			t.Errorf("waited %s for a look that takes long", waited)
		}
		var st status.Status
		if n.report(t.Context(), &st); len(st.Settings) != 1 || !strings.Contains(st.Settings[0], "still being read: those shown are of "+n.at.Format(time.RFC3339)) {
			t.Errorf("the age of the previous result is not reported: %q", st.Settings)
		}
		answer <- "second"
		synctest.Wait()
		is("second", 2)
	})
}

// Foreign rules are logged once, and once when they are removed.
func TestToldRules(t *testing.T) {
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	var logged loggedRules
	for range 3 {
		logged.update(log, apply.Interference{Drops: []string{"nft ip filter forward"}, Diverts: []string{"iptables nat PREROUTING"}})
	}
	logged.update(log, apply.Interference{Drops: []string{"nft ip filter forward"}})
	for want, times := range map[string]int{
		`level=WARN msg="a foreign rule may drop packets to Services" rule="nft ip filter forward"`:                    1,
		`level=WARN msg="a foreign rule may divert packets from the rules of Services" rule="iptables nat PREROUTING"`: 1,
		`level=INFO msg="a foreign rule or setting was removed" rule="iptables nat PREROUTING"`:                        1,
	} {
		if n := strings.Count(said.String(), want); n != times {
			t.Errorf("%q is reported %d times, want %d:\n%s", want, n, times, said.String())
		}
	}
}
