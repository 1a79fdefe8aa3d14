package takeover

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/watch"
)

// peerNode is a node on which kube-proxy may run.
type peerNode struct {
	*peer
	at       time.Time
	there    bool
	runs     string // its visible process
	rules    uint64
	repairs  bool
	busy     error // error of the removal
	removals int
	events   int
}

func newPeerNode() *peerNode {
	n := &peerNode{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	n.peer = &peer{
		probes: probes{
			objects: func() ([]string, error) {
				if n.there {
					return []string{"table ip kube-proxy"}, nil
				}
				return nil, nil
			},
			process:  func() string { return n.runs },
			digest:   func() uint64 { return n.rules },
			repaired: func(time.Time) bool { return n.repairs },
		},
		remove: func(context.Context) error {
			if n.removals++; n.busy == nil {
				n.there = false
			}
			return n.busy
		},
		now:  func() time.Time { return n.at },
		log:  slog.New(slog.DiscardHandler),
		send: func(watch.Event) { n.events++ },
	}
	return n
}

// after runs a step every two seconds for some time.
func (n *peerNode) after(t *testing.T, d time.Duration) {
	for end := n.at.Add(d); n.at.Before(end); {
		n.at = n.at.Add(checkInterval)
		n.step(t.Context())
	}
}

// wants checks the state, how often the rules were removed, and whether the daemon may be ready.
func (n *peerNode) wants(t *testing.T, what string, s status.KubeProxyState, removals int) {
	t.Helper()
	got := status.KubeProxyState("")
	if n.published.Load() != nil {
		got = n.published.Load().State
	}
	if got != s || n.removals != removals {
		t.Errorf("%s: %q, removed %d times, want %q and %d", what, got, n.removals, s, removals)
	}
	if ready := n.published.Load().Warning() == ""; ready != !n.there {
		t.Errorf("%s: rules of kube-proxy are there: %t, ready: %t", what, n.there, ready)
	}
}

// A kube-proxy that is visible keeps its rules as long as it runs, however long it changes
// nothing. Once it has ended, they go within a minute.
func TestPeerProcess(t *testing.T) {
	n := newPeerNode()
	n.begin()
	n.after(t, time.Minute)
	n.wants(t, "nothing", "", 0)
	n.there, n.runs = true, "process 4711"
	n.after(t, checkInterval)
	n.wants(t, "it came", status.Maintained, 0)
	want := &status.KubeProxy{State: status.Maintained, Since: n.at, Objects: []string{"table ip kube-proxy"}, Process: "process 4711"}
	n.after(t, time.Hour)
	n.wants(t, "it runs", status.Maintained, 0)
	if d := cmp.Diff(want, n.published.Load()); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
	n.runs = ""
	n.after(t, 10*time.Second)
	n.wants(t, "it ended just now", status.Maintained, 0)
	n.runs = "process 4712"
	n.after(t, time.Hour)
	n.wants(t, "it was restarted", status.Maintained, 0)
	n.runs = ""
	n.after(t, 30*time.Second)
	n.wants(t, "it ended", status.Removed, 1)
	n.after(t, time.Hour)
	n.wants(t, "long after", status.Removed, 1)
	if n.events != 1 {
		t.Errorf("%d events, want 1", n.events)
	}
}

// A kube-proxy that cannot be seen keeps its rules as long as it changes them.
func TestPeerChanges(t *testing.T) {
	for name, change := range map[string]func(*peerNode){
		"its own":    func(n *peerNode) { n.rules++ },
		"the shared": func(n *peerNode) { n.repairs = true },
	} {
		n := newPeerNode()
		n.begin()
		n.there = true
		for range 100 {
			change(n)
			n.after(t, 16*time.Second)
		}
		n.wants(t, name+": it changes its rules", status.Maintained, 0)
		n.repairs = false
		n.after(t, 50*time.Second)
		n.wants(t, name+": it has ended", status.Removed, 1)
	}
}

// Rules that return after a removal are removed less and less often: 12 times in the first hour.
func TestPeerReturns(t *testing.T) {
	n := newPeerNode()
	n.begin()
	for end := n.at.Add(time.Hour); n.at.Before(end); {
		n.there = true // as kube-proxy of mode iptables writes its rules again
		n.after(t, checkInterval)
	}
	if n.removals < 10 || n.removals > 16 || n.events > n.removals+1 {
		t.Errorf("removed %d times in an hour, %d events", n.removals, n.events)
	}
	n.there = false
	n.after(t, returnPeriod)
	n.wants(t, "it is gone", "", n.removals)
	removals := n.removals
	n.there = true
	n.after(t, 30*time.Second)
	n.wants(t, "it comes long after", status.Removed, removals+1)
}

// A removal that fails goes on to count as not done, and is asked for again.
func TestPeerRemovalFails(t *testing.T) {
	n := newPeerNode()
	n.begin()
	n.there, n.busy = true, errors.New("busy")
	n.after(t, 60*time.Second)
	n.wants(t, "it fails", status.LeftOver, 2)
	n.busy = nil
	n.after(t, 20*time.Second)
	n.wants(t, "it succeeds", status.Removed, 3)

	n.there, n.busy = true, errors.New("busy")
	n.after(t, 45*time.Second)
	n.wants(t, "it fails again", status.LeftOver, 4)
	n.runs = "process 1"
	n.after(t, time.Minute)
	n.wants(t, "kube-proxy was started meanwhile", status.Maintained, 4)
	n.there = false
	n.after(t, checkInterval)
	n.wants(t, "kube-proxy removed its rules", "", 4)
}

// What is there before the first sync is left over, as that takes it over. If it stays, kube-proxy
// wrote it again, and it is removed once more at most.
func TestPeerBeforeStart(t *testing.T) {
	n := newPeerNode()
	n.there = true
	n.begin()
	n.wants(t, "at the start", status.LeftOver, 0)
	n.there = false
	n.after(t, checkInterval)
	n.wants(t, "after the first sync", status.Removed, 0)

	n = newPeerNode()
	n.there = true
	n.begin()
	n.after(t, minTimeout)
	n.wants(t, "the first sync did not remove it", status.Removed, 1)
	if d := cmp.Diff(&status.KubeProxy{State: status.Removed, Objects: []string{"table ip kube-proxy"}}, n.published.Load(), cmpopts.IgnoreFields(status.KubeProxy{}, "Since")); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
}
