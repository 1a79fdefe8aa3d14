package monitor

import (
	"fmt"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// Changes made in OwnMuted send no notifications. A foreign transaction at the same time is reported
// as an unknown change, and later ones are reported as usual.
func TestOwnMuted(t *testing.T) {
	reported := make(chan bool, 100)
	m, nft := listening(t, func(missed error) { reported <- missed != nil })
	done := make(chan struct{})
	go func() { defer close(done); m.Run(t.Context()) }()
	t.Cleanup(func() { m.Close(); <-done })
	wait := func(what string, want bool) {
		t.Helper()
		select {
		case missed := <-reported:
			if missed != want {
				t.Fatalf("%s is reported with missed %t, want %t", what, missed, want)
			}
		case <-time.After(applytest.ScaledTimeout(20 * time.Second)):
			t.Fatalf("%s is not reported", what)
		}
	}
	nft("table ip proxyc { set s { type ipv4_addr; }; }")
	wait("a transaction of another program", false)

	work := func(others int) func() uint32 {
		return func() uint32 {
			for i := range 2 + others { // two count as ours
				nft(fmt.Sprintf("add element ip proxyc s { 10.0.0.%d }", i))
			}
			return 2
		}
	}
	m.OwnMuted(work(0))
	if len(reported) > 0 {
		t.Fatalf("of our own work %d tokens are reported", len(reported))
	}
	nft("add element ip proxyc s { 10.0.1.1 }")
	wait("a transaction after the work", false)

	m.OwnMuted(work(1))
	wait("another's transaction beside the work", true)
	nft("add element ip proxyc s { 10.0.1.2 }")
	wait("a transaction after that", false)
}
