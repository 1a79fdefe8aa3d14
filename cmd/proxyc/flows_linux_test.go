package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// udpCluster is a Service at 10.96.0.5:53 that has one endpoint.
const udpCluster = `{apiVersion: v1, kind: Service, metadata: {name: u, namespace: ns}, spec: {type: ClusterIP, clusterIP: 10.96.0.5, clusterIPs: [10.96.0.5],
  ipFamilies: [IPv4], ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: u-1, namespace: ns, labels: {kubernetes.io/service-name: u}},
  addressType: IPv4, endpoints: [{addresses: [%s]}], ports: [{port: 53, protocol: UDP, name: ""}]}
---
`

// tracked returns how many flows the node tracks.
func (w *watched) tracked() int {
	w.t.Helper()
	out, err := w.ns.Run(w.ns.Command(w.t.Context(), "conntrack", "-C"))
	if err != nil {
		w.t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// TestWatchFlowsFollow: a Service loses an endpoint with very many flows. The next sync does not
// wait for their removal; /readyz does.
func TestWatchFlowsFollow(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.write("cluster.yaml", fmt.Sprintf(udpCluster, "10.244.1.5"))
	w.start("proxyc", "watch")
	ready := func() {
		t.Helper()
		within(w, 60*time.Second, "ready", func() (struct{}, bool) {
			code, _, err := w.get(healthPort, "/readyz")
			return struct{}{}, err == nil && code == http.StatusOK
		})
	}
	ready()

	const stale, foreign = 100_000, 1_000
	var flows strings.Builder
	for i := range stale {
		fmt.Fprintf(&flows, "-A -t 3600 -u SEEN_REPLY -s 198.18.%d.1 -d 10.96.0.5 -r 10.244.1.5 -q 198.18.%d.1 -p udp --sport %[3]d --dport 53 --reply-port-src 53 --reply-port-dst %[3]d\n",
			i/50000, i/50000, 1+i%50000)
	}
	for i := range foreign {
		fmt.Fprintf(&flows, "-A -t 3600 -u SEEN_REPLY -s 198.18.9.1 -d 198.19.255.1 -p udp --sport %d --dport 53\n", 1+i)
	}
	w.write("flows", flows.String())
	if _, err := w.ns.Run(w.ns.Command(context.Background(), "conntrack", "-R", w.file("flows"))); err != nil {
		t.Fatal(err)
	}
	before := w.tracked()
	if before < stale+foreign {
		t.Fatalf("%d flows, want %d", before, stale+foreign)
	}

	w.write("cluster.yaml", fmt.Sprintf(udpCluster, "10.244.1.6"))
	within(w, 20*time.Second, "the first of them is gone", func() (struct{}, bool) { return struct{}{}, w.tracked() < before })
	code, body, err := w.get(healthPort, "/readyz")
	if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(body, "stale flows are being deleted") {
		t.Errorf("/readyz: %d %s %v", code, body, err)
	}
	w.write("cluster.yaml", fmt.Sprintf(udpCluster, "10.244.1.6")+applytest.Services("b"))
	w.holds(20*time.Second, "b", true)
	left := w.tracked()
	ready()
	out, err := w.ns.Run(w.ns.Command(t.Context(), "conntrack", "-L", "-p", "udp", "-d", "10.96.0.5"))
	if n := strings.Count(string(out), "\n"); err != nil || n > 0 {
		t.Errorf("ready, and %d stale flows are left: %v", n, err)
	}
	t.Logf("%d of %d flows were left when the next sync was in force", left, before)
	if left <= before-stale { // all of them were gone
		t.Error("the next sync waited for them")
	}
}
