package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// A kernel without flowtables is told of once, and all else goes on; one that has them
// makes the table.
func TestWatchFastpath(t *testing.T) {
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", applytest.Services("a"))
	w.start("proxyc", "watch", "--nftables-fastpath", "eth*,cni0")
	w.until("first sync", synced)
	w.holds(5e9, "a", true)
	w.write("cluster.yaml", applytest.Services("a", "b"))
	w.holds(5e9, "b", true)
	tells := within(w, 20*time.Second, "a word about the fast path", func() (counts [2]int, ok bool) {
		counts = [2]int{strings.Count(w.log.String(), "makes no flowtable"), strings.Count(w.log.String(), "take the fast path")}
		return counts, counts != [2]int{}
	})
	_, err := w.ns.Run(w.ns.Command(t.Context(), "nft", "list", "table", "inet", "proxyc-fastpath"))
	want := [2]int{0, 1}
	if err != nil {
		want = [2]int{1, 0}
	}
	w.stop(syscall.SIGTERM)
	if tells != want {
		t.Errorf("the log tells %d times that there is no flowtable, and %d times that there is one; listing it: %v", tells[0], tells[1], err)
	}
}
