package main

import (
	"strconv"
	"strings"
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
