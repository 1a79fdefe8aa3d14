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
	allFlag  = flag.Bool("all", false, "play all cases in all worlds, and kube-proxy.exe beside proxyc.exe in each: it takes hours")
)

const conformance = "../../testdata/conformance"

// server2022 is the version of the records.
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

// record is that of what kube-proxy.exe made such a host hold, whatever its version; empty: there is none.
func (w world) record() string {
	switch {
	case w.kind == l2bridge && !w.dsr:
		return "expected/hns.json"
	case w.kind == overlay && w.dsr:
		return "expected/hns-overlay.json"
	}
	return ""
}

// records are what kube-proxy.exe made such a host hold, on an older one without what that has not.
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

// some are cases in which versions differ, or may.
const some = "^(affinity-clientip|clusterip-sctp|endpoint-updates|etp-local|itp-local|lb-vip|lb-vip-etp-local|nodeport|type-change)$"

// TestConformance plays each case and step: the host holds what kube-proxy.exe made it hold when it was
// recorded, but for endpoints that nothing uses.
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
				if err := p.stop(); err != nil { // its ports are the next one's
					t.Fatal(err)
				}
			}
			t.Logf("%d steps", steps)
		})
	}
}

// cases are those of a family that match, and the flag, too; with -all all that the flag leaves.
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

// named is a case of IPv4.
func named(t *testing.T, name string) *applytest.Case {
	t.Helper()
	all, err := applytest.LoadCases(os.DirFS(conformance+"/cases"), applytest.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	return all[slices.IndexFunc(all, func(c *applytest.Case) bool { return c.Name == name })]
}

// play plays a case and has each step looked at once it is in force. It returns how many there were.
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

// difference is what a host has that is not what kube-proxy.exe makes it have; empty: nothing. Endpoints that
// nothing uses are not made, but for the source of an overlay, which the mark uses.
func (w world) difference(peer, own applytest.HNSState) string {
	endpoints := peer.UsedEndpoints()
	source := "10.244.1.254 mac host flags 0"
	if w.kind == overlay && !slices.Contains(endpoints, source) {
		endpoints = append(endpoints, source)
		slices.Sort(endpoints)
	}
	return cmp.Diff(applytest.HNSState{LoadBalancers: peer.LoadBalancers, Endpoints: endpoints}, own)
}

// clusterFile writes the objects that a case begins with.
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

// run runs proxyc.exe on the host until it ends with a code, and returns what it wrote.
func (l *lab) run(t *testing.T, h *host, code int, args ...string) string {
	t.Helper()
	cmd := l.proxycExe(t.Context(), h, args...)
	out, err := l.node.Run(cmd)
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		t.Fatalf("%v: %v, want exit code %d\n%s", args, err, code, out)
	}
	if err != nil {
		return string(out) + err.Error() // which has what was written to standard error
	}
	return string(out)
}

// apply, --check and cleanup, each a process of its own.
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
