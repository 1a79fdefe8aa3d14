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
	allFlag  = flag.Bool("all", false, "play all cases in all worlds, with both kube-proxy.exe and proxyc.exe: it takes hours")
)

const conformance = "../../testdata/conformance"

// server2022 is the version of Windows in the records.
var server2022 = hns.Version{Major: 15, Minor: 1}

// world is a kind of host.
type world struct {
	version hns.Version
	kind    string
	dsr     bool
}

func (w world) String() string {
	name := w.kind
	if w.dsr {
		name += " with DSR"
	}
	return name + " " + w.version.String()
}

// dualStack reports whether the host has two families.
func (w world) dualStack() bool { return w.kind == l2bridge && hns.FeaturesOf(w.version).DualStack }

// record returns the file with what kube-proxy.exe created on such a host, whatever its version;
// empty for none.
func (w world) record() string {
	switch {
	case w.kind == l2bridge && !w.dsr:
		return "expected/hns.json"
	case w.kind == overlay && w.dsr:
		return "expected/hns-overlay.json"
	}
	return ""
}

// records returns what kube-proxy.exe created on such a host, without what an older host does not
// support.
func (w world) records(t *testing.T) func(family string, c *applytest.Case, step int) (applytest.HNSState, bool) {
	t.Helper()
	if w.record() == "" {
		return func(string, *applytest.Case, int) (none applytest.HNSState, ok bool) { return none, false }
	}
	all, err := applytest.LoadHNSRecords(os.DirFS(conformance), w.record())
	if err != nil {
		t.Fatal(err)
	}
	return func(family string, c *applytest.Case, step int) (applytest.HNSState, bool) {
		s, ok := all.Results[family][c.Name][strconv.Itoa(step)]
		if !hns.FeaturesOf(w.version).SessionAffinity {
			s.LoadBalancers = slices.Clone(s.LoadBalancers)
			for i, l := range s.LoadBalancers {
				s.LoadBalancers[i] = strings.Replace(l, "distribution 2", "distribution 0", 1)
			}
		}
		return s, ok
	}
}

// some matches cases in which versions differ, or may.
const some = "^(affinity-clientip|clusterip-sctp|endpoint-updates|etp-local|itp-local|lb-vip|lb-vip-etp-local|nodeport|type-change)$"

// TestConformance plays each step of each case, and compares the host with the recorded state of
// kube-proxy.exe, except for unused endpoints.
func TestConformance(t *testing.T) {
	l := inLab(t)
	for _, row := range []struct {
		world
		families []string
		cases    string
	}{
		{world{server2022, l2bridge, false}, []string{applytest.IPv4, applytest.IPv6}, ""},
		{world{server2022, overlay, true}, []string{applytest.IPv4}, ""},
		{world{hns.Version{Major: 16}, l2bridge, false}, []string{applytest.IPv4}, ""}, // load balancers are modified
		{world{hns.Version{Major: 16}, overlay, true}, []string{applytest.IPv4}, some},
		{world{hns.Version{Major: 14, Minor: 1}, l2bridge, false}, []string{applytest.IPv4, applytest.IPv6}, some},
		{world{hns.Version{Major: 13, Minor: 3}, l2bridge, false}, []string{applytest.IPv4, applytest.IPv6}, some},
		{world{hns.Version{Major: 12}, l2bridge, false}, []string{applytest.IPv4, applytest.IPv6}, some},
		{world{hns.Version{Major: 11, Minor: 10}, l2bridge, false}, []string{applytest.IPv4, applytest.IPv6}, some}, // two families, no affinity
		{world{hns.Version{Major: 10, Minor: 2}, l2bridge, false}, []string{applytest.IPv4}, some},
		{world{hns.Version{Major: 9, Minor: 5}, l2bridge, false}, []string{applytest.IPv4}, some}, // Windows Server 2019
		{world{hns.Version{Major: 9, Minor: 5}, overlay, true}, []string{applytest.IPv4}, some},
	} {
		t.Run(row.String(), func(t *testing.T) {
			steps, records := 0, row.records(t)
			for _, family := range row.families {
				if err := l.cluster.DeleteAll(t.Context()); err != nil {
					t.Fatal(err)
				}
				p := l.newPlayer(t, row.world, family, "")
				for _, c := range cases(t, family, row.cases) {
					if _, ok := records(family, c, 1); ok {
						steps += p.play(t, c, func(t *testing.T, step int) {
							want, _ := records(family, c, step)
							if diff := row.difference(want, p.familyState()); diff != "" {
								t.Errorf("step %d (-record +proxyc.exe):\n%s", step, diff)
							}
						})
					}
				}
				if r := p.host.Refusals(); len(r) > 0 {
					t.Errorf("HNS refused %d calls, the first: %s", len(r), r[0])
				}
				if err := p.stop(); err != nil { // the next one uses its ports
					t.Fatal(err)
				}
			}
			t.Logf("%d steps", steps)
		})
	}
}

// cases returns the cases of a family that match, and that the flag selects. With -all only the
// flag counts.
func cases(t *testing.T, family, match string) []*applytest.Case {
	t.Helper()
	all, err := applytest.LoadCases(os.DirFS(conformance+"/cases"), family)
	if err != nil {
		t.Fatal(err)
	}
	if *allFlag {
		match = ""
	}
	a, b := regexp.MustCompile(match), regexp.MustCompile(*caseFlag)
	return slices.DeleteFunc(all, func(c *applytest.Case) bool { return !a.MatchString(c.Name) || !b.MatchString(c.Name) })
}

// named returns a case for IPv4.
func named(t *testing.T, name string) *applytest.Case {
	t.Helper()
	all, err := applytest.LoadCases(os.DirFS(conformance+"/cases"), applytest.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	return all[slices.IndexFunc(all, func(c *applytest.Case) bool { return c.Name == name })]
}

// play plays a case, and calls look for each step when it is in force. It returns the number of
// steps.
func (p *player) play(t *testing.T, c *applytest.Case, look func(t *testing.T, step int)) (steps int) {
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
			look(t, i+1)
			steps++
		}
	})
	return steps
}

// difference describes how a host differs from what kube-proxy.exe would create; empty if it does
// not. proxyc creates no unused endpoints, except for the source of an overlay, which the mark
// uses.
func (w world) difference(peer, own applytest.HNSState) string {
	endpoints := peer.UsedEndpoints()
	source := "10.244.1.254 mac host flags 0"
	if w.kind == overlay && !slices.Contains(endpoints, source) {
		endpoints = append(endpoints, source)
		slices.Sort(endpoints)
	}
	return cmp.Diff(applytest.HNSState{LoadBalancers: peer.LoadBalancers, Endpoints: endpoints}, own)
}

// clusterFile writes the initial objects of a case.
func clusterFile(t *testing.T, dir, name string) string {
	t.Helper()
	objects, err := applytest.NewStore()
	if err != nil {
		t.Fatal(err)
	}
	if err := objects.Step(named(t, name).Stages()[0]); err != nil {
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
	return file
}

// run runs proxyc.exe on the host, which must end with a code, and returns its output.
func (l *lab) run(t *testing.T, h *host, code int, args ...string) string {
	t.Helper()
	cmd := l.proxycExe(t.Context(), h, args...)
	out, err := l.node.Run(cmd)
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		t.Fatalf("%v: %v, want exit code %d\n%s", args, err, code, out)
	}
	if err != nil {
		return string(out) + err.Error() // with standard error
	}
	return string(out)
}

// TestApply checks apply, --check and cleanup, each as a process of its own.
func TestApply(t *testing.T) {
	l := inLab(t)
	h := l.newHost(t, world{server2022, l2bridge, false})
	dir := t.TempDir()
	file := clusterFile(t, dir, "nodeport")
	run := func(code int, args ...string) string {
		t.Helper()
		return l.run(t, h, code, args...)
	}
	apply := func(code int, args ...string) string { // the mode and the network are Windows' own defaults
		t.Helper()
		return run(code, append([]string{"apply", "-s", windowsPath(file), "--allow-empty", "--hostname-override", "node1"}, args...)...)
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
	daemon, err := l.start(h, dir, "proxyc", l.proxyc, "watch", "-s", windowsPath(file), "--allow-empty", "--hostname-override", "node1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
	defer cancel()
	if err := daemon.Ready(ctx); err != nil {
		t.Fatalf("watch: %v\n%s", err, daemon.Tail())
	}
	if out := apply(2, "--lock-timeout", "300ms"); !strings.Contains(out, "held by process") {
		t.Errorf("apply during watch: %s", out)
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

// TestRestartOfHNS restarts HNS during a change. Afterwards the host reaches the wanted state,
// and nothing is created twice.
func TestRestartOfHNS(t *testing.T) {
	l := inLab(t)
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("objects lost %v", lost), func(t *testing.T) {
			restartOfHNS(t, l, lost)
		})
	}
}

func restartOfHNS(t *testing.T, l *lab, lost bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*changeTimeout)
	defer cancel()
	if err := l.cluster.DeleteAll(ctx); err != nil {
		t.Fatal(err)
	}
	p := l.newPlayer(t, world{server2022, l2bridge, false}, applytest.IPv4, "")
	c := named(t, "nodeport")
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
			// The change fails while HNS is down. Then HNS returns.
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
