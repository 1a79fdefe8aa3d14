package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// catchUp is how long a daemon may need to follow after it was cut off. client-go waits up to 30
// s between tries, and syncs are a second apart.
const catchUp = 45 * time.Second

// TestServerKilled kills the API server and restarts it. Rules stay. The daemon catches up with
// changes right before and after that, and with changes while it alone was cut off.
func TestServerKilled(t *testing.T) {
	parallel(t)
	s := newTestEnv(t, "nftables")
	steady := numbered{n: 0, pods: []string{"pod1a", "pod2a"}}
	s.set(append(some(1, 20, "pod1a"), steady)...)
	s.start()
	s.converges(10*time.Second, "start")
	load, end := s.load(steady)

	s.set(some(20, 22, "pod2c")...)
	defer mayRefuse(s.cluster)()
	if err := s.cluster.KillAPI(); err != nil {
		t.Fatal(err)
	}
	load.WaitTries(40) // without an API server
	if err := s.cluster.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.set(some(22, 24, "pod1c")...)
	s.unset(some(1, 3)...)
	t.Logf("the server was away: caught up after %s", s.converges(catchUp, "after the server's return"))

	s.gate.Shut()
	s.set(some(3, 6, "pod2b")...)
	s.unset(some(6, 8)...)
	s.set(some(24, 26, "pod2b")...)
	if _, err := s.check("apply", "--check"); err == nil {
		t.Error("the daemon follows while it is cut off")
	}
	s.gate.Open()
	t.Logf("the daemon was cut off: caught up after %s", s.converges(catchUp, "after the way was open again"))
	end()
}

// TestRelist makes etcd and the API server forget what the daemon has last seen while it is cut
// off, so that it must read everything again.
func TestRelist(t *testing.T) {
	parallel(t)
	s := newTestEnv(t, "nftables")
	steady := numbered{n: 0, pods: []string{"pod1a", "pod2a"}}
	s.set(append(some(1, 10, "pod1a"), steady)...)
	s.start()
	s.converges(10*time.Second, "start")
	_, end := s.load(steady)
	services := s.cluster.Client().CoreV1().Services("")
	seen, err := services.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}

	s.gate.Shut()
	s.set(some(1, 4, "pod2c")...)
	s.unset(some(4, 7)...)
	s.set(some(10, 13, "pod2c")...)
	if err := s.cluster.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer mayRefuse(s.cluster)()
	if err := s.cluster.KillAPI(); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	w, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: seen.ResourceVersion})
	if err == nil {
		event := <-w.ResultChan()
		w.Stop()
		err = fmt.Errorf("%s", event.Type)
		if event.Type == watch.Error {
			err = apierrors.FromObject(event.Object)
		}
	}
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("a watch from where the daemon was gives %v, want 410 Gone", err)
	}
	opened := time.Now()
	s.gate.Open()
	t.Logf("caught up after %s", s.converges(catchUp, "after the relist"))
	end()

	if _, err := s.proxy.Stop(); err != nil { // watches are logged at their end
		t.Fatal(err)
	}
	for _, kind := range []string{"services", "endpointslices"} {
		eventually(t, 5*time.Second, "a relist of "+kind, func() error {
			requests, err := s.cluster.Requests(kube.ProxycUser, opened)
			for _, r := range requests {
				all := r.Verb == "list" || strings.Contains(r.RequestURI, "sendInitialEvents=true")
				if r.ObjectRef.Resource == kind && all {
					return nil
				}
			}
			return fmt.Errorf("%d other requests, %w", len(requests), err)
		})
	}
}

// TestRepeatedCuts breaks connections to the API server continuously while objects change. No
// change is lost.
func TestRepeatedCuts(t *testing.T) {
	parallel(t)
	const seed, cuts = 4, 60
	r := rand.New(rand.NewPCG(seed, 0))
	s := newTestEnv(t, "nftables")
	steady := numbered{n: 0, pods: []string{"pod1a", "pod2a"}}
	s.set(append(some(1, 60, "pod1a"), steady)...)
	s.start()
	s.converges(10*time.Second, "start")
	_, end := s.load(steady)
	before := s.gate.Connections.Load()
	pods := []string{"pod1a", "pod1c", "pod2a", "pod2b", "pod2c"}
	for range cuts {
		s.gate.Cut()
		n := r.IntN(60) + 1
		if r.IntN(4) == 0 {
			s.unset(some(n, n+2)...)
		} else {
			s.set(some(n, n+3, pods[r.IntN(len(pods))])...)
		}
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
	made := s.gate.Connections.Load() - before
	t.Logf("seed %d: %d cuts, %d reconnects, caught up %s after the last", seed, cuts, made, s.converges(catchUp, "after the last cut"))
	if made < 2 {
		t.Errorf("%d reconnects: nothing was cut", made)
	}
	end()
}

// TestManyChanges changes the endpoints of 500 Services at once. The daemon needs few syncs, a
// second apart, and finishes soon after the last change.
func TestManyChanges(t *testing.T) {
	parallel(t)
	const services = 500
	s := newTestEnv(t, "nftables")
	s.set(some(0, services, "pod1a", "pod2a")...)
	for plane, args := range planes {
		if plane != "nftables" && !applytest.All {
			continue
		}
		s.args = append(s.args, args...) // the last flags win
		s.start()
		s.converges(20*time.Second, "start")
		const syncs = "kubeproxy_sync_proxy_rules_duration_seconds_count"
		before := s.metric(syncs) / 2 // once for each family
		began := time.Now()
		for _, pods := range [][]string{{"pod1c", "pod2a", "pod2c"}, {"pod1a", "pod2a"}} {
			if err := s.cluster.Update(t.Context(), slicesOf(some(0, services, pods...))...); err != nil {
				t.Fatal(err)
			}
		}
		sent := time.Since(began)
		took := s.converges(10*time.Second, "the changes")
		n := s.metric(syncs)/2 - before
		t.Logf("%s: %d changes sent in %s; the kernel has all %s later, after %v syncs", plane, 2*services, sent, took, n)
		if limit := (sent + took).Seconds() + 2; n > limit {
			t.Errorf("%s: %v syncs, want at most %v: one a second", plane, n, limit)
		}
		if _, err := s.proxy.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// slicesOf returns the EndpointSlices of Services.
func slicesOf(services []numbered) (objects []kube.Object) {
	for _, n := range services {
		objects = append(objects, n.objects()[1])
	}
	return objects
}
