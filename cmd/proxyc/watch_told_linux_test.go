package main

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/daemon"
)

// localService is a load balancer's Service with a health check.
const localService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {type: LoadBalancer, clusterIP: 10.96.0.97, externalTrafficPolicy: Local, healthCheckNodePort: 32100, ports: [{port: 80, nodePort: 32080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.10], nodeName: node1}]
ports: [{port: 8080, name: ""}]
`

// A health check that does not answer, since another program holds its port, is
// told by status and /readyz until it does, which needs no change.
func TestWatchHealthCheckTaken(t *testing.T) {
	w := newWatched(t, "iptables-nft")
	var taken net.Listener
	if err := w.ns.Do(func() (err error) {
		taken, err = net.Listen("tcp4", ":32100")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.write("cluster.yaml", localService)
	w.start("proxyc", "watch")
	st := w.until("the first sync", func(st daemon.Status) bool { return synced(st) && len(st.Down) > 0 })
	if d := st.Down[0]; d.Server != "healthCheckNodePort of Service ns/web" || d.Address != "port 32100 (IPv4)" || st.Well() {
		t.Errorf("not served: %+v, well: %t", d, st.Well())
	}
	const why = "healthCheckNodePort 32100 of Service ns/web does not answer: listen tcp4 0.0.0.0:32100: bind: address already in use"
	if code, body, err := w.get(healthPort, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, why) {
		t.Errorf("/readyz: %d %s %v", code, body, err)
	}
	taken.Close()
	w.until("it answers", func(st daemon.Status) bool { return st.Well() && st.Reason == "" })
	within(w, 5*time.Second, "the health check", func() (struct{}, bool) {
		code, _, err := w.get(32100, "/")
		return struct{}{}, err == nil && code == http.StatusOK
	})
	if n := strings.Count(w.log.String(), fmt.Sprintf("%q", "healthCheckNodePort does not answer: will be tried again")); n != 1 {
		t.Errorf("told %d times in the log, want once", n)
	}
}
