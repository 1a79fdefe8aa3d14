package watch

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// No goroutine outlives Run, even if the server never responded.
func TestRunEndsWhole(t *testing.T) {
	tried := make(chan struct{}, 100)
	a := &API{NodeName: "node1", Store: NewStore(time.Now), Log: slog.New(slog.DiscardHandler), NodeState: func(*NodeState) {}}
	if err := a.connect(&rest.Config{Host: "http://192.0.2.1", Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		tried <- struct{}{}
		return nil, errors.New("unreachable")
	})}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run(ctx, func() { t.Error("synced") })
	}()
	<-tried
	cancel()
	<-ended
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !strings.Contains(string(stacks), "watch.(*API).Run") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("something goes on:\n%s", stacks)
		}
	}
}
