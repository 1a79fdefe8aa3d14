package takeover

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Removal is tried until it succeeds. Whoever requests it meanwhile gets a round of its own.
func TestRunRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, began := errors.New("busy"), time.Now()
		outcomes := []error{busy, busy, busy, nil, busy, nil}
		var log []string
		ctx, cancel := context.WithCancel(t.Context())
		taken := New(Options{Retry: time.Minute})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			taken.Run(ctx, func(context.Context) error {
				err := outcomes[0]
				outcomes = outcomes[1:]
				log = append(log, fmt.Sprintf("%v: %v", time.Since(began), err))
				time.Sleep(100 * time.Millisecond)
				return err
			})
		}()
		time.Sleep(7*time.Second + 350*time.Millisecond) // during the round that succeeds
		if err := taken.request(ctx); err != busy {
			t.Errorf("the request returned %v, want the error of a round that began after it", err)
		}
		time.Sleep(time.Minute)
		cancel()
		<-ended
		want := []string{"0s: busy", "1.1s: busy", "3.2s: busy", "7.3s: <nil>", "7.4s: busy", "8.5s: <nil>"}
		if d := cmp.Diff(want, log); d != "" {
			t.Errorf("rounds (-want +got):\n%s", d)
		}
	})
}
