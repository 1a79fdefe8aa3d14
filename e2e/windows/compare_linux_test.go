package windows

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/hns"
	"github.com/proxyc/proxyc/e2e/kube"
)

// peerExe builds the real kube-proxy.exe once, and returns its path.
func (l *lab) peerExe(t *testing.T) string {
	t.Helper()
	if *peerFlag == "" {
		exe := filepath.Join(l.dir, "kube-proxy.exe")
		if err := buildForWindows(t.Context(), ".", exe, kube.KubeProxy); err != nil {
			t.Fatal(err)
		}
		*peerFlag = exe
	}
	return *peerFlag
}

// worldCases is a world with the cases that are always played there.
type worldCases struct {
	world
	families []string
	cases    string
}

// comparedWorlds returns the worlds in which kube-proxy.exe is always played; with -all, all
// worlds.
func comparedWorlds() (all []worldCases) {
	both, four := []string{applytest.IPv4, applytest.IPv6}, []string{applytest.IPv4}
	if !*allFlag {
		return []worldCases{
			{world{server2022, l2bridge, false}, both, "^(clusterip-tcp|nodeport|lb-vip-etp-local|itp-local|named-port-different-numbers|affinity-clientip|external-ips|dual-stack|target-port-update)$"},
			{world{server2022, l2bridge, true}, both, "^(nodeport|lb-vip-etp-local|itp-local)$"},
			{world{server2022, overlay, false}, four, "^(nodeport|host-network-endpoint)$"},
			{world{server2022, overlay, true}, four, "^(lb-vip-etp-local|endpoint-updates)$"},
			{world{hns.Version{Major: 16}, l2bridge, false}, four, "^(affinity-clientip|endpoint-updates|shared-endpoint)$"},
			{world{hns.Version{Major: 14, Minor: 1}, l2bridge, true}, four, "^(affinity-clientip|type-change)$"},
			{world{hns.Version{Major: 12}, l2bridge, false}, four, "^affinity-clientip$"},
			{world{hns.Version{Major: 11, Minor: 10}, l2bridge, false}, both, "^affinity-clientip$"},
			{world{hns.Version{Major: 9, Minor: 5}, l2bridge, false}, four, "^(affinity-clientip|dual-stack|nodeport)$"},
		}
	}
	for _, v := range []hns.Version{server2022, {Major: 16}, {Major: 9, Minor: 5}, {Major: 12}, {Major: 11, Minor: 10}, {Major: 14, Minor: 1},
		{Major: 10, Minor: 2}, {Major: 13, Minor: 3}} {
		for _, kind := range []string{l2bridge, overlay} {
			for _, dsr := range []bool{false, true} {
				w := worldCases{world: world{v, kind, dsr}, families: four}
				if w.dualStack() {
					w.families = both
				}
				all = append(all, w)
			}
		}
	}
	return all
}

// TestCompareKubeProxy plays the real kube-proxy.exe and proxyc.exe in the same run.
// kube-proxy.exe brings its host to the state of proxyc.exe's, and to the recorded one, with more
// calls.
func TestCompareKubeProxy(t *testing.T) {
	l := inLab(t)
	peer := l.peerExe(t)
	for _, w := range comparedWorlds() {
		t.Run(w.String(), func(t *testing.T) {
			steps, records := 0, w.records(t)
			for _, family := range w.families {
				for _, c := range cases(t, family, w.cases) {
					states, calls := map[int]applytest.HNSState{}, map[string]int{}
					play := func(program string, look func(t *testing.T, p *player, step int)) {
						if err := l.cluster.DeleteAll(t.Context()); err != nil {
							t.Fatal(err)
						}
						p := l.newPlayer(t, w.world, family, program)
						steps += p.play(t, c, func(t *testing.T, step int) { look(t, p, step) })
						calls[program] = p.host.Calls()
						if err := p.stop(); err != nil {
							t.Fatal(err)
						}
					}
					play("", func(_ *testing.T, p *player, step int) { states[step] = p.state() })
					play(peer, func(t *testing.T, p *player, step int) {
						ctx, cancel := context.WithTimeout(t.Context(), settleTimeout)
						defer cancel()
						diff := ""
						if err := kube.Until(ctx, 50*time.Millisecond, func(context.Context) error {
							if diff = w.difference(p.state(), states[step]); diff != "" {
								return fmt.Errorf("(-kube-proxy.exe +proxyc.exe):\n%s", diff)
							}
							return nil
						}); err != nil {
							t.Errorf("step %d: %v", step, err)
						}
						record, ok := records(family, c, step)
						if got := p.familyState().LoadBalancers; ok && !slices.Equal(record.LoadBalancers, got) {
							t.Errorf("step %d: kube-proxy.exe has\n%s\nand was recorded to have\n%s", step, strings.Join(got, "\n"), strings.Join(record.LoadBalancers, "\n"))
						}
					})
					t.Logf("%s/%s: calls of the host: kube-proxy.exe %d, proxyc.exe %d", family, c.Name, calls[peer], calls[""])
					if calls[""] >= calls[peer] {
						t.Errorf("%s/%s: proxyc.exe calls the host more often", family, c.Name)
					}
				}
			}
			t.Logf("%d steps", steps/2)
		})
	}
}

// TestCalls counts the calls of each program to the host, in the same clusters: at the start, for
// one endpoint that changes, and at a restart without changes.
func TestCalls(t *testing.T) {
	l := inLab(t)
	peer := l.peerExe(t)
	sizes := []int{100, 1000}
	if *allFlag {
		sizes = append(sizes, 5000)
	}
	changes := map[int]int{}
	for _, n := range sizes {
		own, others := l.callsOf(t, "", n), l.callsOf(t, peer, n)
		t.Logf("%d Services: calls of proxyc.exe %+v, of kube-proxy.exe %+v", n, own, others)
		if own.start >= others.start || own.change >= others.change || own.restart >= others.restart {
			t.Errorf("%d Services: proxyc.exe calls the host more often", n)
		}
		changes[own.change] = n
	}
	if len(changes) > 1 {
		t.Errorf("calls for a change depend on the number of Services: %v", changes)
	}
}

// calls are numbers of calls to a host.
type calls struct{ start, change, restart int }

// callsOf plays a program in a cluster of n Services, and counts its calls.
func (l *lab) callsOf(t *testing.T, program string, n int) (c calls) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := l.newPlayer(t, world{server2022, l2bridge, false}, applytest.IPv4, program)
	p.changeTimeout, p.resync = 10*time.Minute, "1h"
	empty := named(t, "headless-externalname") // for its configuration and its nodes
	objects, err := applytest.NewStore()
	must(err)
	must(l.cluster.DeleteAll(ctx))
	must(p.send(ctx, objects))
	var all []kube.Object
	for i := range n {
		all = append(all, numbered(i)...)
	}
	must(l.cluster.Apply(ctx, all...))
	p.marks++
	must(l.cluster.Apply(ctx, marks[p.family].objects(p.marks)...))

	must(p.begin(ctx, empty))
	must(p.inForce(ctx))
	c.start = p.host.Calls()

	// The minimum of three, since proxyc sometimes reads the host's state, which does not belong
	// to the change.
	for last := range 3 {
		before := p.host.Calls()
		must(l.cluster.Apply(ctx, numbered(0, fmt.Sprintf("10.244.3.%d", last+1))[1]))
		must(p.reaches(ctx, vipOf(0), fmt.Sprintf("10.244.3.%d", last+1)))
		if calls := p.host.Calls() - before; c.change == 0 || calls < c.change {
			c.change = calls
		}
	}

	must(p.stop())
	before := p.host.Calls()
	must(p.begin(ctx, empty))
	must(p.inForce(ctx))
	c.restart = p.host.Calls() - before
	must(p.stop())
	return c
}

// vipOf returns the address of Service i.
func vipOf(i int) string { return fmt.Sprintf("10.96.%d.%d", i/250+1, i%250+1) }

// numbered returns Service i with its endpoints: a pod of the node, one elsewhere, and more.
func numbered(i int, more ...string) []kube.Object {
	name := fmt.Sprintf("s%d", i)
	var endpoints []any
	for _, a := range append([]string{fmt.Sprintf("10.244.1.%d", 10+i%3), fmt.Sprintf("10.244.2.%d", 10+i%100)}, more...) {
		node := "node2"
		if strings.HasPrefix(a, "10.244.1.") {
			node = "node1"
		}
		endpoints = append(endpoints, kube.Object{"addresses": []any{a}, "nodeName": node, "conditions": kube.Object{"ready": true}})
	}
	return []kube.Object{
		{"apiVersion": "v1", "kind": "Service", "metadata": kube.Object{"name": name, "namespace": "default"},
			"spec": kube.Object{"clusterIP": vipOf(i), "clusterIPs": []any{vipOf(i)}, "ipFamilies": []any{"IPv4"},
				"ports": []any{kube.Object{"port": 80, "targetPort": 8080}}}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata":    kube.Object{"name": name, "namespace": "default", "labels": kube.Object{"kubernetes.io/service-name": name}},
			"addressType": "IPv4",
			"ports":       []any{kube.Object{"port": 8080, "protocol": "TCP"}},
			"endpoints":   endpoints},
	}
}

// reaches waits until the load balancer of an address has an endpoint, and the program is idle.
func (p *player) reaches(ctx context.Context, vip, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, p.changeTimeout)
	defer cancel()
	return kube.Until(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		balancers, _ := p.host.State("")
		if !slices.ContainsFunc(balancers, func(l string) bool {
			return strings.HasPrefix(l, vip+" ") && strings.HasSuffix(l, " "+endpoint)
		}) {
			return fmt.Errorf("%s does not lead to %s", vip, endpoint)
		}
		if p.peer == "" {
			return p.synced(ctx)
		}
		return p.peerSynced(ctx, vip)
	})
}
