package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const benchEndpoints = 10 // of each Service

// BenchmarkText compiles a decoded snapshot and writes the mode's texts.
func BenchmarkText(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		snap, diags := reviewtest.Decode(benchCluster(b, n))
		if len(diags) > 0 {
			b.Fatal(diags)
		}
		for _, mode := range ir.Modes() {
			b.Run(fmt.Sprintf("mode=%s/services=%d", mode, n), func(b *testing.B) { benchText(b, mode, snap, n) })
		}
	}
}

func benchText(b *testing.B, mode ir.Mode, snap *snapshot.Snapshot, n int) {
	cfg := reviewtest.ParseConfig(b, mode, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.128.0.0/9\n"))
	b.ReportAllocs()
	for b.Loop() {
		programs, _ := compiler.Compile(cfg, snap, compiler.Facts{NodeName: "node1"})
		for _, o := range review.Modes[mode].Lower(programs).Outputs() {
			if err := o.Write(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/service")
}

// benchCluster returns the JSON of a cluster of plain Services.
func benchCluster(b *testing.B, services int) []byte {
	b.Helper()
	var items []any
	add := func(format string, args ...any) { items = append(items, json.RawMessage(fmt.Sprintf(format, args...))) }
	const nodes = 20
	for i := range nodes {
		add(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node%d","labels":{"topology.kubernetes.io/zone":"z%d"}},
			"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.%d"}]}}`, i+1, i%3, i+11)
	}
	vip, pod := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.128.0.1")
	for i := range services {
		ns, name := fmt.Sprintf("ns-%02d", i%50), fmt.Sprintf("svc-%05d", i)
		add(`{"apiVersion":"v1","kind":"Service","metadata":{"namespace":%q,"name":%q},"spec":{"type":"ClusterIP","clusterIP":"%s",
			"clusterIPs":["%[3]s"],"ipFamilies":["IPv4"],"ports":[{"name":"p0","protocol":"TCP","port":80,"targetPort":8080}]}}`, ns, name, vip)
		var endpoints []json.RawMessage
		for j := range benchEndpoints {
			endpoints = append(endpoints, json.RawMessage(fmt.Sprintf(
				`{"addresses":["%s"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"node%d","zone":"z%d",
				"targetRef":{"kind":"Pod","namespace":%q,"name":"%s-%d"}}`, pod, j%nodes+1, j%nodes%3, ns, name, j)))
			pod = pod.Next()
		}
		text, err := json.Marshal(endpoints)
		if err != nil {
			b.Fatal(err)
		}
		add(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"namespace":%q,"name":"%s-abcde",
			"labels":{"kubernetes.io/service-name":%[2]q}},"addressType":"IPv4",
			"ports":[{"name":"p0","protocol":"TCP","port":8080}],"endpoints":%s}`, ns, name, text)
		vip = vip.Next()
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		b.Fatal(err)
	}
	return data
}
