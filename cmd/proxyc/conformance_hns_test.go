package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/hns"
)

// TestHNSConformance compares compile -o hns, step by step, with the recorded state of a Windows
// host under kube-proxy.exe.
func TestHNSConformance(t *testing.T) {
	records, err := applytest.LoadHNSRecords(os.DirFS("../../testdata/conformance"), "expected/hns.json")
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, family := range []string{applytest.IPv4, applytest.IPv6} {
		cases, err := applytest.LoadCases(os.DirFS("../../testdata/conformance/cases"), family)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			if records.Results[family][c.Name] == nil {
				continue
			}
			t.Run(family+"/"+c.Name, func(t *testing.T) {
				c.Each(t, func(n int, _ applytest.Step, cluster []byte) {
					want, ok := records.Results[family][c.Name][strconv.Itoa(n)]
					if !ok {
						t.Fatalf("step %d: not in the record", n)
					}
					got := compileHNS(t, c, family, cluster)
					if diff := cmp.Diff(want.LoadBalancers, got.LoadBalancers); diff != "" {
						t.Errorf("step %d: load balancers differ (-record +compiled):\n%s", n, diff)
					}
					if diff := cmp.Diff(want.UsedEndpoints(), got.UsedEndpoints()); diff != "" {
						t.Errorf("step %d: endpoints differ (-record +compiled):\n%s", n, diff)
					}
					steps++
				})
			})
		}
	}
	if steps != 172 && !t.Failed() {
		t.Errorf("%d steps were compared, want 172", steps)
	}
}

// compileHNS returns the state of a host according to compile -o hns. The pods of node1 are its
// local endpoints.
func compileHNS(t *testing.T, c *applytest.Case, family string, cluster []byte) applytest.HNSState {
	t.Helper()
	config, err := c.ConfigFile(string(ir.ModeKernelspace))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"compile", "-o", "hns", "-c", "config.yaml", "-s", "cluster.yaml", "--hostname-override", "node1", "--network-name", "l2"}
	for _, pod := range applytest.HNSPods(family) {
		args = append(args, "--hns-endpoint", pod.String())
	}
	var stdout, stderr bytes.Buffer
	files := memFiles{"config.yaml": config, "cluster.yaml": cluster}
	if code := run(&env{args: args, stdout: &stdout, stderr: &stderr, files: files}); code != exitDone {
		t.Fatalf("%v: exit code %d: %s", args, code, &stderr)
	}
	var out struct {
		Endpoints []struct {
			Ref      string
			Role     rules.Role
			Endpoint rules.HostComputeEndpoint
		}
		LoadBalancers []struct{ LoadBalancer rules.HostComputeLoadBalancer }
	}
	must(t, json.Unmarshal(stdout.Bytes(), &out))
	state := applytest.HNSState{LoadBalancers: []string{}, Endpoints: []string{}}
	there := map[string]bool{}
	for _, e := range out.Endpoints {
		a := netip.MustParseAddr(e.Ref)
		switch {
		case e.Role != rules.LocalPod:
			there[e.Ref] = true
			state.Endpoints = append(state.Endpoints, fmt.Sprintf("%s mac %s flags %d", e.Ref, e.Endpoint.MacAddress, e.Endpoint.Flags))
		case slices.Contains(applytest.HNSPods(family), a):
			there[e.Ref] = true
		}
	}
	for _, l := range out.LoadBalancers {
		if line := hnsLine(&l.LoadBalancer, there); line != "" && ofFamily(family, &l.LoadBalancer) {
			state.LoadBalancers = append(state.LoadBalancers, line)
		}
	}
	state.Endpoints = slices.DeleteFunc(state.Endpoints, func(s string) bool {
		addr, _, _ := strings.Cut(s, " ")
		return (family == applytest.IPv6) != netip.MustParseAddr(addr).Is6()
	})
	slices.Sort(state.LoadBalancers)
	slices.Sort(state.Endpoints)
	return state
}

func ofFamily(family string, l *rules.HostComputeLoadBalancer) bool {
	return (l.Flags&rules.IPv6LB != 0) == (family == applytest.IPv6)
}

// hnsLine returns a load balancer in the form of the record, or "" if none of its endpoints exists.
func hnsLine(l *rules.HostComputeLoadBalancer, there map[string]bool) string {
	var backends []string
	for _, ref := range l.HostComputeEndpoints {
		if there[ref] {
			backends = append(backends, ref)
		}
	}
	if len(backends) == 0 {
		return ""
	}
	slices.Sort(backends)
	vips, source := "node", "-"
	if len(l.FrontendVIPs) > 0 {
		vips = strings.Join(l.FrontendVIPs, ",")
	}
	if l.SourceVIP != "" {
		source = l.SourceVIP
	}
	m := l.PortMappings[0]
	return strings.Join([]string{vips, strconv.Itoa(int(m.Protocol)), fmt.Sprintf("%d->%d", m.ExternalPort, m.InternalPort),
		"flags", strconv.Itoa(int(m.Flags)), "distribution", strconv.Itoa(int(m.DistributionType)),
		"flags", strconv.Itoa(int(l.Flags)), "source", source, "->", strings.Join(backends, " ")}, " ")
}
