package windows

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/apply/hns/hnstest"
	"github.com/proxyc/proxyc/e2e/kube"
)

var (
	caseFlag = flag.String("case", "", "play only cases whose names match")
	besides  = flag.String("beside", "^(clusterip-tcp|nodeport|lb-vip-etp-local|itp-local|named-port-different-numbers|affinity-clientip|external-ips)$",
		"cases in which kube-proxy.exe is played, too: each takes it ten seconds and more, and each further step as long")
)

const conformance = "../../testdata/conformance"

// server2022 is the version of the records.
var server2022 = hns.Version{Major: 15, Minor: 1}

// world is a kind of host, and which families it has.
type world struct {
	name     string
	record   string
	version  hns.Version
	kind     string
	dsr      bool
	families []string
}

var worlds = []world{
	{"L2Bridge", "hns.json", server2022, l2bridge, false, []string{applytest.IPv4, applytest.IPv6}},
	{"L2Bridge, load balancers are modified", "hns.json", hns.Version{Major: 16}, l2bridge, false, []string{applytest.IPv4}},
	{"Overlay with DSR", "hns-overlay.json", server2022, overlay, true, []string{applytest.IPv4}},
}

// Each case and step: the host holds what kube-proxy.exe made it hold when it was
// recorded, but for endpoints that nothing uses.
func TestConformance(t *testing.T) {
	l := inLab(t)
	chosen := regexp.MustCompile(*caseFlag)
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			records, err := applytest.LoadHNSRecords(os.DirFS(conformance), "expected/"+w.record)
			if err != nil {
				t.Fatal(err)
			}
			steps := 0
			for _, family := range w.families {
				if err := l.cluster.DeleteAll(t.Context()); err != nil {
					t.Fatal(err)
				}
				p := &player{lab: l, t: t, host: l.newHost(t, w.version, w.kind), dir: t.TempDir(), dsr: w.dsr, kind: w.kind, family: family}
				defer p.stop()
				for _, c := range cases(t, family) {
					if chosen.MatchString(c.Name) && records.Results[family][c.Name] != nil {
						steps += p.play(t, c, func(step int) applytest.HNSState {
							return records.Results[family][c.Name][strconv.Itoa(step)]
						})
					}
				}
				if r := p.host.Refusals(); len(r) > 0 {
					t.Errorf("HNS refused %d calls, the first: %s", len(r), r[0])
				}
				if err := p.stop(); err != nil { // its ports are the next one's
					t.Fatal(err)
				}
			}
			t.Logf("%d steps", steps)
		})
	}
}

func cases(t *testing.T, family string) []*applytest.Case {
	t.Helper()
	all, err := applytest.LoadCases(os.DirFS(conformance+"/cases"), family)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// play plays a case and compares each step with what is wanted. It returns how many there were.
func (p *player) play(t *testing.T, c *applytest.Case, want func(step int) applytest.HNSState) (steps int) {
	t.Helper()
	t.Run(p.family+"/"+c.Name, func(t *testing.T) {
		ctx := t.Context()
		objects, err := applytest.NewStore()
		if err != nil {
			t.Fatal(err)
		}
		for i, stage := range c.Stages() {
			if err := objects.Step(stage); err != nil {
				t.Fatal(err)
			}
			if err := p.send(ctx, objects); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				if err := p.begin(ctx, c); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.inForce(ctx); err != nil {
				t.Fatalf("step %d: %v", i+1, err)
			}
			if wanted := want(i + 1); p.peer == "" {
				p.compare(t, i+1, wanted, p.state())
			}
			steps++
		}
	})
	return steps
}

// compare holds what the host has against what was recorded. Endpoints that nothing
// uses are not made, but for the source of an overlay, which the mark uses.
func (p *player) compare(t *testing.T, step int, want, got applytest.HNSState) {
	t.Helper()
	if diff := cmp.Diff(want.LoadBalancers, got.LoadBalancers); diff != "" {
		t.Errorf("step %d: load balancers (-record +proxyc.exe):\n%s", step, diff)
	}
	endpoints := want.UsedEndpoints()
	source := "10.244.1.254 mac host flags 0"
	if p.kind == overlay && !slices.Contains(endpoints, source) {
		endpoints = append(endpoints, source)
		slices.Sort(endpoints)
	}
	if diff := cmp.Diff(endpoints, got.Endpoints); diff != "" {
		t.Errorf("step %d: endpoints (-record +proxyc.exe):\n%s", step, diff)
	}
}

// peerAttempts is how often kube-proxy.exe is started before its failure counts.
const peerAttempts = 4

// The real kube-proxy.exe beside it, in the same run: it comes to what was recorded of it, and
// proxyc.exe to the same, with fewer calls.
func TestBesideKubeProxy(t *testing.T) {
	l := inLab(t)
	peer := *peerFlag
	if peer == "" {
		peer = filepath.Join(l.dir, "kube-proxy.exe")
		if err := buildForWindows(t.Context(), ".", peer, kube.KubeProxy); err != nil {
			t.Fatal(err)
		}
	}
	records, err := applytest.LoadHNSRecords(os.DirFS(conformance), "expected/hns.json")
	if err != nil {
		t.Fatal(err)
	}
	chosen, beside := regexp.MustCompile(*caseFlag), regexp.MustCompile(*besides)
	w := worlds[0]
	for _, c := range cases(t, applytest.IPv4) {
		if !chosen.MatchString(c.Name) || !beside.MatchString(c.Name) {
			continue
		}
		states, calls := map[int]applytest.HNSState{}, map[string]int{}
		play := func(t *testing.T, program string, want func(p *player, step int) applytest.HNSState) int {
			if err := l.cluster.DeleteAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			p := &player{lab: l, t: t, host: l.newHost(t, w.version, w.kind), dir: t.TempDir(), kind: w.kind, family: applytest.IPv4, peer: program}
			defer p.stop()
			p.play(t, c, func(step int) applytest.HNSState { return want(p, step) })
			return p.host.Calls()
		}
		t.Run("kube-proxy.exe", func(t *testing.T) {
			// It trusts what it remembers, and its two families clean up behind each
			// other at the start: at times a load balancer is gone for good.
			for attempt := 1; ; attempt++ {
				var lost error
				calls["kube-proxy.exe"] = play(t, peer, func(p *player, step int) applytest.HNSState {
					if lost == nil {
						lost = p.comesTo(t.Context(), records.Results[applytest.IPv4][c.Name][strconv.Itoa(step)])
					}
					states[step] = p.state() // it is what proxyc.exe is to be like
					return states[step]
				})
				if lost == nil {
					return
				}
				if attempt == peerAttempts {
					t.Fatalf("%d starts: %v", attempt, lost)
				}
				t.Logf("start %d of kube-proxy.exe: %v", attempt, lost)
			}
		})
		if len(states) == 0 {
			continue
		}
		t.Run("proxyc.exe", func(t *testing.T) {
			calls["proxyc.exe"] = play(t, "", func(_ *player, step int) applytest.HNSState { return states[step] })
		})
		t.Logf("%s: calls of the host: kube-proxy.exe %d, proxyc.exe %d", c.Name, calls["kube-proxy.exe"], calls["proxyc.exe"])
		if calls["proxyc.exe"] >= calls["kube-proxy.exe"] {
			t.Errorf("%s: proxyc.exe calls the host more often", c.Name)
		}
	}
}

// apply, --check and cleanup, each a process of its own.
func TestApply(t *testing.T) {
	l := inLab(t)
	h := l.newHost(t, server2022, l2bridge)
	dir := t.TempDir()
	objects, err := applytest.NewStore()
	if err != nil {
		t.Fatal(err)
	}
	var nodeport *applytest.Case
	for _, c := range cases(t, applytest.IPv4) {
		if c.Name == "nodeport" {
			nodeport = c
		}
	}
	if err := objects.Step(nodeport.Stages()[0]); err != nil {
		t.Fatal(err)
	}
	data, err := objects.File()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(code int, args ...string) string {
		t.Helper()
		cmd := l.proxycExe(t.Context(), h, args...)
		out, err := l.node.Run(cmd)
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
			t.Fatalf("%v: %v, want exit code %d\n%s", args, err, code, out)
		}
		if err != nil {
			return err.Error() // it has what was written to standard error
		}
		return string(out)
	}
	apply := func(code int, args ...string) string { // the mode and the network are Windows' own defaults
		t.Helper()
		return run(code, append([]string{"apply", "-s", windowsPath(file), "--hostname-override", "node1"}, args...)...)
	}
	apply(1, "--check")
	if balancers, endpoints := h.State(""); len(balancers)+len(endpoints) != 0 {
		t.Fatalf("--check changed the host: %q %q", balancers, endpoints)
	}
	if out := apply(0); !strings.Contains(out, "total: 3 added") {
		t.Errorf("apply: %s", out)
	}
	balancers, endpoints := h.State("")
	want := []string{"10.96.0.10 6 80->8080 flags 0 distribution 0 flags 0 source - -> 10.244.1.10 10.244.2.10",
		"node 6 30080->8080 flags 18 distribution 0 flags 0 source - -> 10.244.1.10 10.244.2.10"}
	if diff := cmp.Diff(want, balancers); diff != "" || len(endpoints) != 1 {
		t.Errorf("after apply (-want +got):\n%s%q", diff, endpoints)
	}
	if out := apply(0, "--check"); !strings.Contains(out, "nothing to change") {
		t.Errorf("--check: %s", out)
	}
	daemon, err := l.start(h, dir, "proxyc", l.proxyc, "watch", "-s", windowsPath(file), "--hostname-override", "node1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := daemon.Ready(ctx); err != nil {
		t.Fatalf("watch: %v\n%s", err, daemon.Tail())
	}
	if out := apply(2, "--lock-timeout", "300ms"); !strings.Contains(out, "held by process") {
		t.Errorf("apply beside watch: %s", out)
	}
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	run(0, "cleanup")
	if balancers, endpoints := h.State(""); len(balancers)+len(endpoints) != 0 {
		t.Errorf("after cleanup: %q %q", balancers, endpoints)
	}
	if n := h.OpenHandles(); n != 0 {
		t.Errorf("%d handles are open", n)
	}
}

// HNS restarts in the middle: what follows brings the host to where it should be,
// and nothing is made twice.
func TestRestartOfHNS(t *testing.T) {
	l := inLab(t)
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("objects lost %v", lost), func(t *testing.T) {
			restartOfHNS(t, l, lost)
		})
	}
}

func restartOfHNS(t *testing.T, l *lab, lost bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := l.cluster.DeleteAll(ctx); err != nil {
		t.Fatal(err)
	}
	p := &player{lab: l, t: t, host: l.newHost(t, server2022, l2bridge), dir: t.TempDir(), kind: l2bridge, family: applytest.IPv4}
	defer p.stop()
	var c *applytest.Case
	for _, one := range cases(t, applytest.IPv4) {
		if one.Name == "nodeport" {
			c = one
		}
	}
	objects, err := applytest.NewStore()
	if err != nil {
		t.Fatal(err)
	}
	if err := objects.Step(c.Stages()[0]); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		if round == 1 {
			p.host.Stop()
		}
		if err := p.send(ctx, objects); err != nil {
			t.Fatal(err)
		}
		if err := p.begin(ctx, c); err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			// The change fails: HNS is away. Then it comes back.
			if err := kube.Until(ctx, 50*time.Millisecond, func(ctx context.Context) error {
				if p.synced(ctx) == nil {
					return fmt.Errorf("proxyc.exe has not noticed")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			loss := hnstest.Nothing
			if lost {
				loss = hnstest.Made
			}
			p.host.Start(loss)
		}
		if err := p.inForce(ctx); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"10.96.0.10 6 80->8080 flags 0 distribution 0 flags 0 source - -> 10.244.1.10 10.244.2.10",
		"node 6 30080->8080 flags 18 distribution 0 flags 0 source - -> 10.244.1.10 10.244.2.10"}
	if diff := cmp.Diff(want, p.state().LoadBalancers); diff != "" {
		t.Errorf("load balancers (-want +got):\n%s", diff)
	}
	if r := p.host.Refusals(); len(r) > 0 {
		t.Errorf("HNS refused: %q", r)
	}
}
