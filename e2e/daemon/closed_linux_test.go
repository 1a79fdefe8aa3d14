package daemon

import (
	"context"
	"strings"
	"testing"
)

const closedCluster = `apiVersion: v1
kind: Service
metadata: {namespace: ns, name: closed}
spec:
  clusterIP: 10.96.0.11
  type: LoadBalancer
  loadBalancerSourceRanges: [office]
  ports: [{port: 80, protocol: TCP}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.11}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: ns, name: closed-1, labels: {kubernetes.io/service-name: closed}}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.11], conditions: {ready: true}}]
`

// A load balancer without a valid source range admits no client. The log, the status, and therefore
// the events for Services report it.
func TestClosedRangesAreTold(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "nftables")
	w.Sync(closedCluster)
	const reported = "no IPv4 range is valid: the load balancer's IPv4 addresses admit no client"
	out, _ := w.NS.Run(w.NS.Command(context.Background(), "proxyc", "status"))
	if !strings.Contains(string(out), reported) {
		t.Errorf("status does not tell it:\n%s", out)
	}
	if !strings.Contains(w.Log.String(), reported) {
		t.Error("the log does not tell it")
	}
	if rules := w.Rules(); !strings.Contains(rules, `203.0.113.11 . tcp . 80 comment "ns/closed" : goto sources-`) || !strings.Contains(rules, "ip saddr 0.0.0.0 return\n\t\tip daddr . meta l4proto . th dport @restricted-ips counter packets 0 bytes 0\n\t\tdrop\n") {
		t.Errorf("the address is not guarded:\n%s", rules)
	}
}
