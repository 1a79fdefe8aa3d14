package packets

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// TestEndpointsOfServices checks whether a filter applies to packets that are translated to an
// address of a Service: not in mode nftables, where no rule sees them again. The results are those of
// package ir/sim, except for packets that the mode lets leave the node, where no host has the address.
func TestEndpointsOfServices(t *testing.T) {
	t.Parallel()
	service := func(name string, i int, more, endpoint string, port int) string {
		const object = "{apiVersion: v1, kind: Service, metadata: {name: %[1]s, namespace: t}, spec: {clusterIP: 10.96.0.%[2]d, %[3]s}}\n---\n" +
			"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s, namespace: t, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4, ports: [{name: '', port: %[5]d}], endpoints: [%[4]s]}\n---\n"
		if more == "" {
			more = "ports: [{port: 80}]"
		}
		if endpoint != "" {
			endpoint = "{addresses: [" + endpoint + "]}"
		}
		return fmt.Sprintf(object, name, i, more, endpoint, port)
	}
	const node = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n---\n" +
		"{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}\n---\n"
	snapshot := node + service("real", 1, "", "10.244.1.10", 8080) +
		service("empty", 2, "type: NodePort, ports: [{port: 80, nodePort: 8081}]", "", 80) +
		service("vip", 3, "", "10.96.0.1", 80) + service("free", 4, "", "10.96.7.7", 8080) +
		service("lost", 5, "", "10.96.0.2", 80) +
		service("host", 6, "", "192.0.2.11", 8081) + service("other", 7, "", "192.0.2.11", 8080)
	// In mode iptables the first packet from ext to Service 5 leaves the node, since it is marked. Its
	// retransmission after a second is not marked, and is rejected.
	want := map[string]map[int]string{
		"nftables": {1: "10.244.1.10:8080", 3: applytest.TimedOut, 4: applytest.TimedOut, 5: applytest.TimedOut, 6: "192.0.2.11:8081", 7: "192.0.2.11:8080"},
		"iptables": {1: "10.244.1.10:8080", 3: applytest.TimedOut, 4: applytest.TimedOut, 5: applytest.Refused, 6: applytest.Refused, 7: "192.0.2.11:8080"},
	}
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		topo := applytest.TopologyFor(t)
		m := newMachine(t, topo.Namespace("node1"))
		config, _ := takeoverFiles()
		m.must(0, m.apply(p, config, m.file("snapshot.yaml", strings.TrimSuffix(snapshot, "---\n"))))
		for i, want := range want[p.mode] {
			for _, from := range []string{"pod1b", "ext", "node1"} {
				timeout := applytest.ReplyTimeout
				if want == applytest.TimedOut {
					timeout = 2 * time.Second
				}
				answer, err := topo.Try(from, "tcp", 0, to(fmt.Sprintf("10.96.0.%d", i), 80), timeout)
				got := answer.Server.String()
				if err != nil {
					got = applytest.Failure(err)
				}
				if got != want {
					t.Errorf("from %s to Service %d: %s, want %s", from, i, got, want)
				}
			}
		}
	})
}
