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

	"github.com/proxyc/proxyc/apply/applytest"
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
	applytest.Until(t, 2*time.Minute, "no goroutine is in API.Run", func() bool {
		stacks := make([]byte, 1<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "watch.(*API).Run")
	})
}
