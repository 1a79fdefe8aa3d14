package packets

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// killServices is the number of Services.
var killServices = map[string]int{"iptables-nft": 300, "iptables-legacy": 300, "nftables": 600, "ipvs": 300}

// killWorld returns Services that always have endpoints, which differ between the states, and some
// that exist only in one state.
func killWorld(n int, state string) world {
	endpoints := map[string][]string{"old": {"pod1a", "pod2a"}, "new": {"pod1c", "pod2c"}}[state]
	w := world{}
	for i := range n {
		if i%20 == 18 && state == "old" || i%20 == 19 && state == "new" {
			continue
		}
		s := &worldService{Type: "ClusterIP", Families: []string{applytest.IPv4}, Protocols: []string{"TCP"}, Endpoints: endpoints}
		switch i % 10 {
		case 3:
			s.Type = "NodePort"
		case 4:
			s.Families = []string{applytest.IPv4, applytest.IPv6}
		case 5:
			s.Affinity = true
		}
		w[i] = s
	}
	return w
}

// clientPorts counts the ports given to clients.
var clientPorts atomic.Uint32

// countReplies queries every Service that both states have, and returns the number of replies of
// each state. A failure, or a reply of neither state, fails the test.
func countReplies(t *testing.T, topo *applytest.Topology, olds, news world, what string) (byState map[string]int) {
	t.Helper()
	byState = map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	tokens := make(chan struct{}, 50)
	// Services share endpoints here. ip_vs does not distinguish connections from one client port to
	// the same endpoint (kubernetes#107249), so each has its own port.
	port := func() uint16 { return uint16(10_000 + clientPorts.Add(1)%20_000) }
	ask := func(from string, at netip.AddrPort, i int) {
		tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-tokens }()
			a, err := topo.Try(from, "tcp", port(), at, applytest.ReplyTimeout)
			mu.Lock()
			defer mu.Unlock()
			name := topo.Name(a.Server.Addr())
			switch {
			case err != nil:
				t.Errorf("%s: %s does not answer: %s", what, at, applytest.Failure(err))
			case slices.Contains(olds[i].Endpoints, name):
				byState["old"]++
			case slices.Contains(news[i].Endpoints, name):
				byState["new"]++
			default:
				t.Errorf("%s: %s: %s answers", what, at, name)
			}
		})
	}
	for i, s := range olds {
		if news[i] == nil {
			continue
		}
		ask("pod1b", to(clusterIP(i, applytest.IPv4), 80), i)
		if slices.Contains(s.Families, applytest.IPv6) {
			ask("pod1b", to(clusterIP(i, applytest.IPv6), 80), i)
		}
		if s.Type == "NodePort" {
			ask("ext", to("192.0.2.11", nodePort(i, "TCP")), i)
		}
	}
	wg.Wait()
	return byState
}

// TestKill checks that apply, killed at any moment, leaves working rules, old or new, and does not
// block the next one.
func TestKill(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		topo := applytest.TopologyFor(t)
		m := newMachine(t, topo.Namespace("node1"))
		config := filepath.Join(takeoverDir, "config.yaml")
		services := killServices[p.String()]
		states := [2]string{"old", "new"}
		var worlds [2]world
		var files [2]string
		for i, state := range states {
			worlds[i] = killWorld(services, state)
			files[i] = m.file(state+".json", worlds[i].snapshot(t))
		}
		m.must(0, m.apply(p, config, files[0]))
		start := time.Now()
		m.must(0, m.apply(p, config, files[1]))
		whole := time.Since(start)

		const seed = 9
		r := newWorldRandom(seed)
		left := map[string]int{}
		times := applytest.Of(3, 30)
		for n := range times {
			to, from := n%2, 1-n%2
			after := time.Duration(r.Int64N(int64(whole)))
			group := r.chance(2) // including the tools that it started
			retry := r.chance(3) // apply again immediately, while such tools may still run
			cmd, wait := m.start(nil, applyArgs(p, config, files[to])...)
			<-time.After(after)
			victim := cmd.Process.Pid
			if group {
				victim = -victim
			}
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
			ended := wait()
			what := fmt.Sprintf("seed %d, kill %d after %s (exit %d)", seed, n, after.Round(time.Millisecond), ended.code)
			t.Log(what)
			if retry {
				left["not asked"]++
			} else {
				got := countReplies(t, topo, worlds[0], worlds[1], what)
				switch {
				case got[states[from]] == 0:
					left["all "+states[to]]++
				case got[states[to]] == 0:
					left["all "+states[from]]++
				default:
					left["some of each"]++
					if p.mode == "nftables" {
						t.Errorf("%s: %v, want all old or all new", what, got)
					}
				}
			}
			m.must(0, m.apply(p, config, files[to]))
			m.must(0, m.apply(p, config, files[to], "--check"))
			if t.Failed() {
				return
			}
		}
		t.Logf("%d kills within %s; %d Services: %v", times, whole.Round(time.Millisecond), services, left)
	})
}
